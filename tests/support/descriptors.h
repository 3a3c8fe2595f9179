// Counts the descriptors that this process holds.
#pragma once

#include <cstddef>
#include <filesystem>
#include <iterator>

namespace hetcomm::test {

// The result includes the descriptor that counting takes, so use it for differences.
inline size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

}  // namespace hetcomm::test
