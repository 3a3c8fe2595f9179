#include "transports/tcp/exposure.h"

#include "src/base/free_index.h"
#include "src/system/random.h"

namespace hetcomm::tcp {
namespace {

constexpr uint32_t kMaxSlots = 1u << 20;
// A free slot keeps no extent list that is longer than this.
constexpr size_t kMaxKeptExtents = 64;

}  // namespace

Result<uint64_t> NonceSource::next() {
  if (left_ == 0) {
    HETCOMM_RETURN_IF_ERROR(fill_random(std::as_writable_bytes(std::span(pool_))));
    left_ = pool_.size();
  }
  return pool_[--left_];
}

Result<RemoteKey> ExposureTable::add(Extents extents, uint64_t cookie, NonceSource& nonces) {
  const Result<uint64_t> nonce = nonces.next();
  if (!nonce.ok()) return nonce.status();
  if (free_.empty() && slots_.size() == kMaxSlots) return Code::kOutOfResources;
  const uint32_t slot = next_free_index(slots_, free_);
  Exposure& exposure = slots_[slot];
  exposure.extents.assign(extents.begin(), extents.end());
  free_.pop_back();  // takes the slot only now; nothing below can fail
  exposure.size_bytes = total_bytes(extents);
  exposure.cookie = cookie;
  exposure.nonce = nonce.value();
  ++exposure.generation;
  exposure.live = true;
  exposure.cursor = {};
  return make_key(slot, exposure.generation, exposure.nonce);
}

uint32_t ExposureTable::remove(const RemoteKey& key) {
  const PutTarget token = put_target(key, 0);
  if (check(token, 0) != Verdict::kLive) return kNone;
  Exposure& exposure = slots_[token.slot];
  exposure.live = false;
  if (exposure.extents.capacity() > kMaxKeptExtents) {
    std::vector<iovec>().swap(exposure.extents);
  } else {
    exposure.extents.clear();
  }
  if (exposure.generation != UINT32_MAX) free_.push_back(token.slot);
  return token.slot;
}

ExposureTable::Verdict ExposureTable::check(const PutTarget& target, uint32_t length) const {
  if (target.slot >= slots_.size()) return Verdict::kNeverIssued;
  const Exposure& exposure = slots_[target.slot];
  if (target.generation == 0 || target.generation > exposure.generation) {
    return Verdict::kNeverIssued;
  }
  if (target.generation < exposure.generation) return Verdict::kRevoked;
  if (target.nonce != exposure.nonce) return Verdict::kNeverIssued;
  if (!exposure.live) return Verdict::kRevoked;
  if (target.offset > exposure.size_bytes || length > exposure.size_bytes - target.offset) {
    return Verdict::kOutOfRange;
  }
  return Verdict::kLive;
}

}  // namespace hetcomm::tcp
