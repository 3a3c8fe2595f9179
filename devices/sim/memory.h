// Provides the memory of a simulated device: an Arena with the real bytes, and a SimMemory that
// gives allocations one of the two kinds of names that vendors use, handles or addresses.
//
// All functions of a SimMemory are thread-safe. The real bytes stay mapped until the device is
// destroyed, so a copy that outlives its allocation (a caller's mistake) accesses garbage, but
// never memory outside the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "src/base/status.h"
#include "src/system/unique_fd.h"

namespace hetcomm {

// Owns one mapping, and its file if there is one.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  // Reserves address space with |protection| as for mmap(2). Pages are allocated on first touch.
  static Result<Mapping> create(uint64_t size, int protection);
  // Maps a new in-memory file for reading and writing.
  static Result<Mapping> create_file(uint64_t size);
  std::byte* base() const { return base_; }
  uint64_t size() const { return size_; }
  int file() const { return file_.get(); }  // -1: no file

 private:
  Mapping(std::byte* base, uint64_t size) : base_(base), size_(size) {}
  UniqueFd file_;
  std::byte* base_ = nullptr;
  uint64_t size_ = 0;
};

// Allocates ranges of the bytes of one device. Not thread-safe: the owner must hold a lock.
class Arena {
 public:
  static Result<Arena> create(uint64_t capacity);
  static Result<Arena> create_file(uint64_t capacity);

  // Allocates a free range of |size| bytes and returns its offset, a multiple of kGranule.
  Code take(uint64_t size, uint64_t* out_offset);
  // Frees a range that take() allocated with |size|. The pages of large ranges are returned to the
  // kernel.
  void give_back(uint64_t offset, uint64_t size);
  std::byte* at(uint64_t offset) const { return bytes_.base() + offset; }
  uint64_t capacity() const { return bytes_.size(); }
  int file() const { return bytes_.file(); }
  uint64_t offset_of(const std::byte* byte) const {
    return static_cast<uint64_t>(byte - bytes_.base());
  }

  static constexpr uint64_t kGranule = 256;

 private:
  explicit Arena(Mapping bytes);

  Mapping bytes_;
  std::map<uint64_t, uint64_t> free_;  // offset -> size; adjacent ranges are merged
};

// Allocates memory whose names look like those of a vendor.
class SimMemory {
 public:
  virtual ~SimMemory() = default;

  virtual Code allocate(uint64_t size, void** out_name) = 0;
  // Frees the allocation; ignores a |name| that is not allocated.
  virtual void free(void* name) = 0;
  // Finds the allocation that contains |name|. kNotFound: this device has none. kStaleHandle: the
  // allocation was freed.
  virtual Code find(const void* name, void** out_base, uint64_t* out_size) = 0;
  // Returns whether |name| may belong to this device. Costs only a comparison.
  virtual bool may_name(const void* name) const = 0;
  // Finds the |size| real bytes at |name| + |offset|. kInvalidArgument: not a name of this device.
  // kStaleHandle: the allocation was freed. kOutOfRange: the bytes exceed one allocation.
  virtual Code resolve(const void* name, uint64_t offset, uint64_t size, std::byte** out_bytes) = 0;
  // Returns the file whose mapping contains |bytes|, a result of resolve(); -1 if there is none.
  virtual int file_of(const std::byte* bytes, uint64_t* out_offset) const = 0;
};

// "sim-handle": a name is a number that cannot be a valid address.
//
//   63      56 55        40 39        20 19         0
//   [ 0xd5    ][ instance  ][ generation ][ slot      ]
//
// The first byte makes the number a non-canonical address, so that a CPU access always faults. The
// instance distinguishes devices. The generation changes each time a slot is freed.
class HandleMemory final : public SimMemory {
 public:
  static Result<std::unique_ptr<SimMemory>> create(uint64_t capacity);
  explicit HandleMemory(Arena arena);

  Code allocate(uint64_t size, void** out_name) override;
  void free(void* name) override;
  Code find(const void* name, void** out_base, uint64_t* out_size) override;
  bool may_name(const void* name) const override;
  Code resolve(const void* name, uint64_t offset, uint64_t size, std::byte** out_bytes) override;
  int file_of(const std::byte* bytes, uint64_t* out_offset) const override;
  // Returns whether |name| looks like a name from any device of this kind.
  static bool is_handle(const void* name);

 private:
  struct Slot {
    uint64_t offset = 0;
    uint64_t size = 0;
    uint32_t generation = 1;
    bool used = false;
  };
  void* name_of(uint32_t slot) const;
  Code slot_of(const void* name, uint32_t* out_slot) const;  // call with mutex_ held

  std::mutex mutex_;
  Arena arena_;
  uint64_t instance_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
};

// "sim-address": a name is an address in an inaccessible range. The real bytes are elsewhere.
class AddressMemory final : public SimMemory {
 public:
  static Result<std::unique_ptr<SimMemory>> create(uint64_t capacity);
  AddressMemory(Arena arena, Mapping forbidden);

  Code allocate(uint64_t size, void** out_name) override;
  void free(void* name) override;
  Code find(const void* name, void** out_base, uint64_t* out_size) override;
  bool may_name(const void* name) const override;
  Code resolve(const void* name, uint64_t offset, uint64_t size, std::byte** out_bytes) override;
  int file_of(const std::byte* bytes, uint64_t* out_offset) const override;

 private:
  struct Location {
    uint64_t base;    // offset of the allocation in the device
    uint64_t size;    // size of the allocation
    uint64_t inside;  // offset of the name in the allocation
  };
  Code locate(const void* name, Location* out_location) const;  // call with mutex_ held

  std::mutex mutex_;
  Arena arena_;
  Mapping forbidden_;                         // as large as the arena, with the same offsets
  std::map<uint64_t, uint64_t> allocations_;  // offset -> size
};

}  // namespace hetcomm
