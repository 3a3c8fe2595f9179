// Finds the files in tests/machines for tests that ctest starts.
#pragma once

#include <cstdlib>
#include <string>

namespace hetcomm {

// Returns the path of a file in tests/machines: in the source tree, unless ctest has set another
// folder.
inline std::string machine_path(const std::string& file) {
  const char* folder = std::getenv("HETCOMM_TEST_MACHINES");
  return (folder == nullptr ? "tests/machines" : std::string(folder)) + "/" + file;
}

inline constexpr const char* kMachines[] = {
    "eight_nics", "four_nics", "one_nic",       "switch_without_nic",
    "nic_down",   "two_ports", "unequal_rates", "four_nodes",
};

}  // namespace hetcomm
