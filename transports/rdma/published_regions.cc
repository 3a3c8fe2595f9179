#include "transports/rdma/published_regions.h"

#include <algorithm>
#include <cstring>

namespace hetcomm::rdma {

PublishedRegions::~PublishedRegions() {
  for (const Published& each : published_) (void)port_.verbs().dereg_mr(each.mr);
}

Result<RemoteKey> PublishedRegions::add(const Region& region) {
  if (region.length == 0 || region.length >= kMaxKeyBytes) return Code::kInvalidArgument;
  const int access = (region.writable ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : 0) |
                     (region.readable ? IBV_ACCESS_REMOTE_READ : 0);
  // Reserves space first, so that a registered region is always recorded.
  if (published_.size() == published_.capacity()) published_.reserve(2 * published_.size() + 4);
  Result<Registered> made =
      port_.memory_regions().register_alone(region.address, region.length, access);
  if (!made.ok()) return made.status();
  const RemoteKey key = encode_key({.address = made->address,
                                    .length = region.length,
                                    .rkey = made->mr->rkey,
                                    .immediate = (region.writable ? kRegionWritable : 0) |
                                                 (region.readable ? kRegionReadable : 0),
                                    .kind = KeyKind::kRegion});
  published_.push_back({key, made->mr});
  return key;
}

void PublishedRegions::remove(const RemoteKey& key) {
  const auto at = std::find_if(published_.begin(), published_.end(),
                               [&](const Published& each) { return each.key == key; });
  if (at == published_.end()) return;
  if (const int error = port_.verbs().dereg_mr(at->mr); error != 0) {
    port_.log().error("rdma: a region cannot be withdrawn: {}", std::strerror(error));
    port_.break_down("a region cannot be withdrawn");
  }
  published_.erase(at);
}

}  // namespace hetcomm::rdma
