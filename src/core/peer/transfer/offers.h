// Offers holds the peer's regions that contain offers, as mapped into this process. An offer is a
// part of a message that the receiver copies from the sender's memory, if a connection can map that
// memory. This saves the sender a copy into the connection, and the receiver a copy out of it.
//
// The mapping of a region is requested when the first offer names it. All callers hold the baton.
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
  // Returns region |key| of the peer, which has |length| bytes. Returns kPending after |rail| was
  // asked to map it, and another code if the region is unavailable. May throw std::bad_alloc.
  Result<MappedRegion> find(Rail& rail, const RemoteKey& key, uint64_t length) HETCOMM_UNDER_BATON;
  // Handles the result of a mapping request to |rail|. Returns false if this object has not
  // requested it.
  bool mapped(const Rail& rail, const RemoteKey& key,
              const Result<MappedRegion>& mapped) HETCOMM_UNDER_BATON;
  // Drops a region that the peer withdraws.
  void unmap(const Rail& rail, const RemoteKey& key) HETCOMM_UNDER_BATON;
  void rail_failed(const Rail& rail) HETCOMM_UNDER_BATON;

  bool may_take_on(const Rail& rail) const HETCOMM_UNDER_BATON { return rail.capabilities().map; }
  // Returns the number for this rank's next offer. It differs from the numbers of offers in flight.
  uint32_t next_number() HETCOMM_UNDER_BATON { return made_++; }
  // Forgets regions that could not be mapped. They are requested again with the next offer.
  void forget_refused() HETCOMM_UNDER_BATON;
  // Records that the peer has refused an offer. After kMaxRefusals this rank makes no more offers
  // until a connection fails.
  void refused() HETCOMM_UNDER_BATON { ++refusals_; }
  bool may_offer_on(const Rail& rail) const HETCOMM_UNDER_BATON {
    return rail.capabilities().map && rail.capabilities().lossless && refusals_ < kMaxRefusals;
  }

 private:
  static constexpr size_t kMaxRegions = 256;  // most regions that a peer can make this rank map
  static constexpr uint32_t kMaxRefusals = 16;
  struct Known {
    uint64_t rail;
    RemoteKey key;
    Result<MappedRegion> region;  // kPending: requested
  };
  Known* find_known(const Rail& rail, const RemoteKey& key) HETCOMM_UNDER_BATON;

  std::vector<Known> regions_;
  uint32_t refusals_ = 0;  // refused offers since a connection last failed
  uint32_t made_ = 0;      // offers that this rank has made
};

}  // namespace hetcomm
