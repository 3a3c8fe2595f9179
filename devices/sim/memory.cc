#include "devices/sim/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>
#include <utility>

#include "src/system/memory_file.h"

namespace hetcomm {
namespace {

constexpr uint64_t kPage = 4096;
// Smaller ranges keep their pages, since returning them to the kernel would cost more than it
// saves.
constexpr uint64_t kGiveBackFrom = 1u << 20;

constexpr uint64_t round_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

// Returns the bytes that an allocation occupies in the arena. An empty allocation also occupies
// space, so that it has its own address.
constexpr uint64_t footprint(uint64_t size) {
  return size == 0 ? Arena::kGranule : round_up(size, Arena::kGranule);
}

constexpr uint64_t kTag = 0xd5;
constexpr unsigned kSlotBits = 20;
constexpr unsigned kGenerationBits = 20;
constexpr unsigned kInstanceBits = 16;
constexpr uint32_t kSlotLimit = 1u << kSlotBits;
constexpr uint32_t kGenerationMask = (1u << kGenerationBits) - 1;
constexpr uint64_t kInstanceMask = (uint64_t{1} << kInstanceBits) - 1;

uint64_t number_of(const void* name) { return reinterpret_cast<uintptr_t>(name); }

bool fits(uint64_t offset, uint64_t size, uint64_t whole) {
  return offset <= whole && size <= whole - offset;
}

}  // namespace

Mapping::Mapping(Mapping&& other) noexcept
    : file_(std::move(other.file_)),
      base_(std::exchange(other.base_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  return *this;
}

Mapping::~Mapping() {
  if (base_ != nullptr) munmap(base_, size_);
}

Result<Mapping> Mapping::create(uint64_t size, int protection) {
  void* const base =
      mmap(nullptr, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return status_from_errno(errno, "memory of a simulated device");
  return Mapping(static_cast<std::byte*>(base), size);
}

Result<Mapping> Mapping::create_file(uint64_t size) {
  Result<UniqueFd> file = create_memory_file("hetcomm-sim", size);
  if (!file.ok()) return file.status().annotate("memory of a simulated device");
  void* const base =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file->get(), 0);
  if (base == MAP_FAILED) return status_from_errno(errno, "memory of a simulated device");
  Mapping mapping(static_cast<std::byte*>(base), size);
  mapping.file_ = std::move(file).value();
  return mapping;
}

Arena::Arena(Mapping bytes) : bytes_(std::move(bytes)) { free_.emplace(0, bytes_.size()); }

Result<Arena> Arena::create(uint64_t capacity) {
  Result<Mapping> bytes = Mapping::create(round_up(capacity, kPage), PROT_READ | PROT_WRITE);
  if (!bytes.ok()) return bytes.status();
  return Arena(std::move(bytes).value());
}

Result<Arena> Arena::create_file(uint64_t capacity) {
  Result<Mapping> bytes = Mapping::create_file(round_up(capacity, kPage));
  if (!bytes.ok()) return bytes.status();
  return Arena(std::move(bytes).value());
}

Code Arena::take(uint64_t size, uint64_t* out_offset) {
  if (size > capacity()) return Code::kOutOfMemory;
  const uint64_t wanted = footprint(size);
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    if (range->second < wanted) continue;
    const auto [offset, length] = *range;
    if (length > wanted) free_.emplace(offset + wanted, length - wanted);
    free_.erase(range);
    *out_offset = offset;
    return Code::kOk;
  }
  return Code::kOutOfMemory;
}

void Arena::give_back(uint64_t offset, uint64_t size) {
  uint64_t length = footprint(size);
  if (length >= kGiveBackFrom) {
    const uint64_t begin = round_up(offset, kPage);
    const uint64_t end = (offset + length) / kPage * kPage;
    madvise(at(begin), end - begin, file() < 0 ? MADV_DONTNEED : MADV_REMOVE);
  }
  const auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + length) {
    length += next->second;
    free_.erase(next);
  }
  const auto after = free_.lower_bound(offset);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      before->second += length;
      return;
    }
  }
  free_.emplace(offset, length);
}

Result<std::unique_ptr<SimMemory>> HandleMemory::create(uint64_t capacity) {
  Result<Arena> arena = Arena::create(capacity);
  if (!arena.ok()) return arena.status();
  return std::unique_ptr<SimMemory>(std::make_unique<HandleMemory>(std::move(arena).value()));
}

// Derives the instance from the address of the arena. Devices that exist at the same time have
// different arenas, and so different instances, unless the 16-bit hashes collide.
HandleMemory::HandleMemory(Arena arena)
    : arena_(std::move(arena)),
      instance_((number_of(arena_.at(0)) / kPage * 0x9e3779b97f4a7c15u >> 48) & kInstanceMask) {}

void* HandleMemory::name_of(uint32_t slot) const {
  const uint64_t number = kTag << 56 | instance_ << (kSlotBits + kGenerationBits) |
                          uint64_t{slots_[slot].generation} << kSlotBits | slot;
  return reinterpret_cast<void*>(number);
}

Code HandleMemory::slot_of(const void* name, uint32_t* out_slot) const {
  const uint64_t number = number_of(name);
  const auto slot = static_cast<uint32_t>(number & (kSlotLimit - 1));
  if (number >> 56 != kTag || slot >= slots_.size() ||
      (number >> (kSlotBits + kGenerationBits) & kInstanceMask) != instance_) {
    return Code::kInvalidArgument;
  }
  const auto generation = static_cast<uint32_t>(number >> kSlotBits & kGenerationMask);
  if (!slots_[slot].used || slots_[slot].generation != generation) return Code::kStaleHandle;
  *out_slot = slot;
  return Code::kOk;
}

