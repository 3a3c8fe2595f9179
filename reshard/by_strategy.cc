#include "reshard/by_strategy.h"

#include <algorithm>

#include "reshard/bsr.h"

namespace hetcomm::reshard {

uint64_t slices_for(uint64_t bytes, size_t hops, uint64_t bundle_bytes) {
  constexpr uint64_t kOverlap = 16;
  constexpr uint64_t kSmallest = 64;
  constexpr uint64_t kMax = 65'536;
  // The maximum number of slices shorter than kShort. With more of them, the cost per message would
  // exceed the time that the overlap saves.
  constexpr uint64_t kMaxShort = 64;
  constexpr uint64_t kShort = 64u << 10;
  constexpr uint64_t kUsual = 8;
  if (bundle_bytes == 0) return kUsual;
  uint64_t slice = bundle_bytes;
  if (hops > 1) {
    slice = std::clamp(bytes / kOverlap, std::max<uint64_t>(slice / kSmallest, 1), slice);
  }
  const uint64_t most = std::min(std::max(kMaxShort, bytes / kShort), kMax);
  return std::clamp<uint64_t>(bytes / slice + (bytes % slice != 0 ? 1 : 0), 1, most);
}

uint64_t bytes_of(const Tensor& tensor) {
  return tensor.source->whole().elements() * tensor.element_bytes;
}

bool is_empty(const Tensor& tensor) { return tensor.source->whole().is_empty(); }

uint64_t tensors_a_message(const Tensor& tensor, const Wishes& wishes) {
  return std::max<uint64_t>(wishes.bundle_bytes / std::max<uint64_t>(bytes_of(tensor), 1), 1);
}

Result<MovePlan> plan_with(Strategy strategy, const Tensor& tensor, const Wishes& wishes,
                           SendLoads& loads, std::optional<int> rank, uint64_t turn) {
  const Layout& source = *tensor.source;
  const Layout& destination = *tensor.destination;
  switch (strategy) {
    case Strategy::kLeader:
      return plan_leader(source, destination, rank, turn);
    case Strategy::kGatherP2pScatter:
      return plan_gather_p2p_scatter(source, destination, wishes.outer, rank, turn);
    case Strategy::kSendrecvAllgather:
      return plan_sendrecv_allgather(source, destination, rank, turn);
    case Strategy::kBsr:
      return plan_bsr(source, destination, tensor.element_bytes, loads, rank, wishes.slice_bytes);
    case Strategy::kAuto:
    case Strategy::kDirect:
      break;
  }
  return plan_direct(source, destination, rank, turn);
}

}  // namespace hetcomm::reshard
