// A bootstrap store in shared anonymous memory, for ranks that are threads or forked processes. In
// addition to keys and values it has a meeting point, shared words, and a record of the ranks that
// will die on purpose.
//
// It must be created before the ranks start, and outlive them.
#pragma once

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <string>
#include <utility>

#include <hetcomm/hetcomm.h>

namespace hetcomm_test {

inline uint64_t clock_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(time.tv_nsec);
}

class SharedStore {
 public:
  SharedStore() {
    void* memory = mmap(nullptr, sizeof(Contents), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    contents_ = new (memory) Contents;
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    // A rank that is killed while it holds the lock must not stop the others.
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&contents_->mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
  }
  SharedStore(const SharedStore&) = delete;
  SharedStore& operator=(const SharedStore&) = delete;
  ~SharedStore() { munmap(contents_, sizeof(Contents)); }

  hetcomm_status_t put(const char* key, const void* value, size_t size) {
    Contents& contents = *contents_;
    if (size > kValueBytes || std::strlen(key) >= kKeyBytes) return HETCOMM_OUT_OF_RESOURCES;
    const Lock lock(contents.mutex);
    Entry* entry = contents.find(key);
    if (entry == nullptr) {
      if (contents.count == kEntries) return HETCOMM_OUT_OF_RESOURCES;
      entry = &contents.entries[contents.count++];
      std::snprintf(entry->key, kKeyBytes, "%s", key);
    }
    std::memcpy(entry->value, value, size);
    entry->size = size;
    return HETCOMM_OK;
  }
  hetcomm_status_t get(const char* key, void* value, size_t* inout_size, uint64_t timeout_ns) {
    Contents& contents = *contents_;
    const uint64_t start = clock_ns();
    while (true) {
      {
        const Lock lock(contents.mutex);
        if (const Entry* entry = contents.find(key); entry != nullptr) {
          if (entry->size <= *inout_size) std::memcpy(value, entry->value, entry->size);
          *inout_size = entry->size;
          return HETCOMM_OK;
        }
      }
      if (clock_ns() - start >= timeout_ns) return HETCOMM_TIMED_OUT;
      usleep(200);
    }
  }

  // Records an arrival at the meeting point. Meeting |n| is complete when arrivals() reaches n
  // times the number of ranks.
  void arrive() { contents_->arrivals.fetch_add(1); }
  uint64_t arrivals() const { return contents_->arrivals.load(); }
  std::atomic<uint64_t>& word(size_t index) { return contents_->words[index]; }
  void expect_death(int rank) { contents_->doomed[rank].store(true); }
  bool expects_death(int rank) const { return contents_->doomed[rank].load(); }

 private:
  static constexpr size_t kEntries = 1024;
  static constexpr size_t kKeyBytes = 256;
  static constexpr size_t kValueBytes = 512 << 10;
  struct Entry {
    char key[kKeyBytes];
    size_t size;
    std::byte value[kValueBytes];
  };
  struct Contents {
    Entry* find(const char* key) {
      for (size_t i = 0; i < count; ++i) {
        if (std::strcmp(entries[i].key, key) == 0) return &entries[i];
      }
      return nullptr;
    }
    pthread_mutex_t mutex;
    std::atomic<uint64_t> arrivals{0};
    std::atomic<uint64_t> words[64]{};
    std::atomic<bool> doomed[256]{};
    size_t count = 0;
    Entry entries[kEntries];
  };
  class Lock {
   public:
    explicit Lock(pthread_mutex_t& mutex) : mutex_(mutex) {
      if (pthread_mutex_lock(&mutex_) == EOWNERDEAD) pthread_mutex_consistent(&mutex_);
    }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    ~Lock() { pthread_mutex_unlock(&mutex_); }

   private:
    pthread_mutex_t& mutex_;
  };

  Contents* contents_;
};

// A separate store for one set of ranks: the keys of |store| with a prefix. It must outlive the
// bootstraps made from it.
class StoreView {
 public:
  StoreView(SharedStore& store, std::string name) : store_(store), name_(std::move(name)) {}

  hetcomm_bootstrap_options_t options(int32_t rank, int32_t size) {
    hetcomm_bootstrap_options_t options{};
    options.struct_size = sizeof(options);
    options.rank = rank;
    options.size = size;
    options.put = put;
    options.get = get;
    options.user_data = this;
    return options;
  }

 private:
  static hetcomm_status_t put(void* view, const char* key, const void* value, size_t size) {
    auto& self = *static_cast<StoreView*>(view);
    return self.store_.put((self.name_ + key).c_str(), value, size);
  }
  static hetcomm_status_t get(void* view, const char* key, void* value, size_t* inout_size,
                              uint64_t timeout_ns) {
    auto& self = *static_cast<StoreView*>(view);
    return self.store_.get((self.name_ + key).c_str(), value, inout_size, timeout_ns);
  }

  SharedStore& store_;
  std::string name_;
};

}  // namespace hetcomm_test
