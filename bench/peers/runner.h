// main() of the runners: small programs, one per library, that run the loops over that library and
// print their measurements. hetcomm_bench contains their sources. It compiles them where it finds
// the library, with the compiler driver that the library needs. Nothing of it is linked into
// hetcomm.
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

// Runs the loops. Passes words that belong to no workload to Backend::take_word.
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
