// Reports how many more files this process may open, and raises its limit on open files
// (RLIMIT_NOFILE).
#pragma once

#include <cstdint>
#include <string_view>

#include "src/base/status.h"
#include "src/system/config.h"
#include "src/system/log.h"

namespace hetcomm {

// Returns whether at most 64 descriptors, and at most an eighth of the limit (RLIMIT_NOFILE), are
// left. Reads /proc, which takes microseconds. Before Linux 6.2 this takes about a microsecond for
// each open descriptor. Returns false without /proc. [any-thread]
bool descriptors_run_short();

// The soft limit is raised by this much beyond what is needed, for the rest of the program.
inline constexpr uint64_t kSpareDescriptors = 256;

// Ensures that this process may open |count| more files for |purpose| ("rank 0's store of 100
// ranks"). If necessary, raises the soft limit to what is needed plus kSpareDescriptors, up to the
// hard limit, and logs that at info. Never lowers the limit. Does not raise it with
// HETCOMM_RAISE_LIMITS=off. Returns OUT_OF_RESOURCES, with the number for `ulimit -n`, if the limit
// stays below what is needed. Does not count open files without /proc. [any-thread]
Status reserve_descriptors(const Config& config, Log& log, uint64_t count,
                           std::string_view purpose);

// Returns the number for `ulimit -n` that gives |count| more descriptors to a process that has run
// out of them. [any-thread]
uint64_t advised_descriptor_limit(uint64_t count);

}  // namespace hetcomm
