// Offers of a pair: parts of a message that the receiver copies out of the sender's memory, where a
// connection maps that. It saves both sides the copies into the connection and out of it.
//
// This unit has the peer's regions in which they lie, as this process maps them. Each is asked for
// with the first offer that names it. Under the baton.
#pragma once

#include <cstdint>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/peer/rails/rail.h"
#include "transports/types.h"

namespace hetcomm {

class Offers {
 public:
  // Returns region |key| of the peer, of |length| bytes. kPending: |rail| has been asked to map it.
  // Other codes: it cannot be had. May throw std::bad_alloc.
  Result<MappedRegion> find(Rail& rail, const RemoteKey& key, uint64_t length) HETCOMM_UNDER_BATON;
  // |rail| has answered. False: it was not asked from here.
  bool mapped(const Rail& rail, const RemoteKey& key,
              const Result<MappedRegion>& mapped) HETCOMM_UNDER_BATON;
  // The peer takes the region back.
  void unmap(const Rail& rail, const RemoteKey& key) HETCOMM_UNDER_BATON;
  void rail_failed(const Rail& rail) HETCOMM_UNDER_BATON;

  bool may_take_on(const Rail& rail) const HETCOMM_UNDER_BATON { return rail.capabilities().map; }
  // The number of an offer that this rank makes, which tells it from others under way.
  uint32_t next_number() HETCOMM_UNDER_BATON { return made_++; }
  // Forgets what could not be mapped. It is asked for again where it is offered again.
  void forget_refused() HETCOMM_UNDER_BATON;
  // The peer has refused an offer. After some of them this rank makes none any more.
  void refused() HETCOMM_UNDER_BATON { ++refusals_; }
  bool may_offer_on(const Rail& rail) const HETCOMM_UNDER_BATON {
    return rail.capabilities().map && rail.capabilities().lossless && refusals_ < kMaxRefusals;
  }

 private:
  static constexpr size_t kMaxRegions = 256;  // that a peer makes this side map
  static constexpr uint32_t kMaxRefusals = 16;
  struct Known {
    uint64_t rail;
    RemoteKey key;
    Result<MappedRegion> region;  // kPending: asked for
  };
  Known* find_known(const Rail& rail, const RemoteKey& key) HETCOMM_UNDER_BATON;

  std::vector<Known> regions_;
  uint32_t refusals_ = 0;  // since a connection was made
  uint32_t made_ = 0;      // offers of this rank
};

}  // namespace hetcomm
