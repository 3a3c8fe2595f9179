// Protects the program from signals that a write can raise.
//
// The kernel raises SIGPIPE for a pipe or socket without a reader, and SIGXFSZ for a file that
// would grow beyond its limit (ulimit -f). Both kill the process by default, and a library must not
// change how the process handles them. A WriteSignals object blocks them in the current thread
// while it exists, and its destructor consumes those that were raised during that time. The call
// that raised a signal still fails with EPIPE or EFBIG.
//
// A signal that was already pending stays pending. If the kernel does not let a signal be consumed,
// that signal stays blocked in this thread.
#pragma once

#include <signal.h>

#include <array>

namespace hetcomm {

class WriteSignals {
 public:
  WriteSignals();
  ~WriteSignals();
  WriteSignals(const WriteSignals&) = delete;
  WriteSignals& operator=(const WriteSignals&) = delete;

 private:
  static constexpr std::array<int, 2> kRaised = {SIGPIPE, SIGXFSZ};

  bool blocked_ = false;
  sigset_t before_{};   // the signals that this thread blocked before
  sigset_t pending_{};  // the signals that were pending before
};

}  // namespace hetcomm
