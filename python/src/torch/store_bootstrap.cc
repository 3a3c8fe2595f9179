#include "python/src/torch/store_bootstrap.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "python/src/torch/log.h"
#include "python/src/torch/status.h"

namespace hetcomm::torch_backend {
namespace {

constexpr uint64_t kNanosecondsPerMillisecond = 1'000'000;
// The shortest pause between two queries of the store by a waiting rank.
constexpr std::chrono::microseconds kShortestPause(100);
constexpr std::chrono::milliseconds kLongestPause(200);
constexpr int kRanksPerPause = 256;
// After this time, a waiting rank also looks for the reason of a rank that does not take part.
constexpr std::chrono::milliseconds kSoon(50);
constexpr char kReasonKey[] = "refused";
// The longest time that clients of the store can represent.
constexpr uint64_t kLongestWaitMs = 24ULL * 3600 * 1000;

std::chrono::milliseconds wait_time(uint64_t timeout_ns) {
  return std::chrono::milliseconds(
      std::clamp<uint64_t>(timeout_ns / kNanosecondsPerMillisecond, 1, kLongestWaitMs));
}

// Formats a number in the way in which stores keep counters.
std::vector<uint8_t> digits_of(int64_t value) {
  const std::string digits = std::to_string(value);
  return {digits.begin(), digits.end()};
}

}  // namespace

StoreBootstrap::StoreBootstrap(hetcomm_context_t* context, c10::intrusive_ptr<c10d::Store> store,
                               int rank, int size)
    : store_(std::move(store)), rank_(rank), size_(size) {
  generation_ = static_cast<uint32_t>(store_->add(counter(rank, size), 1));
  prefix_ = prefix(size, generation_);
  hetcomm_bootstrap_options_t options{};
  options.struct_size = sizeof(options);
  options.rank = rank;
  options.size = size;
  options.put = &put;
  options.get = &get;
  options.get_many = &get_many;
  options.delete_key = &delete_key;
  options.user_data = this;
  try {
    check("bootstrap", hetcomm_bootstrap_create_from_callbacks(context, &options, &bootstrap_));
  } catch (const c10::Error& error) {
    refuse(*store_, rank, size, error.what_without_backtrace(), generation_);
    throw;
  }
}

void StoreBootstrap::refuse(c10d::Store& store, int rank, int size, const std::string& reason,
                            std::optional<int64_t> generation) noexcept {
  try {
    const std::string text = "rank " + std::to_string(rank) + " does not take part: " + reason;
    if (!generation) generation = store.add(counter(rank, size), 1);
    store.set(prefix(size, *generation) + kReasonKey,
              std::vector<uint8_t>(text.begin(), text.end()));
  } catch (...) {  // the other ranks will detect the failure by timing out
    log_thrown("telling the other ranks of a failure");
  }
}

std::string StoreBootstrap::scope(int size) { return "hetcomm/" + std::to_string(size) + "/"; }

std::string StoreBootstrap::counter(int rank, int size) {
  return scope(size) + "generation/" + std::to_string(rank);
}

std::string StoreBootstrap::prefix(int size, int64_t generation) {
  return scope(size) + std::to_string(generation) + "/";
}

bool StoreBootstrap::finds_reason() {
  const std::string key = prefix_ + kReasonKey;
  if (!store_->check({key})) return false;
  const std::vector<uint8_t> bytes = store_->get(key);
  store_error_.assign(bytes.begin(), bytes.end());
  return true;
}

// Polls, because the store can wait until all keys exist, but not until one of two exists.
// Moreover, TCPStore logs a warning when a wait times out.
hetcomm_status_t StoreBootstrap::wait(const std::vector<std::string>& keys,
                                      std::chrono::milliseconds limit) {
  const auto start = std::chrono::steady_clock::now();
  // The store serves one rank at a time, so the ranks of a large group query it less often.
  const std::chrono::nanoseconds longest = kLongestPause * std::max(1, size_ / kRanksPerPause);
  while (!store_->check(keys)) {
    const std::chrono::nanoseconds waited = std::chrono::steady_clock::now() - start;
    const bool late = waited >= kSoon || waited >= limit;
    if (late && finds_reason()) return HETCOMM_BOOTSTRAP_FAILED;
    if (waited >= limit) return HETCOMM_TIMED_OUT;
    // Each pause is an eighth of the time waited so far, within the limits.
    const std::chrono::nanoseconds pause =
        std::clamp<std::chrono::nanoseconds>(waited / 8, kShortestPause, longest);
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(pause, limit - waited));
  }
  return HETCOMM_OK;
}

