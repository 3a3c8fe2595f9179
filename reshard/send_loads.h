// SendLoads counts the bytes that transfers put on the resources of a link model and on their
// senders, over all tensors that are planned together. It says what one more transfer would cost.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "reshard/links.h"

namespace hetcomm::reshard {

// The ends between which a transfer goes. |kHost| needs links that are known.
enum class Reach : uint8_t { kRank, kHost, kNetwork };

class SendLoads {
 public:
  // The cost of one more transfer, for the choice among senders to one receiver. Smaller is better:
  // a byte that need not leave its rank or host does not. Of the holders beyond the host, the one
  // sends whose transfer would end first, if the receiver's own NIC is left out of account. All
  // ways to a receiver have that NIC in common.
  struct Cost {
    Reach reach = Reach::kRank;
    uint64_t end_ns = 0;      // when it would end if all transfers started at once; 0 without links
    uint64_t busy_ns = 0;     // sum of the times for which its resources would then have been busy
    uint64_t sent_bytes = 0;  // bytes that its sender sends so far
    auto operator<=>(const Cost&) const = default;
  };

  // |links| may be null: the links are unknown, and all count as equal. Otherwise |links| must
  // outlive the object, and know all ranks that are passed to it.
  explicit SendLoads(const Links* links = nullptr);

  const Links* links() const { return links_; }
  // Returns the cost. It grows with |bytes| and with the transfers that were added.
  Cost cost(int from, int to, uint64_t bytes) const;
  void add(int from, int to, uint64_t bytes);
  // Counts what was added since |before| was copied from this object |times| times instead of once.
  void repeat_since(const SendLoads& before, uint64_t times);
  // Returns the bytes that each rank sends to others, up to the highest rank that sends.
  const std::vector<uint64_t>& bytes_of_ranks() const { return bytes_of_ranks_; }

 private:
  const Links* links_;
  std::vector<uint64_t> bytes_of_ranks_;
  std::vector<uint64_t> bytes_of_resources_;  // empty without links
};

}  // namespace hetcomm::reshard
