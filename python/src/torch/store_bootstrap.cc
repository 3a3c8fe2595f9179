#include "python/src/torch/store_bootstrap.h"

#include <algorithm>
#include <c10/util/Logging.h>
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

std::chrono::milliseconds wait_time(uint64_t timeout_ns) {
  return std::chrono::milliseconds(
      std::clamp<uint64_t>(timeout_ns / kNanosecondsPerMillisecond, 1, kLongestWaitMs));
}

// As stores keep what they add.
std::vector<uint8_t> digits_of(int64_t value) {
  const std::string digits = std::to_string(value);
  return {digits.begin(), digits.end()};
}

}  // namespace

StoreBootstrap::StoreBootstrap(hetcomm_context_t* context, c10::intrusive_ptr<c10d::Store> store,
                               int rank, int size)
    : store_(std::move(store)), rank_(rank), size_(size) {
  generation_ = static_cast<uint32_t>(store_->add(counter(rank), 1));
  prefix_ = scope() + std::to_string(generation_) + "/";
  hetcomm_bootstrap_options_t options{};
  options.struct_size = sizeof(options);
  options.rank = rank;
  options.size = size;
  options.put = &put;
  options.get = &get;
  options.get_many = &get_many;
  options.delete_key = &delete_key;
  options.user_data = this;
  check("bootstrap", hetcomm_bootstrap_create_from_callbacks(context, &options, &bootstrap_));
}

std::string StoreBootstrap::scope() const { return "hetcomm/" + std::to_string(size_) + "/"; }

std::string StoreBootstrap::counter(int rank) const {
  return scope() + "generation/" + std::to_string(rank);
}

void StoreBootstrap::give_up() {
  try {
    for (int rank = 0; rank < size_; ++rank) {
      const std::string key = counter(rank);
      auto count = store_->add(key, 0);
      while (count < generation_) {
        // Another rank may do the same, and the missing one may come.
        const auto found = store_->compareSet(key, digits_of(count), digits_of(generation_));
        count = std::stoll(std::string(found.begin(), found.end()));
      }
    }
  } catch (const std::exception& error) {
    // The store may be what failed. Then nobody counts.
    LOG(WARNING) << "hetcomm: a group that failed is not counted: " << error.what();
  }
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
  const auto deadline = std::chrono::steady_clock::now() + wait_time(timeout_ns);
  try {
    const std::string full = own.prefix_ + key;
    const std::chrono::milliseconds left = wait_time(timeout_ns);
    // What is there counts, however late it is asked for.
    if (left > kRounding || !own.store_->check({full})) own.store_->wait({full}, left);
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

// One by one, values cost three messages to the store and back each.
hetcomm_status_t StoreBootstrap::get_many(void* self, size_t count, const char* const* keys,
                                          size_t room, void* values, size_t* out_sizes,
                                          uint64_t timeout_ns) {
  auto& own = *static_cast<StoreBootstrap*>(self);
  try {
    std::vector<std::string> full;
    for (size_t i = 0; i < count; ++i) full.push_back(own.prefix_ + keys[i]);
    own.store_->wait(full, wait_time(timeout_ns));
    const std::vector<std::vector<uint8_t>> found = own.store_->multiGet(full);
    for (size_t i = 0; i < count; ++i) {
      const std::vector<uint8_t>& bytes = found.at(i);
      out_sizes[i] = bytes.size();
      if (bytes.size() > room) continue;
      std::copy(bytes.begin(), bytes.end(), static_cast<uint8_t*>(values) + i * room);
    }
    return HETCOMM_OK;
  } catch (const std::exception&) {
    return HETCOMM_TIMED_OUT;  // asked for one by one, they show which is missing, and why
  }
}

hetcomm_status_t StoreBootstrap::delete_key(void* self, const char* key) {
  auto& own = *static_cast<StoreBootstrap*>(self);
  try {
    own.store_->deleteKey(own.prefix_ + key);
    return HETCOMM_OK;
  } catch (const std::exception& error) {
    own.store_error_ = error.what();
    return HETCOMM_BOOTSTRAP_FAILED;
  }
}

}  // namespace hetcomm::torch_backend
