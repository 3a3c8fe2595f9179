#include "transports/rdma/exposure.h"

#include <utility>

namespace hetcomm::rdma {

Result<RemoteKey> ExposureTable::add(const iovec& piece, Access access, uint64_t cookie) {
  if (piece.iov_len >= kMaxKeyBytes) return Code::kInvalidArgument;
  if (first_free_ == kNone && slots_.size() == kMaxExposures) {
    return Status(Code::kOutOfResources, "rdma: too much memory is exposed to one peer");
  }
  const bool put = access == Access::kPutTarget;
  // Reserves the slot first, so that nothing can fail after the registration.
  const uint32_t slot = reserve();
  MemoryRegion* memory_region = nullptr;
  std::byte* copied_to = nullptr;
  if (piece.iov_len > 0) {
    // Remote write access also requires local write access.
    const int rights =
        put ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ;
    Result<MemoryRegion*> made = cache_.acquire(piece.iov_base, piece.iov_len, rights);
    if (made.ok()) {
      memory_region = made.value();
    } else if (put && cache_.may_copy(made.status(), Extents(&piece, 1))) {
      copied_to = static_cast<std::byte*>(piece.iov_base);
    } else {
      return made.status();
    }
  }
  Exposure& exposure = slots_[slot];
  first_free_ = exposure.next_free;
  if (first_free_ == kNone) last_free_ = kNone;
  exposure = {.memory_region = memory_region,
              .copied_to = copied_to,
              .cookie = cookie,
              .length = piece.iov_len,
              .generation = exposure.generation + 1,
              .access = access,
              .live = true,
              .next_free = kNone};
  const KeyKind kind = !put                   ? KeyKind::kGetSource
                       : copied_to != nullptr ? KeyKind::kCopiedTarget
                                              : KeyKind::kWriteTarget;
  return encode_key({.address = memory_region == nullptr
                                    ? reinterpret_cast<uint64_t>(piece.iov_base)
                                    : memory_region->address_of(piece.iov_base),
                     .length = piece.iov_len,
                     .rkey = memory_region == nullptr ? 0 : memory_region->rkey(),
                     .immediate = make_immediate(slot, exposure.generation),
                     .kind = kind});
}

// Returns a free slot, or kNone if all of kMaxExposures slots are taken. Adds a slot if none is
// free, and while there are fewer than kFirst, so that a freed slot is not reused soon.
uint32_t ExposureTable::reserve() {
  constexpr size_t kFirst = 64;
  if (first_free_ != kNone && slots_.size() >= kFirst) return first_free_;
  if (slots_.size() < kMaxExposures) {
    slots_.emplace_back();
    // A new slot has never been used, so it goes to the front of the list.
    const auto fresh = static_cast<uint32_t>(slots_.size() - 1);
    slots_[fresh].next_free = std::exchange(first_free_, fresh);
    if (last_free_ == kNone) last_free_ = fresh;
  }
  return first_free_;
}

Exposure* ExposureTable::find(const RemoteKey& key) {
  const std::optional<Key> decoded = decode_key(key);
  if (!decoded || decoded->kind == KeyKind::kRegion) return nullptr;
  return find(decoded->immediate);
}

Exposure* ExposureTable::find(uint32_t immediate) {
  const uint32_t slot = slot_of(immediate);
  if (slot >= slots_.size()) return nullptr;
  Exposure& exposure = slots_[slot];
  if (!exposure.live || (exposure.generation & kGenerationMask) != generation_of(immediate)) {
    return nullptr;
  }
  return &exposure;
}

void ExposureTable::remove(Exposure& exposure) {
  if (exposure.memory_region != nullptr) cache_.release(exposure.memory_region);
  free(exposure);
}

bool ExposureTable::revoke(Exposure& exposure) {
  if (exposure.memory_region != nullptr && !cache_.revoke(exposure.memory_region)) return false;
  free(exposure);
  return true;
}

void ExposureTable::free(Exposure& exposure) {
  exposure.memory_region = nullptr;
  exposure.copied_to = nullptr;
  exposure.live = false;
  const auto slot = static_cast<uint32_t>(&exposure - slots_.data());
  exposure.next_free = kNone;
  (last_free_ == kNone ? first_free_ : slots_[last_free_].next_free) = slot;
  last_free_ = slot;
}

void ExposureTable::clear() {
  for (Exposure& exposure : slots_) {
    if (exposure.live) remove(exposure);
  }
}

}  // namespace hetcomm::rdma
