#include "src/system/descriptors.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <system_error>

#include <fmt/core.h>

#include "src/system/variables.h"

namespace hetcomm {
namespace {

// Returns the number of open descriptors, or 0 if /proc is not mounted. Returns |limit| if there is
// no free descriptor with which to open the directory in /proc.
uint64_t open_descriptors(uint64_t limit) {
  constexpr const char* kAll = "/proc/self/fd";
  struct stat info {};
  if (stat(kAll, &info) != 0) return 0;
  if (info.st_size > 0) return static_cast<uint64_t>(info.st_size);  // since Linux 6.2
  std::error_code error;
  std::filesystem::directory_iterator at(kAll, error);
  if (error == std::errc::too_many_files_open ||
      error == std::errc::too_many_files_open_in_system) {
    return limit;
  }
  uint64_t count = 0;
  while (!error && at != std::filesystem::directory_iterator()) {
    ++count;
    at.increment(error);
  }
  return count;
}

}  // namespace

bool descriptors_run_short() {
  constexpr rlim_t kMaxSpare = 64;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  const rlim_t spare = std::min(limit.rlim_cur / 8, kMaxSpare);
  return open_descriptors(limit.rlim_cur) + spare >= limit.rlim_cur;
}

uint64_t advised_descriptor_limit(uint64_t count) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return count;
  return limit.rlim_cur + count + kSpareDescriptors;
}

Status reserve_descriptors(const Config& config, Log& log, uint64_t count,
                           std::string_view purpose) {
  // Without the mutex, a thread could overwrite a higher limit that another thread has just set.
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  const uint64_t open = open_descriptors(limit.rlim_cur);
  const uint64_t needed = open + count;
  if (needed <= limit.rlim_cur) return {};
  const bool allowed = config.is_on(variable::kRaiseLimits);
  const rlim_t before = limit.rlim_cur;
  if (allowed) {
    const rlim_t wanted = needed + kSpareDescriptors;
    limit.rlim_cur =
        limit.rlim_max == RLIM_INFINITY ? wanted : std::min<rlim_t>(wanted, limit.rlim_max);
    if (limit.rlim_cur <= before || setrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = before;
    if (limit.rlim_cur > before) {
      log.info("the limit of open files (RLIMIT_NOFILE) is raised from {} to {}: {} needs {}",
               before, limit.rlim_cur, purpose, count);
    }
  }
  if (needed <= limit.rlim_cur) return {};
  return Status(
      Code::kOutOfResources,
      fmt::format(
          "{} needs {} descriptors beside the {} that are open, and this process may have "
          "{}: run `ulimit -n {}` before the program{}",
          purpose, count, open, limit.rlim_cur, needed + kSpareDescriptors,
          allowed ? ", which may need a higher hard limit" : ", or leave HETCOMM_RAISE_LIMITS on"));
}

}  // namespace hetcomm
