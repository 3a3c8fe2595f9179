// Stand-in device memory and pinned host memory.
//
// Each device block is a memory file that is mapped twice: without access at the address that
// tensors hold, and readable and writable at an alias for the stream threads.
#include "tests/python/standin/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace standin {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kDeviceBytes = size_t{16} << 30;
constexpr int kPoison = 0xA5;

using Uses = std::vector<std::pair<Stream*, uint64_t>>;

bool passed(const Uses& uses) {
  return std::all_of(uses.begin(), uses.end(), [](const auto& use) {
    try {
      return use.first->done(use.second);
    } catch (const c10::Error&) {
      return true;  // A failed stream no longer uses anything.
    }
  });
}

void* map(size_t bytes, int access, int flags, int file) {
  void* const address = mmap(nullptr, bytes, access, flags, file, 0);
  TORCH_CHECK_WITH(OutOfMemoryError, address != MAP_FAILED, "standin: mmap of ", bytes,
                   " bytes failed");
  return address;
}

struct Block {
  char* address;
  char* alias;
  size_t size;  // A power of two.
  int device;
  Stream* stream;
  size_t used = 0;
  size_t poisoned = 0;  // Number of bytes poisoned so far.
  bool allocated = false;
  std::set<Stream*> recorded{};  // Other streams named by record_stream.
  Uses uses{};                   // Work of these streams when the block was freed.

  void poison(size_t from, size_t to) {
    if (from >= to) return;
    char* const begin = alias + from;
    stream->enqueue([begin, bytes = to - from] { std::memset(begin, kPoison, bytes); });
  }
};

class DeviceAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const int device = current_device();
    const c10::Device where(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device));
    if (bytes == 0) return {nullptr, nullptr, &release, where};
    Stream& stream = current_stream(device);
    const size_t size = std::bit_ceil(std::max(bytes, kPage));
    const std::lock_guard lock(mutex_);
    collect();
    std::vector<Block*>& free = free_[{&stream, size}];
    if (free.empty()) free.push_back(create(device, stream, size));
    Block& block = *free.back();
    free.pop_back();
    block.allocated = true;
    block.used = bytes;
    block.poison(block.poisoned, bytes);
    block.poisoned = std::max(block.poisoned, bytes);
    count(device, [&](auto& stats) {
      stats.allocation[0].increase(1);
      stats.allocated_bytes[0].increase(size);
      stats.active_bytes[0].increase(size);
      stats.requested_bytes[0].increase(bytes);
    });
    return {block.address, block.address, &release, where};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    char* const target = alias_of(to, bytes);
    char* const source = alias_of(from, bytes);
    current_stream(device_of(to)).enqueue([=] { std::memmove(target, source, bytes); });
  }

  bool initialized() override { return true; }

  void emptyCache(c10::MempoolId_t) override {
    const std::lock_guard lock(mutex_);
    collect();
    for (auto& [key, blocks] : free_) {
      if (!blocks.empty()) key.first->drain(key.first->last());
      for (Block* block : blocks) {
        count(block->device, [&](auto& stats) {
          stats.segment[0].decrease(1);
          stats.reserved_bytes[0].decrease(block->size);
        });
        munmap(block->address, block->size);
        munmap(block->alias, block->size);
        blocks_.erase(block->address);
      }
    }
    free_.clear();
  }

  // Like CUDA, this skips memory from elsewhere, such as from_blob's.
  void recordStream(const c10::DataPtr& data, c10::Stream by) override {
    if (data.get() == nullptr || data.get_deleter() != &release) return;
    Stream& other = stream(by.device_index(), by.id());
    const std::lock_guard lock(mutex_);
    Block* const block = find(data.get());
    if (block != nullptr && block->stream != &other) block->recorded.insert(&other);
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    collect();
    return stats_.at(device);
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    for (auto* each : arrays(stats_.at(device))) (*each)[0].reset_accumulated();
  }

  void resetPeakStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    for (auto* each : arrays(stats_.at(device))) (*each)[0].reset_peak();
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    const auto reserved = static_cast<size_t>(stats_.at(device).reserved_bytes[0].current);
    return {kDeviceBytes - std::min(kDeviceBytes, reserved), kDeviceBytes};
  }

  int device(const void* address) {
    const std::lock_guard lock(mutex_);
    const Block* const block = find(address);
    return block == nullptr ? -1 : block->device;
  }

  char* alias(const void* address, size_t bytes) {
    const std::lock_guard lock(mutex_);
    const Block* const block = find(address);
    TORCH_CHECK(block != nullptr, "standin: this is no memory of the device");
    TORCH_CHECK(block->allocated, "standin: this memory of the device has been freed");
    const size_t offset = static_cast<size_t>(static_cast<const char*>(address) - block->address);
    TORCH_CHECK(offset + bytes <= block->used, "standin: an access ends ",
                offset + bytes - block->used, " bytes after the end of its allocation");
    return block->alias + offset;
  }

 private:
  using Stats = c10::CachingDeviceAllocator::DeviceStats;

  static std::array<c10::CachingAllocator::StatArray*, 6> arrays(Stats& stats) {
    return {&stats.allocation,     &stats.segment,      &stats.allocated_bytes,
            &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes};
  }

  static void release(void* address) {
    if (address != nullptr) static_cast<DeviceAllocator&>(device_allocator()).free(address);
  }

  template <typename Change>
  void count(int device, Change change) {
    change(stats_.at(device));
  }

  Block* find(const void* address) {
    auto* const place = static_cast<char*>(const_cast<void*>(address));
    auto after = blocks_.upper_bound(place);
    if (after == blocks_.begin()) return nullptr;
    Block& block = std::prev(after)->second;
    return place < block.address + block.size ? &block : nullptr;
  }

  Block* create(int device, Stream& stream, size_t size) {
    TORCH_CHECK_WITH(OutOfMemoryError, size <= kDeviceBytes, "standin: it has no ", size, " bytes");
    const int file = memfd_create("standin", MFD_CLOEXEC);
    TORCH_CHECK_WITH(OutOfMemoryError, file >= 0 && ftruncate(file, static_cast<off_t>(size)) == 0,
                     "standin: no memory file of ", size, " bytes");
    auto* const address = static_cast<char*>(map(size, PROT_NONE, MAP_SHARED, file));
    auto* const alias = static_cast<char*>(map(size, PROT_READ | PROT_WRITE, MAP_SHARED, file));
    close(file);
    count(device, [&](auto& stats) {
      stats.segment[0].increase(1);
      stats.reserved_bytes[0].increase(size);
    });
    return &blocks_.emplace(address, Block{address, alias, size, device, &stream}).first->second;
  }

  void free(void* address) {
    const std::lock_guard lock(mutex_);
    collect();
    Block& block = *find(address);
    block.allocated = false;
    count(block.device, [&](auto& stats) {
      stats.allocation[0].decrease(1);
      stats.allocated_bytes[0].decrease(block.size);
      stats.requested_bytes[0].decrease(block.used);
    });
    for (Stream* other : block.recorded) block.uses.emplace_back(other, other->last());
    block.recorded.clear();
    if (block.uses.empty()) {
      recycle(block);
    } else {
      waiting_.push_back(&block);
    }
  }

  void recycle(Block& block) {
    // CUDA does not change the memory until it is used again.
    if (settings().lenient) {
      block.poisoned = 0;
    } else {
      block.poison(0, block.used);
    }
    block.uses.clear();
    count(block.device, [&](auto& stats) { stats.active_bytes[0].decrease(block.size); });
    free_[{block.stream, block.size}].push_back(&block);
  }

  // Recycles the blocks that other streams no longer use.
  void collect() {
    std::erase_if(waiting_, [&](Block* block) {
      if (!passed(block->uses)) return false;
      recycle(*block);
      return true;
    });
  }

  std::mutex mutex_;
  std::map<char*, Block> blocks_;
  std::map<std::pair<Stream*, size_t>, std::vector<Block*>> free_;
  std::vector<Block*> waiting_;
  std::array<Stats, kDevices> stats_;
};

