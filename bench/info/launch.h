// Starts this program as several ranks on this host.
#pragma once

#include <string>
#include <vector>

namespace hetcomm_info {

// Runs |arguments| (without the program's name) as |count| ranks that find each other through
// 127.0.0.1, waits for all, and gives what each wrote to standard output, in rank order. Standard
// error is shared. Once one rank fails the others are ended; nothing outlives this call, nor this
// process. False when a rank failed.
bool launch_ranks(int count, const std::vector<std::string>& arguments,
                  std::vector<std::string>* out_outputs);

}  // namespace hetcomm_info
