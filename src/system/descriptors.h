// Detects that this process is running out of descriptors, and raises its limit on open files
// (RLIMIT_NOFILE).
#pragma once

#include <cstdint>
#include <string_view>

#include "src/base/status.h"
#include "src/system/config.h"
#include "src/system/log.h"

namespace hetcomm {

// Returns whether the process is about to run out of descriptors: at most 64, and at most an eighth
// of the limit (RLIMIT_NOFILE), are left. Reads /proc, which takes a few microseconds, and before
// Linux 6.2 about one microsecond for each open descriptor. Returns false if /proc is not mounted.
// [any-thread]
bool descriptors_run_short();

// The soft limit is raised by this much more than is needed, to leave descriptors for the rest of
// the program.
inline constexpr uint64_t kSpareDescriptors = 256;

// Ensures that this process can open |count| more files for |purpose| ("rank 0's store of 100
// ranks"). If necessary, raises the soft limit to the required number plus kSpareDescriptors, up to
// the hard limit, and logs this at level info. Never lowers the limit. Does not raise it with
// HETCOMM_RAISE_LIMITS=off. Returns OUT_OF_RESOURCES, with the number for `ulimit -n`, if the limit
// stays too low. If /proc is not mounted, the files already open are not counted. [any-thread]
Status reserve_descriptors(const Config& config, Log& log, uint64_t count,
                           std::string_view purpose);

// Returns the number for `ulimit -n` that gives |count| more descriptors to a process that has run
// out of them. [any-thread]
uint64_t advised_descriptor_limit(uint64_t count);

}  // namespace hetcomm
