// Bootstrap callbacks for tests: a store and an allgather among threads, with counters and with
// failures on demand.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include <hetcomm/bootstrap.h>

#include "src/base/span.h"

namespace hetcomm::test {

class World {
 public:
  explicit World(int size) : size_(static_cast<size_t>(size)) {}

  hetcomm_status_t put(const std::string& key, const void* value, size_t size) {
    if (fail_put) return HETCOMM_OUT_OF_RESOURCES;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto* bytes = static_cast<const char*>(value);
    values_[key].assign(bytes, size);
    largest = std::max<size_t>(largest, size);
    bytes_in += size;
    if (corrupt && key.ends_with("/all")) values_[key].resize(size / 2);
    changed_.notify_all();
    return HETCOMM_OK;
  }

  hetcomm_status_t get(const std::string& key, void* value, size_t* size, uint64_t timeout_ns) {
    if (fail_get) return HETCOMM_INTERNAL;
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_for(lock,
                           std::chrono::nanoseconds(std::min(timeout_ns, uint64_t{60'000'000'000})),
                           [&] { return values_.contains(key); })) {
      return HETCOMM_TIMED_OUT;
    }
    if (!key.ends_with("/all")) ++alone;
    const std::string& found = values_[key];
    bytes_out += found.size();
    if (found.size() <= *size) {
      std::copy(found.begin(), found.end(), static_cast<char*>(value));
    } else {
      ++probes;
    }
    *size = found.size();
    return HETCOMM_OK;
  }

  hetcomm_status_t get_many(size_t count, const char* const* keys, size_t room, void* values,
                            size_t* sizes, uint64_t timeout_ns) {
    ++together;
    std::unique_lock<std::mutex> lock(mutex_);
    const auto all_there = [&] {
      return std::all_of(keys, keys + count,
                         [&](const char* key) { return values_.contains(key); });
    };
    if (!changed_.wait_for(lock,
                           std::chrono::nanoseconds(std::min(timeout_ns, uint64_t{60'000'000'000})),
                           all_there)) {
      return HETCOMM_TIMED_OUT;
    }
    for (size_t i = 0; i < count; ++i) {
      const std::string& found = values_[keys[i]];
      sizes[i] = found.size();
      bytes_out += found.size();
      if (found.size() > room) continue;
      std::copy(found.begin(), found.end(), static_cast<char*>(values) + i * room);
    }
    return HETCOMM_OK;
  }

  hetcomm_status_t delete_key(const std::string& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    values_.erase(key);
    return fail_delete ? HETCOMM_INTERNAL : HETCOMM_OK;
  }

  std::string value(const std::string& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return values_[key];
  }

  // Returns whether any stored value whose key contains |part| contains |needle|.
  bool holds(ConstByteSpan needle, const std::string& part = "") {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::string wanted(reinterpret_cast<const char*>(needle.data()), needle.size());
    return std::any_of(values_.begin(), values_.end(), [&](const auto& entry) {
      return entry.first.find(part) != std::string::npos &&
             entry.second.find(wanted) != std::string::npos;
    });
  }

  hetcomm_status_t allgather(size_t rank, const void* value, size_t size, void* out) {
    if (fail_allgather) return HETCOMM_PEER_LOST;
    std::unique_lock<std::mutex> lock(mutex_);
    const size_t round = rounds_[rank]++;
    Round& entry = rounds_data_[round];
    entry.bytes.resize(size * size_);
    const auto* bytes = static_cast<const char*>(value);
    std::copy(bytes, bytes + size, entry.bytes.begin() + static_cast<ptrdiff_t>(rank * size));
    ++entry.arrived;
    changed_.notify_all();
    changed_.wait(lock, [&] { return entry.arrived == size_; });
    std::copy(entry.bytes.begin(), entry.bytes.end(), static_cast<char*>(out));
    return HETCOMM_OK;
  }

  std::atomic<bool> fail_put = false, fail_get = false, fail_allgather = false, corrupt = false;
  std::atomic<bool> fail_delete = false;
  std::atomic<int> probes = 0;
  std::atomic<int> alone = 0;       // values fetched singly
  std::atomic<int> together = 0;    // get_many calls
  std::atomic<size_t> largest = 0;  // bytes in the largest value put
  std::atomic<size_t> bytes_in = 0;
  std::atomic<size_t> bytes_out = 0;

 private:
  struct Round {
    std::string bytes;
    size_t arrived = 0;
  };
  const size_t size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::map<size_t, size_t> rounds_;
  std::map<size_t, Round> rounds_data_;
};

struct Caller {
  World* world;
  size_t rank;
};

inline hetcomm_status_t put(void* user, const char* key, const void* value, size_t size) {
  return static_cast<Caller*>(user)->world->put(key, value, size);
}
inline hetcomm_status_t get(void* user, const char* key, void* value, size_t* size,
                            uint64_t timeout) {
  return static_cast<Caller*>(user)->world->get(key, value, size, timeout);
}
inline hetcomm_status_t get_many(void* user, size_t count, const char* const* keys, size_t room,
                                 void* values, size_t* sizes, uint64_t timeout) {
  return static_cast<Caller*>(user)->world->get_many(count, keys, room, values, sizes, timeout);
}
inline hetcomm_status_t delete_key(void* user, const char* key) {
  return static_cast<Caller*>(user)->world->delete_key(key);
}
inline hetcomm_status_t allgather(void* user, const void* value, size_t size, void* out) {
  const auto* caller = static_cast<Caller*>(user);
  return caller->world->allgather(caller->rank, value, size, out);
}

// Returns options for |caller|, which must outlive them, in a job with |size| ranks. No functions
// are set yet.
inline hetcomm_bootstrap_options_t options_of(Caller& caller, int size) {
  hetcomm_bootstrap_options_t options{};
  options.struct_size = sizeof(options);
  options.rank = static_cast<int>(caller.rank);
  options.size = size;
  options.user_data = &caller;
  return options;
}

}  // namespace hetcomm::test
