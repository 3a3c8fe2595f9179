#include "src/core/progress/spin_policy.h"

namespace hetcomm {

void SpinPolicy::set_up(uint64_t spin_ns, bool adapts, bool yields) {
  ticks_per_us_ = ticks_per_us();
  set_spin(spin_ns);
  set_yields(yields);
  adapts_ = adapts;
}

}  // namespace hetcomm
