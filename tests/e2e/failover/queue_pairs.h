// Breaks queue pairs of this process behind the library's back, as a broken device would.
#pragma once

#include <cstdint>

namespace hetcomm::test {

// Puts one of the process's queue pairs, selected by |choice|, into the error state. Returns how
// many there are; 0 means that none was broken. Any thread.
uint32_t break_queue_pair(uint32_t choice);

}  // namespace hetcomm::test
