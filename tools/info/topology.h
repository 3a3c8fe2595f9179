// Implements the command `topology`, which shows the machine as the library sees it.
#pragma once

#include <string>

namespace hetcomm_info {

// Prints this machine, or the one that |file| describes, as text, json or svg. Returns the exit
// status.
int print_topology(const std::string& file, const std::string& format);

}  // namespace hetcomm_info
