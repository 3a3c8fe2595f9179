#include "python/src/torch/hooks.h"

#include <c10/util/Exception.h>

namespace hetcomm::torch_backend {

void Hooks::set_end_hook(EndHook hook) {
  const std::scoped_lock lock(mutex_);
  TORCH_CHECK(!has_end_hook(), "hetcomm: there is a completion hook already");
  end_hook_ = std::move(hook);
  has_end_hook_.store(true, std::memory_order_release);
}

}  // namespace hetcomm::torch_backend
