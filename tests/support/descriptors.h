// Counts this process's open file descriptors.
#pragma once

#include <cstddef>
#include <filesystem>
#include <iterator>

namespace hetcomm::test {

// Counts the open descriptors. The count includes the one that counting itself uses, so compare
// differences only.
inline size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

}  // namespace hetcomm::test
