#include "src/system/log_file.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include <fmt/core.h>

#include "src/base/text.h"

namespace hetcomm {
namespace {

constexpr std::string_view kVariable = "HETCOMM_LOG_FILE";

// Returns |name| with its placeholders replaced, or std::nullopt if it contains %r and |rank| is
// not set. Fails for an unknown placeholder.
Result<std::optional<std::string>> expand(std::string_view name, std::string_view host,
                                          std::optional<int> rank) {
  std::string expanded;
  bool complete = true;
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] != '%') {
      expanded += name[i];
      continue;
    }
    const char mark = ++i < name.size() ? name[i] : '\0';
    switch (mark) {
      case 'h':
        expanded += host;
        break;
      case 'p':
        expanded += std::to_string(getpid());
        break;
      case 'r':
        complete = complete && rank.has_value();
        expanded += std::to_string(rank.value_or(0));
        break;
      case '%':
        expanded += '%';
        break;
      default:
        return Status(Code::kInvalidArgument,
                      fmt::format("{}: '{}' in '{}' is unknown; %h is the host, %p the process id, "
                                  "%r the rank and %% a percent sign",
                                  kVariable, printable(name.substr(i - 1, 2)), printable(name)));
    }
  }
  return complete ? std::optional(expanded) : std::nullopt;
}

}  // namespace

Result<LogFile> LogFile::create(std::string_view name, std::string_view host,
                                std::optional<int> rank) {
  LogFile file(name, host);
  // A slash in the host's name would be taken for a directory separator.
  std::replace(file.host_.begin(), file.host_.end(), '/', '_');
  HETCOMM_RETURN_IF_ERROR(file.open(rank));
  return file;
}

Status LogFile::set_rank(int rank) { return is_open() ? Status() : open(rank); }

Status LogFile::open(std::optional<int> rank) {
  Result<std::optional<std::string>> name = expand(name_, host_, rank);
  if (!name.ok()) return name.status();
  if (!name.value()) return {};
  const std::string& path = *name.value();
  // Without O_NONBLOCK, the call would block on a pipe without a reader.
  constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY;
  fd_.reset(::open(path.c_str(), kFlags | O_NONBLOCK, 0644));
  if (fd_.valid()) {
    const int flags = fcntl(fd_.get(), F_GETFL);
    if (flags >= 0) fcntl(fd_.get(), F_SETFL, flags & ~O_NONBLOCK);
    return {};
  }
  return status_from_errno(errno,
                           fmt::format("{}: '{}' cannot be opened", kVariable, printable(path)));
}

bool LogFile::append(std::string_view line) const {
  const std::string whole = std::string(line) + "\n";
  ssize_t written = -1;
  do {
    written = ::write(fd_.get(), whole.data(), whole.size());
  } while (written < 0 && errno == EINTR);
  return written == static_cast<ssize_t>(whole.size());
}

}  // namespace hetcomm
