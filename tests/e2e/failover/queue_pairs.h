// Breaks queue pairs of this process under the library's hands, as a broken device would.
#pragma once

#include <cstdint>

namespace hetcomm::test {

// Puts one of the process's queue pairs, by |choice|, into the error state. Returns how many there
// are; 0: none was broken. Any thread.
uint32_t break_queue_pair(uint32_t choice);

}  // namespace hetcomm::test
