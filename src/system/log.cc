#include "src/system/log.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <ctime>

#include "src/base/text.h"
#include "src/system/write_signals.h"

namespace hetcomm {
namespace {

constexpr std::array<std::string_view, 6> kLevelNames = {"",     "error", "warn",
                                                         "info", "debug", "trace"};

// Returns "2026-11-28T02:40:01.123Z": UTC, so that logs from different time zones can be compared.
std::string time_text() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", parts.tm_year + 1900,
                     parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                     now.tv_nsec / 1'000'000);
}

// Writes |line| to standard error. This usually takes one call of write(), so lines of different
// processes rarely mix.
void write_to_standard_error(std::string_view line) {
  while (!line.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    line.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

Result<LogLevel> parse_log_level(std::string_view text) {
  for (size_t i = 1; i < kLevelNames.size(); ++i) {
    if (text == kLevelNames[i]) return static_cast<LogLevel>(i);
  }
  return Status(Code::kInvalidArgument,
                fmt::format("'{}' is not a log level (error, warn, info, debug, trace)", text));
}

Log::Log() {
  std::array<char, 65> host{};
  if (gethostname(host.data(), host.size() - 1) == 0) host_ = host.data();
}

void Log::set_sink(hetcomm_log_function_t function, void* user_data) {
  std::lock_guard lock(mutex_);
  function_ = function;
  user_data_ = user_data;
}

Status Log::set_file(std::string_view name, std::optional<int> rank) {
  Result<LogFile> file = LogFile::create(name, host_, rank);
  if (!file.ok()) return file.status();
  const std::lock_guard lock(mutex_);
  file_ = std::move(file).value();
  return {};
}

void Log::set_rank(int rank) {
  rank_.store(rank, std::memory_order_relaxed);
  Status opened;
  {
    const std::lock_guard lock(mutex_);
    if (!file_) return;
    opened = file_->set_rank(rank);
    if (!opened.ok()) file_.reset();
  }
  if (!opened.ok()) error("{}; log lines go to standard error", opened.text());
}

void Log::warn_once(const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    if (!said_once_.insert(text).second) return;
  }
  warn("{}", text);
}

void Log::write(LogLevel level, std::string_view text) {
  const int rank = rank_.load(std::memory_order_relaxed);
  const std::string_view name = kLevelNames[static_cast<size_t>(level)];
  // The text may contain untrusted data from peers and files.
  const std::string clean = printable_lines(text);
  const std::string origin = rank >= 0 ? fmt::format("{}:{}", host_, rank) : host_;
  const std::string line =
      fmt::format("hetcomm[{} pid {} {}] {}: {}", origin, getpid(), time_text(), name, clean);
  std::lock_guard lock(mutex_);
  if (function_ != nullptr) function_(user_data_, static_cast<int32_t>(level), line.c_str());
  const WriteSignals signals;
  const bool in_file = file_ && file_->is_open() && file_->append(line);
  if (function_ == nullptr && !in_file) write_to_standard_error(line + "\n");
}

}  // namespace hetcomm
