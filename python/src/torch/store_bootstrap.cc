#include "python/src/torch/store_bootstrap.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "python/src/torch/status.h"

namespace hetcomm::torch_backend {
namespace {

constexpr uint64_t kNanosecondsPerMillisecond = 1'000'000;
constexpr std::chrono::milliseconds kRounding(20);
// What the store's own clients can count.
constexpr uint64_t kLongestWaitMs = 24ULL * 3600 * 1000;

}  // namespace

StoreBootstrap::StoreBootstrap(hetcomm_context_t* context, c10::intrusive_ptr<c10d::Store> store,
                               int rank, int size)
    : store_(std::move(store)) {
  const std::string scope = "hetcomm/" + std::to_string(size) + "/";
  generation_ = static_cast<uint32_t>(store_->add(scope + "generation/" + std::to_string(rank), 1));
  prefix_ = scope + std::to_string(generation_) + "/";
  hetcomm_bootstrap_options_t options{};
  options.struct_size = sizeof(options);
  options.rank = rank;
  options.size = size;
  options.put = &put;
  options.get = &get;
  options.user_data = this;
  check("bootstrap", hetcomm_bootstrap_create_from_callbacks(context, &options, &bootstrap_));
}

hetcomm_status_t StoreBootstrap::put(void* self, const char* key, const void* value, size_t size) {
  auto& own = *static_cast<StoreBootstrap*>(self);
  try {
    const auto* bytes = static_cast<const uint8_t*>(value);
    own.store_->set(own.prefix_ + key, std::vector<uint8_t>(bytes, bytes + size));
    return HETCOMM_OK;
  } catch (const std::exception& error) {
    own.store_error_ = error.what();
    return HETCOMM_BOOTSTRAP_FAILED;
  }
}

hetcomm_status_t StoreBootstrap::get(void* self, const char* key, void* value, size_t* inout_size,
                                     uint64_t timeout_ns) {
  auto& own = *static_cast<StoreBootstrap*>(self);
  const uint64_t timeout_ms =
      std::clamp<uint64_t>(timeout_ns / kNanosecondsPerMillisecond, 1, kLongestWaitMs);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  try {
    const std::string full = own.prefix_ + key;
    own.store_->wait({full}, std::chrono::milliseconds(timeout_ms));
    const std::vector<uint8_t> bytes = own.store_->get(full);
    if (bytes.size() <= *inout_size)
      std::copy(bytes.begin(), bytes.end(), static_cast<uint8_t*>(value));
    *inout_size = bytes.size();
    return HETCOMM_OK;
  } catch (const std::exception& error) {
    // No exception of its own says that a wait has run out, and stores round its end.
    if (std::chrono::steady_clock::now() + kRounding >= deadline) return HETCOMM_TIMED_OUT;
    own.store_error_ = error.what();
    return HETCOMM_BOOTSTRAP_FAILED;
  }
}

}  // namespace hetcomm::torch_backend
