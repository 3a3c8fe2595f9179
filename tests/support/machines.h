// The machines of tests/machines, for tests that ctest starts.
#pragma once

#include <cstdlib>
#include <string>

namespace hetcomm {

// Path of a file there; that of the source tree when ctest has not named another.
inline std::string machine_path(const std::string& file) {
  const char* folder = std::getenv("HETCOMM_TEST_MACHINES");
  return (folder == nullptr ? "tests/machines" : std::string(folder)) + "/" + file;
}

inline constexpr const char* kMachines[] = {
    "eight_nics", "four_nics", "one_nic",       "switch_without_nic",
    "nic_down",   "two_ports", "unequal_rates", "four_nodes",
};

}  // namespace hetcomm
