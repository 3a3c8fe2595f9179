#include "src/base/descriptors.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <system_error>

namespace hetcomm {
namespace {

// 0 without /proc.
uint64_t open_descriptors() {
  constexpr const char* kAll = "/proc/self/fd";
  struct stat info {};
  if (stat(kAll, &info) != 0) return 0;
  if (info.st_size > 0) return static_cast<uint64_t>(info.st_size);  // since Linux 6.2
  std::error_code error;
  std::filesystem::directory_iterator at(kAll, error);
  if (error == std::errc::too_many_files_open ||
      error == std::errc::too_many_files_open_in_system) {
    return UINT64_MAX / 2;
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
  constexpr rlim_t kMostSpare = 64;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  const rlim_t spare = std::min(limit.rlim_cur / 8, kMostSpare);
  return open_descriptors() + spare >= limit.rlim_cur;
}

}  // namespace hetcomm
