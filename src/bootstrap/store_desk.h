// StoreDesk passes data between a store's thread and other threads. Other threads queue updates of
// values (StoreTable::Word) for the store. They can also wait until clients have requested a key,
// and read why the store last rejected a connection. [any-thread]
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/base/status.h"
#include "src/bootstrap/store_table.h"

namespace hetcomm {

class StoreDesk {
 public:
  void add_word(StoreTable::Word word) {
    const std::lock_guard lock(mutex_);
    words_.push_back(std::move(word));
  }
  // Removes all words and returns them, oldest first.
  std::vector<StoreTable::Word> take_words() {
    const std::lock_guard lock(mutex_);
    return std::exchange(words_, {});
  }

  // Starts counting the clients that request |key|, up to |count|.
  void expect_readers(std::string key, size_t count) {
    const std::lock_guard lock(mutex_);
    expected_key_ = std::move(key);
    expected_readers_ = count;
    readers_.clear();
  }
  void note_reader(ClientId client, const std::string& key) {
    const std::lock_guard lock(mutex_);
    if (key != expected_key_ || readers_.size() >= expected_readers_) return;
    readers_.insert(client);
    was_read_.notify_all();
  }
  // Waits for at most |time_ns| until all expected clients have requested the key.
  void wait_for_readers(uint64_t time_ns) {
    std::unique_lock lock(mutex_);
    was_read_.wait_for(lock, std::chrono::nanoseconds(time_ns),
                       [&] { return readers_.size() >= expected_readers_; });
  }

  void set_last_rejection(Status why) {
    const std::lock_guard lock(mutex_);
    last_rejection_ = std::move(why);
  }
  Status last_rejection() {
    const std::lock_guard lock(mutex_);
    return last_rejection_;
  }

 private:
  std::mutex mutex_;  // guards all other members
  std::vector<StoreTable::Word> words_;
  std::condition_variable was_read_;
  std::string expected_key_;
  size_t expected_readers_ = 0;
  std::set<ClientId> readers_;  // clients that have requested the key
  Status last_rejection_;
};

}  // namespace hetcomm
