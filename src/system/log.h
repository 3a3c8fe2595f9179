// Log writes lines "hetcomm[host:rank pid 4711 2026-11-28T02:40:01.123Z] level: text". The time is
// in UTC. There is one Log per context. The code that detects an error logs it.
//
// A line goes to the caller's function and to the file of HETCOMM_LOG_FILE. A line that reaches
// neither goes to standard error, and is lost if it cannot be written there either. A pipe without
// a reader or a file at its size limit does not kill the process with a signal.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include <fmt/core.h>

#include <hetcomm/context.h>

#include "src/base/status.h"
#include "src/system/log_file.h"

namespace hetcomm {

enum class LogLevel : int32_t {
  kError = HETCOMM_LOG_ERROR,
  kWarn = HETCOMM_LOG_WARN,
  kInfo = HETCOMM_LOG_INFO,
  kDebug = HETCOMM_LOG_DEBUG,
  kTrace = HETCOMM_LOG_TRACE,
};

Result<LogLevel> parse_log_level(std::string_view text);

// Log is thread-safe. Lines of one context never interleave.
class Log {
 public:
  Log();
  void set_level(LogLevel level) { level_.store(level, std::memory_order_relaxed); }
  void set_sink(hetcomm_log_function_t function, void* user_data);
  // Opens the file |name| (log_file.h). If the name contains %r and |rank| is not set, lines go to
  // standard error until set_rank().
  Status set_file(std::string_view name, std::optional<int> rank);
  void set_rank(int rank);

  bool enabled(LogLevel level) const {
    return static_cast<int32_t>(level) <=
           static_cast<int32_t>(level_.load(std::memory_order_relaxed));
  }
  void write(LogLevel level, std::string_view text);

  template <typename... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) {
    line(LogLevel::kError, format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) {
    line(LogLevel::kWarn, format, std::forward<Args>(args)...);
  }
  // Logs each text only once.
  void warn_once(const std::string& text);
  template <typename... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) {
    line(LogLevel::kInfo, format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void debug(fmt::format_string<Args...> format, Args&&... args) {
    line(LogLevel::kDebug, format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void trace(fmt::format_string<Args...> format, Args&&... args) {
    line(LogLevel::kTrace, format, std::forward<Args>(args)...);
  }

 private:
  template <typename... Args>
  void line(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
    if (!enabled(level)) return;
    try {
      write(level, fmt::format(format, std::forward<Args>(args)...));
    } catch (const std::bad_alloc&) {
      // A failure to log a line must not make anything else fail.
    }
  }

  std::atomic<LogLevel> level_{LogLevel::kWarn};
  std::atomic<int> rank_{-1};
  std::string host_;
  std::mutex mutex_;
  std::set<std::string> said_once_;
  std::optional<LogFile> file_;
  hetcomm_log_function_t function_ = nullptr;
  void* user_data_ = nullptr;
};

}  // namespace hetcomm