// Unmaps freed memory immediately, so that a late copy crashes.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::DeviceType::CPU)};
    const size_t size = (bytes + kPage - 1) / kPage * kPage;
    void* const address = map(size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    ++counts().pinned_allocations;
    const std::lock_guard lock(mutex_);
    collect();
    blocks_[static_cast<char*>(address)] = {size, {}};
    bytes_ += size;
    return {address, address, &release, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  bool contains(const void* address) {
    const std::lock_guard lock(mutex_);
    return find(address) != blocks_.end();
  }

  void note_use(const void* address, Stream& stream, uint64_t ticket) {
    const std::lock_guard lock(mutex_);
    const auto block = find(address);
    if (block == blocks_.end()) return;
    Uses& uses = block->second.uses;
    std::erase_if(uses, [&](const auto& use) { return use.first == &stream; });
    uses.emplace_back(&stream, ticket);
  }

  size_t bytes() {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }

 private:
  struct Pinned {
    size_t size;
    Uses uses;
  };

  static void release(void* address) {
    if (address != nullptr) static_cast<PinnedAllocator&>(pinned_allocator()).free(address);
  }

  std::map<char*, Pinned>::iterator find(const void* address) {
    auto* const place = static_cast<char*>(const_cast<void*>(address));
    auto after = blocks_.upper_bound(place);
    if (after == blocks_.begin()) return blocks_.end();
    const auto block = std::prev(after);
    return place < block->first + block->second.size ? block : blocks_.end();
  }

  void free(void* address) {
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(static_cast<char*>(address));
    bytes_ -= block->second.size;
    if (settings().lenient) {
      waiting_.emplace_back(block->first, std::move(block->second));
    } else {
      munmap(address, block->second.size);
    }
    blocks_.erase(block);
    collect();
  }

  void collect() {
    std::erase_if(waiting_, [](const auto& block) {
      return passed(block.second.uses) && munmap(block.first, block.second.size) == 0;
    });
  }

  std::mutex mutex_;
  std::map<char*, Pinned> blocks_;
  std::vector<std::pair<char*, Pinned>> waiting_;
  size_t bytes_ = 0;
};

DeviceAllocator& device_memory() {
  static auto* const allocator = new DeviceAllocator;
  return *allocator;
}

PinnedAllocator& pinned_memory() {
  static auto* const allocator = new PinnedAllocator;
  return *allocator;
}

}  // namespace

c10::DeviceAllocator& device_allocator() { return device_memory(); }

char* alias_of(const void* address, size_t bytes) { return device_memory().alias(address, bytes); }

int device_of(const void* address) { return device_memory().device(address); }

c10::Allocator& pinned_allocator() { return pinned_memory(); }

bool is_pinned(const void* address) { return pinned_memory().contains(address); }

void note_pinned_use(const void* address, Stream& stream, uint64_t ticket) {
  pinned_memory().note_use(address, stream, ticket);
}

size_t pinned_bytes() { return pinned_memory().bytes(); }

REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &device_allocator())

}  // namespace standin
