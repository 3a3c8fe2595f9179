#include "src/core/peer/transfer/offers.h"

#include <algorithm>

namespace hetcomm {

Offers::Known* Offers::find_known(const Rail& rail, const RemoteKey& key) {
  const auto known = std::find_if(
      regions_.begin(), regions_.end(),
      [&, on = rail.id](const Known& each) { return each.rail == on && each.key == key; });
  return known == regions_.end() ? nullptr : &*known;
}

Result<MappedRegion> Offers::find(Rail& rail, const RemoteKey& key, uint64_t length) {
  if (Known* const known = find_known(rail, key)) {
    if (known->region.ok() && known->region->length != length) return Code::kInvalidArgument;
    return known->region;
  }
  if (!rail.capabilities().map || regions_.size() >= kMaxRegions) return Code::kUnsupported;
  regions_.push_back({rail.id, key, Code::kPending});
  rail.abilities().mapper->map(key, length);
  return Code::kPending;
}

bool Offers::mapped(const Rail& rail, const RemoteKey& key, const Result<MappedRegion>& mapped) {
  Known* const known = find_known(rail, key);
  if (known == nullptr || known->region.status().code() != Code::kPending) return false;
  known->region = mapped;
  return true;
}

void Offers::unmap(const Rail& rail, const RemoteKey& key) {
  std::erase_if(regions_, [&, on = rail.id](const Known& each) {
    return each.rail == on && each.key == key;
  });
}

void Offers::forget_refused() {
  std::erase_if(regions_, [](const Known& each) {
    return !each.region.ok() && each.region.status().code() != Code::kPending;
  });
}

void Offers::rail_failed(const Rail& rail) {
  refusals_ = 0;
  std::erase_if(regions_, [on = rail.id](const Known& each) { return each.rail == on; });
}

}  // namespace hetcomm