void StoreBootstrap::give_up() noexcept {
  try {
    if (finds_reason()) return;
  } catch (...) {
    // Ignored, because the calls below query the store again.
  }
  try {
    for (int rank = 0; rank < size_; ++rank) {
      const std::string key = counter(rank, size_);
      auto count = store_->add(key, 0);
      while (count < generation_) {
        // compareSet() is needed because another rank may do the same, and the missing rank may
        // still arrive.
        const auto found = store_->compareSet(key, digits_of(count), digits_of(generation_));
        count = std::stoll(std::string(found.begin(), found.end()));
      }
    }
  } catch (...) {
    // The store itself may have failed. Then no rank can raise the counts of others.
    log_thrown("counting a group that failed");
  }
}

// Records the text of the current exception, which the store has thrown. Must be called in a
// handler. The library does not accept exceptions from callbacks.
hetcomm_status_t StoreBootstrap::store_failed() noexcept {
  try {
    try {
      throw;
    } catch (const std::exception& error) {
      store_error_ = error.what();
    }
  } catch (...) {  // no memory for the text
  }
  return HETCOMM_BOOTSTRAP_FAILED;
}

hetcomm_status_t StoreBootstrap::put(void* self, const char* key, const void* value, size_t size) {
  auto& own = *static_cast<StoreBootstrap*>(self);
  try {
    const auto* bytes = static_cast<const uint8_t*>(value);
    own.store_->set(own.prefix_ + key, std::vector<uint8_t>(bytes, bytes + size));
    return HETCOMM_OK;
  } catch (...) {
    return own.store_failed();
  }
}

hetcomm_status_t StoreBootstrap::get(void* self, const char* key, void* value, size_t* inout_size,
                                     uint64_t timeout_ns) {
  auto& own = *static_cast<StoreBootstrap*>(self);
  try {
    const std::string full = own.prefix_ + key;
    const hetcomm_status_t there = own.wait({full}, wait_time(timeout_ns));
    if (there != HETCOMM_OK) return there;
    const std::vector<uint8_t> bytes = own.store_->get(full);
    if (bytes.size() <= *inout_size)
      std::copy(bytes.begin(), bytes.end(), static_cast<uint8_t*>(value));
    *inout_size = bytes.size();
    return HETCOMM_OK;
  } catch (...) {
    return own.store_failed();
  }
}

// Fetches several values at once, since fetching each one separately takes three round trips to the
// store. Returns TIMED_OUT for any failure. The caller then fetches the keys one by one, which
// shows what is missing and why.
hetcomm_status_t StoreBootstrap::get_many(void* self, size_t count, const char* const* keys,
                                          size_t room, void* values, size_t* out_sizes,
                                          uint64_t timeout_ns) {
  auto& own = *static_cast<StoreBootstrap*>(self);
  try {
    std::vector<std::string> full;
    for (size_t i = 0; i < count; ++i) full.push_back(own.prefix_ + keys[i]);
    if (own.wait(full, wait_time(timeout_ns)) != HETCOMM_OK) return HETCOMM_TIMED_OUT;
    const std::vector<std::vector<uint8_t>> found = own.store_->multiGet(full);
    for (size_t i = 0; i < count; ++i) {
      const std::vector<uint8_t>& bytes = found.at(i);
      out_sizes[i] = bytes.size();
      if (bytes.size() > room) continue;
      std::copy(bytes.begin(), bytes.end(), static_cast<uint8_t*>(values) + i * room);
    }
    return HETCOMM_OK;
  } catch (...) {
    return HETCOMM_TIMED_OUT;
  }
}

hetcomm_status_t StoreBootstrap::delete_key(void* self, const char* key) {
  auto& own = *static_cast<StoreBootstrap*>(self);
  try {
    own.store_->deleteKey(own.prefix_ + key);
    return HETCOMM_OK;
  } catch (...) {
    return own.store_failed();
  }
}

}  // namespace hetcomm::torch_backend
