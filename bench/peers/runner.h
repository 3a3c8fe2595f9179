// Provides the common part of the runners. A runner is a small program that runs the loops over one
// other library and prints the measurements. hetcomm_bench compiles it where it finds the library,
// with the compiler driver that the library needs. No runner is linked into hetcomm.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "bench/loops/run.h"

namespace bench {

[[noreturn]] __attribute__((format(printf, 1, 2))) inline void die(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::fputs("runner: ", stderr);
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
  va_end(arguments);
  std::_Exit(1);
}

// Runs the loops over |backend|. Passes words that are not part of a workload to
// backend.take_word().
template <class Backend>
int run_backend(Backend& backend, int count, char** words) {
  Workload workload;
  for (int i = 1; i < count; ++i) {
    if (!decode_workload_word(words[i], &workload) && !backend.take_word(words[i])) {
      die("unknown word '%s'", words[i]);
    }
  }
  backend.start(workload);
  run_workload(backend, workload, [](const Measurement& measurement) {
    std::puts(encode(measurement).c_str());
    std::fflush(stdout);
  });
  backend.stop();
  return 0;
}

}  // namespace bench