Code HandleMemory::allocate(uint64_t size, void** out_name) {
  std::lock_guard lock(mutex_);
  if (free_slots_.empty()) {
    if (slots_.size() == kSlotLimit) return Code::kOutOfResources;
    slots_.emplace_back();
    free_slots_.reserve(slots_.capacity());  // so that free() has space for every slot
    free_slots_.push_back(static_cast<uint32_t>(slots_.size() - 1));
  }
  uint64_t offset = 0;
  if (const Code code = arena_.take(size, &offset); code != Code::kOk) return code;
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[slot].offset = offset;
  slots_[slot].size = size;
  slots_[slot].used = true;
  *out_name = name_of(slot);
  return Code::kOk;
}

void HandleMemory::free(void* name) {
  std::lock_guard lock(mutex_);
  uint32_t index = 0;
  if (slot_of(name, &index) != Code::kOk) return;
  Slot& slot = slots_[index];
  arena_.give_back(slot.offset, slot.size);
  slot.used = false;
  slot.generation = (slot.generation + 1) & kGenerationMask;
  free_slots_.push_back(index);
}

Code HandleMemory::find(const void* name, void** out_base, uint64_t* out_size) {
  std::lock_guard lock(mutex_);
  uint32_t slot = 0;
  const Code code = slot_of(name, &slot);
  if (code != Code::kOk) return code == Code::kStaleHandle ? code : Code::kNotFound;
  *out_base = name_of(slot);
  *out_size = slots_[slot].size;
  return Code::kOk;
}

bool HandleMemory::is_handle(const void* name) { return number_of(name) >> 56 == kTag; }

bool HandleMemory::may_name(const void* name) const {
  return is_handle(name) &&
         (number_of(name) >> (kSlotBits + kGenerationBits) & kInstanceMask) == instance_;
}

Code HandleMemory::resolve(const void* name, uint64_t offset, uint64_t size,
                           std::byte** out_bytes) {
  std::lock_guard lock(mutex_);
  uint32_t slot = 0;
  if (const Code code = slot_of(name, &slot); code != Code::kOk) return code;
  if (!fits(offset, size, slots_[slot].size)) return Code::kOutOfRange;
  *out_bytes = arena_.at(slots_[slot].offset + offset);
  return Code::kOk;
}

int HandleMemory::file_of(const std::byte* /*bytes*/, uint64_t* /*out_offset*/) const { return -1; }

// Creates the memory as a file, which represents a dma-buf. README.md describes the limits.
Result<std::unique_ptr<SimMemory>> AddressMemory::create(uint64_t capacity) {
  Result<Arena> arena = Arena::create_file(capacity);
  if (!arena.ok()) return arena.status();
  Result<Mapping> forbidden = Mapping::create(arena->capacity(), PROT_NONE);
  if (!forbidden.ok()) return forbidden.status();
  return std::unique_ptr<SimMemory>(
      std::make_unique<AddressMemory>(std::move(arena).value(), std::move(forbidden).value()));
}

AddressMemory::AddressMemory(Arena arena, Mapping forbidden)
    : arena_(std::move(arena)), forbidden_(std::move(forbidden)) {}

Code AddressMemory::locate(const void* name, Location* out_location) const {
  const uint64_t first = number_of(forbidden_.base());
  const uint64_t number = number_of(name);
  if (number < first || number - first >= forbidden_.size()) return Code::kInvalidArgument;
  const uint64_t offset = number - first;
  auto allocation = allocations_.upper_bound(offset);
  if (allocation == allocations_.begin()) return Code::kInvalidArgument;
  --allocation;
  const auto [base, size] = *allocation;
  // The base address of an empty allocation belongs to it.
  if (offset != base && offset - base >= size) return Code::kInvalidArgument;
  *out_location = {.base = base, .size = size, .inside = offset - base};
  return Code::kOk;
}

Code AddressMemory::allocate(uint64_t size, void** out_name) {
  std::lock_guard lock(mutex_);
  uint64_t offset = 0;
  if (const Code code = arena_.take(size, &offset); code != Code::kOk) return code;
  allocations_.emplace(offset, size);
  *out_name = forbidden_.base() + offset;
  return Code::kOk;
}

void AddressMemory::free(void* name) {
  std::lock_guard lock(mutex_);
  Location location{};
  if (locate(name, &location) != Code::kOk || location.inside != 0) return;
  arena_.give_back(location.base, location.size);
  allocations_.erase(location.base);
}

Code AddressMemory::find(const void* name, void** out_base, uint64_t* out_size) {
  std::lock_guard lock(mutex_);
  Location location{};
  if (locate(name, &location) != Code::kOk) return Code::kNotFound;
  *out_base = forbidden_.base() + location.base;
  *out_size = location.size;
  return Code::kOk;
}

bool AddressMemory::may_name(const void* name) const {
  return number_of(name) - number_of(forbidden_.base()) < forbidden_.size();
}

Code AddressMemory::resolve(const void* name, uint64_t offset, uint64_t size,
                            std::byte** out_bytes) {
  std::lock_guard lock(mutex_);
  Location location{};
  if (const Code code = locate(name, &location); code != Code::kOk) return code;
  if (!fits(offset, size, location.size - location.inside)) return Code::kOutOfRange;
  *out_bytes = arena_.at(location.base + location.inside + offset);
  return Code::kOk;
}

int AddressMemory::file_of(const std::byte* bytes, uint64_t* out_offset) const {
  *out_offset = arena_.offset_of(bytes);
  return arena_.file();
}

}  // namespace hetcomm
