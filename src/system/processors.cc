#include "src/system/processors.h"

#include <sched.h>

#include <cerrno>
#include <cstdint>
#include <utility>
#include <vector>

namespace hetcomm {

ProcessorSet processors_of(pthread_t thread) {
  // The kernel refuses masks that are shorter than its own.
  for (size_t processors = 1024; processors <= ProcessorSet::kMax; processors *= 4) {
    std::vector<uint64_t> words(processors / 64);
    const int error =
        pthread_getaffinity_np(thread, processors / 8, reinterpret_cast<cpu_set_t*>(words.data()));
    if (error == 0) return ProcessorSet(std::move(words));
    if (error != EINVAL) break;
  }
  return {};
}

bool narrow_thread(pthread_t thread, const ProcessorSet& wanted) {
  const ProcessorSet current = processors_of(thread);
  ProcessorSet target = current;
  target.keep(wanted);
  if (target.empty() || target == current) return false;
  const std::vector<uint64_t>& words = target.words();
  return pthread_setaffinity_np(thread, words.size() * sizeof(uint64_t),
                                reinterpret_cast<const cpu_set_t*>(words.data())) == 0;
}

}  // namespace hetcomm
