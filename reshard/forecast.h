// Predicts from a link model how long a plan takes, in whole nanoseconds. All ranks compute the
// same result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "reshard/links.h"
#include "reshard/move_plan.h"

namespace hetcomm::reshard {

// The forecast for one hop, whose moves all start at once.
struct HopForecast {
  uint64_t ns = 0;
  uint64_t messages = 0;
  uint64_t bytes = 0;         // bytes that move between different ranks
  int slowest_resource = -1;  // index of the model's resource that is busy longest
  bool operator==(const HopForecast&) const = default;
};

struct Forecast {
  uint64_t ns = 0;
  std::vector<HopForecast> hops;
  std::vector<uint64_t> resource_bytes;  // bytes that cross each resource of the model
  bool operator==(const Forecast&) const = default;
};

// The processor time in nanoseconds that one message costs its sender. It costs the receiver the
// same.
inline constexpr uint64_t kMessageNs = 5'000;

// The bytes that move between two different ranks, keyed by sender and receiver.
using Messages = std::map<std::pair<int, int>, uint64_t>;
// Returns the bytes that hop |hop| of |plan| moves between different ranks.
Messages messages_of(const MovePlan& plan, size_t hop, uint64_t element_bytes);

// A HopLoad is the load that the messages of one hop put on the resources of the links and on the
// ranks.
struct HopLoad {
  std::map<int, uint64_t> resource_bytes;  // keyed by resource of the model; at most 2^62 for each
  // kMessageNs times the number of messages, less one, of the rank with the most messages.
  uint64_t message_ns = 0;
};
HopLoad load_of(const Messages& messages, const Links& links);

// Forecasts the transfers of plans that run together. A hop takes as long as its busiest resource,
// or as its longest transfer alone, whichever is longer. On the rank with the most messages, every
// message after the first adds kMessageNs. Slices let the hops overlap: the longest hop counts in
// full, and every other hop counts only with the time of one slice. Hops that overlap share the
// links and the ranks, so the whole takes at least as long as its busiest resource and the messages
// of its busiest rank. The plans contain the moves of all ranks, and the links cover all ranks. The
// memory use grows with the numbers of resources and ranks, not with the number of pairs of ranks.
class JointForecast {
 public:
  // |links| must outlive the object.
  explicit JointForecast(const Links& links) : links_(&links) {}

  // Adds |count| tensors, each moved by |plan|. |shared| is the number of these tensors that fit in
  // one message, at least 1.
  void add(const MovePlan& plan, uint64_t element_bytes, uint64_t count = 1, uint64_t shared = 1);
  void add(const JointForecast& other);
  Forecast forecast(uint64_t slices) const;

 private:
  struct Hop {
    std::map<int, uint64_t> carried;   // bytes, keyed by resource
    std::map<int, uint64_t> messages;  // keyed by rank, in units of 1 / kMessage
    // The bytes of the pairs whose route limits the rate of a single transfer, keyed by sender and
    // receiver.
    Messages limited;
    uint64_t longest_ns = 0;  // longest time of a single transfer of one add() without other load
    uint64_t pairs = 0;
    uint64_t bytes = 0;
  };
  static constexpr uint64_t kMessage = 1024;

  void add(const Messages& messages, uint64_t count, uint64_t units, Hop& hop) const;
  // Sums over all hops.
  struct Sums {
    std::map<int, uint64_t> carried;   // as in Hop
    std::map<int, uint64_t> messages;  // as in Hop, without the first message of each hop
  };
  HopForecast forecast_of(const Hop& hop, Sums& sums) const;
  uint64_t busy_ns(int resource, uint64_t bytes) const;

  const Links* links_;
  std::vector<Hop> hops_;
};

// Forecasts |plan| alone.
Forecast forecast(const MovePlan& plan, uint64_t element_bytes, const Links& links,
                  uint64_t slices = 8);

}  // namespace hetcomm::reshard
