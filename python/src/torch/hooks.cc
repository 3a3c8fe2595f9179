#include "python/src/torch/hooks.h"

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <exception>

namespace hetcomm::torch_backend {

void log_hook_failure(const char* kind) noexcept {
  try {
    throw;
  } catch (const std::exception& error) {
    LOG(ERROR) << "hetcomm: " << kind << " failed: " << error.what();
  } catch (...) {
    LOG(ERROR) << "hetcomm: " << kind << " failed";
  }
}

void Hooks::set_end_hook(EndHook hook) {
  const std::scoped_lock lock(mutex_);
  TORCH_CHECK(!has_end_hook(), "hetcomm: there is a completion hook already");
  end_hook_ = std::move(hook);
  has_end_hook_.store(true, std::memory_order_release);
}

void Hooks::call_end_hook(std::shared_ptr<c10d::WorkInfo> work) const {
  try {
    end_hook_(std::move(work));
  } catch (...) {
    log_hook_failure("a completion hook");
  }
}

}  // namespace hetcomm::torch_backend
