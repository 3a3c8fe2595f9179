// Breaks this process's queue pairs without the library's knowledge, as a broken device would.
#pragma once

#include <cstdint>

namespace hetcomm::test {

// Puts one of the process's queue pairs, selected by |choice|, into the error state. Returns the
// number of queue pairs; 0 means that none was broken. [any-thread]
uint32_t break_queue_pair(uint32_t choice);

}  // namespace hetcomm::test
