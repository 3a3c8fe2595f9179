// In a large job, a rank introduces itself to all ranks with a card. The card holds the data that
// other ranks need before they contact the rank. To connect, they request the rank's profile, which
// describes its transports.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/core/job/membership/rank_profile.h"
#include "src/core/job/membership/transport_costs.h"
#include "src/net/address.h"
#include "src/system/host_id.h"

namespace hetcomm {

struct RankCard {
  // A kind of transport that the rank has.
  struct Kind {
    std::string name;  // "rdma"
    bool within_host = false;
    LinkCost link;
    bool operator==(const Kind&) const = default;
  };
  bool tls = false;
  uint32_t incarnation = 0;
  std::array<std::byte, 16> instance{};  // only rank 0's value is used
  uint32_t link_model_bytes = 0;         // only rank 0's value is used
  HostId host{};
  std::string host_label;
  std::string cluster;
  uint32_t credit = 0;
  uint32_t device_count = 1;          // number of devices in its context
  std::vector<std::byte> host_links;  // encoded topology::HostLinks; empty: no information
  uint32_t known_devices = 0;         // name_of_devices() of its hidden devices (host_devices.h)
  // The first address of its control plane that other hosts may be able to reach. Unset in a job of
  // one rank.
  Address control;
  std::vector<Kind> kinds;  // in the order of its transports, each once
};

// Returns the card of the rank that |profile| describes.
RankCard card_of(const RankProfile& profile);

std::vector<std::byte> encode_card(const RankCard& card);
// Encodes a refusal, which replaces the card of a rank that cannot take part.
std::vector<std::byte> encode_refused_card(const Status& why);
// Decodes a card. Fails if it is malformed or comes from another version of hetcomm. Also fails if
// it is a refusal, with its text.
Result<RankCard> decode_card(ConstByteSpan bytes);

}  // namespace hetcomm
