// Handles jobs of several ranks for hetcomm_bench and hetcomm_info: detects the launcher of this
// process, lets the ranks find each other, and starts ranks of a tool on this host.
#pragma once

#include <string>
#include <vector>

#include <hetcomm/hetcomm.h>

#include "tools/common/launch.h"

namespace tools {

// A Launcher identifies the program that started this process as one rank of several. kNone means
// that there is no such program.
enum class Launcher { kNone, kEnvironment, kMpi, kTwoHosts };
// Detects the launcher from environment variables. Never returns kTwoHosts, which only the command
// line of hetcomm_bench sets.
Launcher detect_launcher();

// Returns whether the environment variable |name| is set and not empty.
bool is_set(const char* name);

// Creates the bootstrap of the job that |launcher| started. Returns "", or the error.
std::string create_bootstrap(Launcher launcher, hetcomm_context_t* context,
                             hetcomm_bootstrap_t** out_bootstrap);

// Returns |count| processes that run |command| and find each other as ranks 0 to |count| - 1
// through a port of this host. They share a new secret unless the user has set one.
std::vector<Process> ranks_on_this_host(const std::vector<std::string>& command, int count);

}  // namespace tools
