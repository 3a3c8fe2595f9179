// A rank of a large job introduces itself to all by a card. The card has what the others have to
// know before they talk to the rank. Its profile says how to connect; they ask the rank for it.
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
  // One of the kinds of transports that the rank has.
  struct Kind {
    std::string name;  // "rdma"
    bool within_host = false;
    LinkCost link;
    bool operator==(const Kind&) const = default;
  };
  bool tls = false;
  uint32_t incarnation = 0;
  std::array<std::byte, 16> instance{};  // counts if it is rank 0's
  uint32_t link_model_bytes = 0;         // counts if it is rank 0's
  HostId host{};
  std::string host_label;
  std::string cluster;
  uint32_t credit = 0;
  uint32_t device_count = 1;          // devices of its context
  std::vector<std::byte> host_links;  // a topology::HostLinks; empty: it says nothing
  uint32_t known_devices = 0;         // as name_of_devices() of host_devices.h says
  // The first address of its control plane that other hosts may reach. A job of one rank has none.
  Address control;
  std::vector<Kind> kinds;  // in the order of its transports, each once
};

// The card of the rank that |profile| describes.
RankCard card_of(const RankProfile& profile);

std::vector<std::byte> encode_card(const RankCard& card);
// Takes the place of the card of a rank that cannot take part.
std::vector<std::byte> encode_refused_card(const Status& why);
// Fails with the text of a refusal, and where the rank has another version of hetcomm.
Result<RankCard> decode_card(ConstByteSpan bytes);

}  // namespace hetcomm
