// A bootstrap inside one process: a map with a blocking get that serves any number of ranks. Each
// rank runs on its own test thread, or all run on one thread for communicators of one rank.
//
//   LocalStore store;
//   hetcomm_bootstrap_t* bootstrap = make_local_bootstrap(context, store, rank, size);
//
//   run_ranks(4, [](Rank& rank) { ... rank.communicator() ... });
//
// The store must outlive every bootstrap made from it. One store serves one set of ranks. Name and
// epoch distinguish several communicators over it, as over any bootstrap.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <hetcomm/hetcomm.h>

namespace hetcomm_test {

// A thread-safe map from keys to values. A repeated put replaces the value.
class LocalStore {
 public:
  void put(const std::string& key, std::string value) {
    {
      std::lock_guard lock(mutex_);
      values_[key] = std::move(value);
    }
    changed_.notify_all();
  }

  // Waits up to |timeout_ns| (UINT64_MAX: forever) for |key|. Returns false if it did not appear.
  bool get(const std::string& key, uint64_t timeout_ns, std::string* out_value) {
    // Capped at a day, because UINT64_MAX would overflow the clock's arithmetic. No test waits that
    // long.
    constexpr uint64_t kDayNs = UINT64_C(86'400'000'000'000);
    const auto deadline =
        std::chrono::steady_clock::now() +
        std::chrono::nanoseconds(static_cast<int64_t>(timeout_ns < kDayNs ? timeout_ns : kDayNs));
    std::unique_lock lock(mutex_);
    const auto present = [&] { return values_.count(key) != 0; };
    if (!changed_.wait_until(lock, deadline, present)) return false;
    *out_value = values_[key];
    return true;
  }

  size_t size() {
    std::lock_guard lock(mutex_);
    return values_.size();
  }

  // Callbacks for hetcomm_bootstrap_options; |user_data| is the store.
  static hetcomm_status_t put_callback(void* user_data, const char* key, const void* value,
                                       size_t size) {
    static_cast<LocalStore*>(user_data)->put(key,
                                             std::string(static_cast<const char*>(value), size));
    return HETCOMM_OK;
  }
  static hetcomm_status_t get_callback(void* user_data, const char* key, void* value,
                                       size_t* inout_size, uint64_t timeout_ns) {
    std::string found;
    if (!static_cast<LocalStore*>(user_data)->get(key, timeout_ns, &found)) {
      return HETCOMM_TIMED_OUT;
    }
    const size_t room = *inout_size;
    *inout_size = found.size();
    if (found.size() <= room && !found.empty()) std::memcpy(value, found.data(), found.size());
    return HETCOMM_OK;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

inline hetcomm_bootstrap_options_t local_bootstrap_options(LocalStore& store, int32_t rank,
                                                           int32_t size) {
  hetcomm_bootstrap_options_t options{};
  options.struct_size = sizeof(options);
  options.rank = rank;
  options.size = size;
  options.put = LocalStore::put_callback;
  options.get = LocalStore::get_callback;
  options.user_data = &store;
  return options;
}

// Makes a bootstrap. Returns null, and fails the test, if that is impossible.
inline hetcomm_bootstrap_t* make_local_bootstrap(hetcomm_context_t* context, LocalStore& store,
                                                 int32_t rank, int32_t size) {
  const hetcomm_bootstrap_options_t options = local_bootstrap_options(store, rank, size);
  hetcomm_bootstrap_t* bootstrap = nullptr;
  EXPECT_EQ(hetcomm_bootstrap_create_from_callbacks(context, &options, &bootstrap), HETCOMM_OK)
      << hetcomm_last_error();
  return bootstrap;
}

// One rank: context, bootstrap and communicator, destroyed in the right order. A test must check
// ok() before it uses them. Not thread-safe: each rank belongs to its thread.
class Rank {
 public:
  // Creates a rank. |settings| is hetcomm_context_options::settings and |transports| is
  // hetcomm_communicator_options::transports. Both may be null.
  Rank(LocalStore& store, int32_t rank, int32_t size, const char* settings = nullptr,
       const char* transports = nullptr, int32_t progress = HETCOMM_PROGRESS_DEFAULT)
      : rank_(rank), size_(size) {
    hetcomm_context_options_t options{};
    options.struct_size = sizeof(options);
    options.settings = settings;
    options.progress = progress;
    EXPECT_EQ(hetcomm_context_create(&options, &context_), HETCOMM_OK) << hetcomm_last_error();
    if (context_ == nullptr) return;
    bootstrap_ = make_local_bootstrap(context_, store, rank, size);
    if (bootstrap_ == nullptr) return;
    hetcomm_communicator_options_t communicator_options{};
    communicator_options.struct_size = sizeof(communicator_options);
    communicator_options.transports = transports;
    // If a rank never arrives, the test fails in bounded time.
    communicator_options.timeout_ns = UINT64_C(60'000'000'000);
    EXPECT_EQ(
        hetcomm_communicator_create(context_, bootstrap_, &communicator_options, &communicator_),
        HETCOMM_OK)
        << "rank " << rank << ": " << hetcomm_last_error();
  }

  ~Rank() {
    EXPECT_EQ(hetcomm_communicator_destroy(communicator_), HETCOMM_OK) << hetcomm_last_error();
    hetcomm_bootstrap_destroy(bootstrap_);
    EXPECT_EQ(hetcomm_context_destroy(context_), HETCOMM_OK) << hetcomm_last_error();
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  bool ok() const { return communicator_ != nullptr; }
  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }
  hetcomm_context_t* context() const { return context_; }
  hetcomm_bootstrap_t* bootstrap() const { return bootstrap_; }
  hetcomm_communicator_t* communicator() const { return communicator_; }
  // Transfers ownership of the communicator to the test, which destroys it.
  hetcomm_communicator_t* release_communicator() { return std::exchange(communicator_, nullptr); }

 private:
  int32_t rank_;
  int32_t size_;
  hetcomm_context_t* context_ = nullptr;
  hetcomm_bootstrap_t* bootstrap_ = nullptr;
  hetcomm_communicator_t* communicator_ = nullptr;
};

// Runs |body| once per rank, each in its own thread and context, and waits for all. A rank whose
// communicator cannot be created fails the test and skips its body.
inline void run_ranks(int32_t size, const std::function<void(Rank&)>& body,
                      const char* settings = nullptr, const char* transports = nullptr,
                      int32_t progress = HETCOMM_PROGRESS_DEFAULT) {
  LocalStore store;
  std::vector<std::thread> threads;
  for (int32_t index = 0; index < size; ++index) {
    threads.emplace_back([&, index] {
      Rank rank(store, index, size, settings, transports, progress);
      if (rank.ok()) body(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace hetcomm_test
