#include "src/system/short_slices.h"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace hetcomm {

void ask_for_short_slices() {
  constexpr int32_t kNice = -10;
  struct Attributes {
    uint32_t size = sizeof(Attributes);
    uint32_t policy = 0;
    uint64_t flags = 0;
    int32_t nice = 0;
    uint32_t priority = 0;
    uint64_t runtime = 100'000;
    uint64_t deadline = 0;
    uint64_t period = 0;
  } attributes;
  attributes.nice = kNice;
  if (syscall(SYS_sched_setattr, 0, &attributes, 0) != 0) {
    attributes.nice = 0;
    syscall(SYS_sched_setattr, 0, &attributes, 0);
  }
  prctl(PR_SET_TIMERSLACK, 1000);
}

}  // namespace hetcomm
