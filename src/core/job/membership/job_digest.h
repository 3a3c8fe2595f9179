// A digest has what every rank has to know of all others before it talks to them. It takes a few
// bytes per rank. Most ranks share host ids, names and sets of transports, so these stand in
// tables.
//
// In a large job leaders of blocks make the digest of cards (src/bootstrap/digest_exchange.h). All
// functions are pure: from equal input they make equal bytes on every rank.
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

// Ranks of one class have all this in common.
struct RankClass {
  struct Kind {  // a kind of transports
    std::string name;
    bool within_host = false;
    auto operator<=>(const Kind&) const = default;
  };
  bool tls = false;
  uint32_t credit = 0;        // bytes that it lets each other rank send unasked
  uint32_t device_count = 1;  // devices of its context
  std::vector<Kind> kinds;    // in the order of its transports
  auto operator<=>(const RankClass&) const = default;

  bool offers(std::string_view kind) const;
};

struct JobDigest {
  static constexpr size_t kMaxRanks = 65536;
  static constexpr size_t kMaxClasses = 256;

  std::array<std::byte, 16> instance{};  // rank 0's
  uint32_t link_model_bytes = 0;         // rank 0's
  std::vector<RankClass> classes;
  // The first rank that has a kind of transports says what its links cost.
  std::vector<std::pair<std::string, LinkCost>> costs;
  uint32_t host_count = 0;
  std::vector<HostId> host_ids;     // by host; none in the digest of a whole job
  std::vector<std::string> labels;  // labels of hosts in a link model
  std::vector<std::string> clusters;
  std::vector<Address> places;     // addresses of control planes, without ports
  std::vector<std::string> links;  // encoded topology::HostLinks; empty: nothing is said
  // Ranks of one host know of different devices there: they have to tell each other.
  bool must_tell_devices = false;
  uint32_t silenced = 0;  // ranks whose words shorten_links() has dropped

  // By rank: indices of the tables.
  std::vector<uint32_t> class_of;
  std::vector<uint32_t> host_of;
  std::vector<uint32_t> label_of;
  std::vector<uint32_t> cluster_of;
  std::vector<uint32_t> place_of;
  std::vector<uint32_t> links_of;
  // By rank.
  std::vector<uint16_t> ports;  // port of its control plane
  std::vector<uint32_t> incarnations;
  // By host, where |host_ids| are: name_of_devices() of host_devices.h, as its ranks say.
  std::vector<uint32_t> known_devices;

  size_t size() const { return class_of.size(); }
};

// The digest of the ranks |first|, |first| + 1, ..., which have |cards|. Fails where they do not
// fit together.
Result<JobDigest> gather(int first, const std::vector<RankCard>& cards);
// The digest of the ranks of all |parts|, which follow one another and have host ids. The result
// has none: ranks need to know which of them share a host, and no more.
Result<JobDigest> merge(const std::vector<JobDigest>& parts);

// Keeps |most_bytes| of what ranks say of the links of their hosts. A rank whose words are dropped
// is taken to say nothing, and is counted.
void shorten_links(JobDigest& digest, size_t most_bytes);

// Host ids, and the devices that hosts know, are encoded if |digest| has them.
std::vector<std::byte> encode_digest(const JobDigest& digest);
Result<JobDigest> decode_digest(ConstByteSpan bytes);

// Makes the digest of a job of cards.
class JobDigestMaker final : public DigestMaker {
 public:
  Result<std::vector<std::byte>> part(
      int first, const std::vector<std::vector<std::byte>>& cards) const override;
  Result<std::vector<std::byte>> digest(
      const std::vector<std::vector<std::byte>>& parts) const override;
};

}  // namespace hetcomm
