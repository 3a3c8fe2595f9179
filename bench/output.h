// Where results go: standard output, files, pictures; and progress on standard error.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <string>

#include "bench/options.h"

namespace bench {

// Exit statuses.
inline constexpr int kOk = 0;
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;

// A line that is overwritten on a terminal. Nothing elsewhere, so that logs stay short.
class ProgressLine {
 public:
  ~ProgressLine() { clear(); }
  void show(const std::string& text) {
    if (!terminal_) return;
    std::fprintf(stderr, "\r\033[K%s", text.c_str());
    std::fflush(stderr);
    shown_ = true;
  }
  void clear() {
    if (shown_) std::fputs("\r\033[K", stderr);
    shown_ = false;
  }

 private:
  bool terminal_ = isatty(STDERR_FILENO) == 1;
  bool shown_ = false;
};

// Each says on standard error what is wrong.
bool write_file(const std::string& path, const std::string& text);
// Prints to the destination of --output.
bool print(const OutputOptions& output, const std::string& text);
// Draws |json| into the file of --plot, if there is one.
bool draw_plot(const OutputOptions& output, const std::string& json);

// Whether the files of |output| can be written. Called before a long measurement, whose result
// would otherwise be lost. Does not change an existing file.
bool can_write(const OutputOptions& output);
// Whether nothing is missing for the options that need Python. Called before a long measurement.
bool has_python(const Options& options);

}  // namespace bench
