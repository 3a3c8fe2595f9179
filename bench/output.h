// Writes results to standard output, files and pictures, and progress to standard error.
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

// ProgressLine shows one line of progress on a terminal. Each text overwrites the previous one.
// Prints nothing if standard error is not a terminal, so that logs stay short.
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

// Writes |text| to the file |path|. If that fails, prints an error and returns false.
bool write_file(const std::string& path, const std::string& text);
// Prints |text| to the destination of --output. Returns whether that succeeded.
bool print(const OutputOptions& output, const std::string& text);
// Draws |json| into the file of --plot, if there is one. If that fails, prints an error and returns
// false.
bool draw_plot(const OutputOptions& output, const std::string& json);

// Returns whether the files of |output| can be written, and prints an error if not. Called before a
// long measurement, whose result would otherwise be lost. Does not change an existing file.
bool can_write(const OutputOptions& output);
// Returns whether Python provides everything that |options| require, and prints an error if not.
// Called before a long measurement.
bool has_python(const Options& options);

}  // namespace bench
