#include "src/system/small_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include <fmt/core.h>

#include "src/system/unique_fd.h"

namespace hetcomm {
namespace {

Status check_private(const struct stat& info, std::string_view what) {
  if (info.st_uid != ::geteuid() && info.st_uid != 0) {
    return Status(
        Code::kPermissionDenied,
        fmt::format(
            "{}: it belongs to user {}; it has to belong to this process's user {} or to root",
            what, info.st_uid, ::geteuid()));
  }
  if ((info.st_mode & S_IWGRP) != 0) {
    return Status(Code::kPermissionDenied,
                  fmt::format("{}: its group may change it; use chmod 600", what));
  }
  return {};
}

Result<SmallFile> read_file(const std::string& path, size_t max_bytes, std::string_view what,
                            bool is_private) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat info {};
  if (!file.valid() || ::fstat(file.get(), &info) != 0) return status_from_errno(errno, what);
  if (!S_ISREG(info.st_mode)) {
    return Status(Code::kInvalidArgument, fmt::format("{}: it is not a file", what));
  }
  if ((info.st_mode & S_IWOTH) != 0) {
    return Status(Code::kPermissionDenied,
                  fmt::format("{}: every user may change it; use chmod 600", what));
  }
  if (is_private) HETCOMM_RETURN_IF_ERROR(check_private(info, what));
  SmallFile result;
  result.everybody_reads = (info.st_mode & S_IROTH) != 0;
  std::string& text = result.contents;
  text.resize(max_bytes + 1);
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return status_from_errno(errno, what);
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  if (size > max_bytes) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{}: it has more than {} bytes", what, max_bytes));
  }
  text.resize(size);
  return result;
}

}  // namespace

Result<SmallFile> read_small_file(const std::string& path, size_t max_bytes,
                                  std::string_view what) {
  return read_file(path, max_bytes, what, false);
}

Result<SmallFile> read_private_file(const std::string& path, size_t max_bytes,
                                    std::string_view what) {
  return read_file(path, max_bytes, what, true);
}

}  // namespace hetcomm
