// A digest holds the data that every rank needs about all others before it contacts them. It takes
// a few bytes per rank. Most ranks share host ids, names and sets of transports, so these are
// stored in tables.
//
// In a large job the leaders of blocks make the digest from cards
// (src/bootstrap/digest_exchange.h). All functions are pure: equal input gives equal bytes on every
// rank.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/bootstrap/digest_exchange.h"
#include "src/core/job/membership/rank_card.h"
#include "src/core/job/membership/transport_costs.h"
#include "src/net/address.h"
#include "src/system/host_id.h"

namespace hetcomm {

// Properties that all ranks of a class have in common.
struct RankClass {
  struct Kind {  // a kind of transport
    std::string name;
    bool within_host = false;
    auto operator<=>(const Kind&) const = default;
  };
  bool tls = false;
  uint32_t credit = 0;        // bytes that each other rank may send it unsolicited
  uint32_t device_count = 1;  // number of devices in its context
  std::vector<Kind> kinds;    // in the order of its transports
  auto operator<=>(const RankClass&) const = default;

  bool offers(std::string_view kind) const;
};

struct JobDigest {
  static constexpr size_t kMaxRanks = 65536;
  static constexpr size_t kMaxClasses = 256;

  std::array<std::byte, 16> instance{};  // random id, made by rank 0
  uint32_t link_model_bytes = 0;         // size of rank 0's link model; 0: none
  std::vector<RankClass> classes;
  // Link costs of each kind of transport, as reported by the first rank that has the kind.
  std::vector<std::pair<std::string, LinkCost>> costs;
  uint32_t host_count = 0;
  std::vector<HostId> host_ids;     // by host; empty in the digest of a whole job
  std::vector<std::string> labels;  // host labels in a link model
  std::vector<std::string> clusters;
  std::vector<Address> addresses;  // addresses of control planes, without ports
  std::vector<std::string> links;  // encoded topology::HostLinks; empty: no information
  // True if ranks of one host have found different devices. All ranks then exchange their devices.
  bool must_tell_devices = false;
  uint32_t silenced = 0;  // number of ranks whose reports on links were dropped

  // Indices into the tables above, by rank.
  std::vector<uint32_t> class_of;
  std::vector<uint32_t> host_of;
  std::vector<uint32_t> label_of;
  std::vector<uint32_t> cluster_of;
  std::vector<uint32_t> address_of;
  std::vector<uint32_t> links_of;
  // Data by rank.
  std::vector<uint16_t> ports;  // port of the rank's control plane
  std::vector<uint32_t> incarnations;
  // By host, if |host_ids| is not empty: name_of_devices() (host_devices.h), as reported by the
  // host's first rank.
  std::vector<uint32_t> known_devices;

  size_t size() const { return class_of.size(); }
};

// Returns the digest of the ranks |first|, |first| + 1, ..., whose cards are |cards|. Fails if the
// cards are inconsistent.
Result<JobDigest> gather(int first, const std::vector<RankCard>& cards);
// Merges |parts|, which are digests of consecutive ranks and have host ids. The result has no host
// ids: ranks only need to know which of them share a host.
Result<JobDigest> merge(const std::vector<JobDigest>& parts);

// Keeps at most |most_bytes| of the ranks' reports about their hosts' links. A rank whose report is
// dropped is treated as having reported nothing, and is counted in |silenced|.
void shorten_links(JobDigest& digest, size_t most_bytes);

// Encodes |digest|. Host ids and known devices are included if |digest| has them.
std::vector<std::byte> encode_digest(const JobDigest& digest);
Result<JobDigest> decode_digest(ConstByteSpan bytes);

// Makes the digest of a job from cards.
class JobDigestMaker final : public DigestMaker {
 public:
  Result<std::vector<std::byte>> part(
      int first, const std::vector<std::vector<std::byte>>& cards) const override;
  Result<std::vector<std::byte>> digest(
      const std::vector<std::vector<std::byte>>& parts) const override;
};

}  // namespace hetcomm
