// A rank introduces itself to other ranks with its profile. In a small job all ranks exchange their
// profiles through the bootstrap. In a large job two ranks exchange theirs before they connect
// (introductions.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/bytes.h"
#include "src/base/span.h"
#include "src/base/status.h"
#include "src/core/job/membership/transport_costs.h"
#include "src/liveness/address_book.h"
#include "src/net/address.h"
#include "src/system/host_id.h"
#include "topology/machine/pairing.h"

namespace hetcomm {

inline constexpr size_t kMaxClusterName = 63;
inline constexpr size_t kMaxHostLabel = 127;
inline constexpr size_t kMaxTransportName = 15;
inline constexpr size_t kMaxOffers = 64;

// PeerInfo is a rank's description of itself.
struct PeerInfo {
  // An Offer tells the other ranks how to reach this rank over one of its transports.
  struct Offer {
    std::string name;  // "rdma", "rdma#1"
    bool within_host = false;
    LinkCost link;
    topology::Port port;
    std::vector<std::byte> contact;

    // Returns the kind of transport: its name without the number.
    std::string_view kind() const { return std::string_view(name).substr(0, name.find('#')); }
  };
  uint32_t incarnation = 0;  // random number that its process has made for this job
  HostId host{};             // the host that it runs on, as it reports itself
  std::string cluster;
  std::string host_label;             // the host's label in a link model
  uint32_t credit = 0;                // bytes that each other rank may send it unsolicited
  uint32_t device_count = 1;          // number of devices in its context
  std::vector<std::byte> host_links;  // encoded topology::HostLinks; empty: no information
  uint32_t known_devices = 0;         // name_of_devices() of its hidden devices (host_devices.h)
  std::vector<Offer> offers;          // in the order of its transports
};

struct RankProfile {
  bool tls = false;                      // HETCOMM_TLS is on
  std::array<std::byte, 16> instance{};  // only rank 0's value is used
  PeerInfo info;
  uint32_t link_model_bytes = 0;  // size of rank 0's link model; only its value is used
  std::vector<Address> control;   // addresses on which its control plane listens
};

// The version of profiles. Cards contain it too, so ranks with incompatible profiles are detected
// when the job is created.
inline constexpr uint16_t kProfileVersion = 18;

std::vector<std::byte> encode_profile(const RankProfile& own);
// Encodes a refusal, which replaces the profile or card of a rank that cannot take part. |version|
// is that of the profile or card.
std::vector<std::byte> encode_refusal(const Status& why, uint16_t version = kProfileVersion);
// Reads what follows the version in a profile or card: the flag |*tls|, or a refusal. Fails with
// the refusal's text.
Status read_refusal_or_tls(ByteReader& reader, bool* tls);
// Reads encoded topology::HostLinks as bytes. Fails if they are malformed.
Result<std::vector<std::byte>> read_host_links(ByteReader& reader);
// Decodes a profile. Fails with the text of a refusal. Also fails if the other rank's HETCOMM_TLS
// differs from |own_tls|, its value on |own_rank|. Both ranks then detect the difference
// immediately.
Status decode_profile(ConstByteSpan bytes, int own_rank, bool own_tls, RankProfile* result);

}  // namespace hetcomm
