// SendLoads counts the bytes that transfers put on the resources of a link model and on their
// senders, over all tensors that are planned together. It gives the cost of one more transfer.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "reshard/links.h"

namespace hetcomm::reshard {

// Says how far a transfer goes: within a rank, within a host, or over the network. |kHost| requires
// known links.
enum class Reach : uint8_t { kRank, kHost, kNetwork };

class SendLoads {
 public:
  // The cost of one more transfer, used to choose among the senders for one receiver. Smaller is
  // better. Data that is available on the receiver's rank or host is preferred. Among holders on
  // other hosts, the best one is the one whose transfer would end first. The receiver's own NIC is
  // left out of account, because all routes to the receiver share it.
  struct Cost {
    Reach reach = Reach::kRank;
    uint64_t end_ns = 0;      // end of all transfers if they all started at once; 0 without links
    uint64_t busy_ns = 0;     // sum of the times for which its resources would then have been busy
    uint64_t sent_bytes = 0;  // bytes that its sender already has to send
    auto operator<=>(const Cost&) const = default;
  };

  // |links| may be null, if they are unknown. All links then count as equal. Otherwise |links| must
  // outlive the object, and cover all ranks that are passed to it.
  explicit SendLoads(const Links* links = nullptr);

  const Links* links() const { return links_; }
  // Returns the cost of a transfer. It grows with |bytes| and with the transfers added so far.
  Cost cost(int from, int to, uint64_t bytes) const;
  void add(int from, int to, uint64_t bytes);
  // Multiplies the load that was added since |before| was copied from this object by |times|.
  void repeat_since(const SendLoads& before, uint64_t times);
  // Returns the bytes that each rank sends to others. The last entry is that of the highest rank
  // that sends.
  const std::vector<uint64_t>& bytes_of_ranks() const { return bytes_of_ranks_; }

 private:
  const Links* links_;
  std::vector<uint64_t> bytes_of_ranks_;
  std::vector<uint64_t> bytes_of_resources_;  // empty without links
};

}  // namespace hetcomm::reshard
