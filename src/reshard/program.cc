#include "src/reshard/program.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "reshard/by_strategy.h"
#include "src/reduce/reduce.h"

namespace hetcomm::reshard {
namespace {

constexpr uint64_t kMaxRows = 1024;  // the maximum for a message that is not packed
constexpr uint64_t kScratchAlign = 64;
// Once a list has this many bundles, its further tensors are not sliced, so that bundle numbers do
// not overflow.
constexpr uint32_t kMaxSliced = 1u << 26;

// Divides a list of tensors into bundles. The result is the same on all ranks.
struct Bundles {
  struct OfTensor {
    uint32_t first = 0;
    uint32_t slices = 1;
  };
  std::vector<OfTensor> tensors;

  Bundles(const std::vector<Passage>& passages, uint64_t bundle_bytes) {
    const uint64_t most = std::max<uint64_t>(bundle_bytes, 1);
    uint32_t next = 0;
    uint64_t filled = 0;  // bytes in the bundle before |next|; 0 if it takes no more tensors
    for (const Passage& passage : passages) {
      const uint64_t bytes =
          passage.plan->source.whole().elements() * reduce::size_of(passage.types.destination);
      const size_t hops = passage.plan->hops.size();
      const auto slices = static_cast<uint32_t>(slices_for(bytes, hops, most));
      if (slices > 1 && next < kMaxSliced) {
        tensors.push_back({next, slices});
        next += slices;
        filled = 0;
        continue;
      }
      if (filled == 0 || filled + bytes > most) {
        ++next;
        filled = 0;
      }
      tensors.push_back({next - 1, 1});
      filled += bytes;
    }
  }
};

class Compiler {
 public:
  Compiler(const std::vector<Passage>& passages, const ProgramOptions& options)
      : passages_(passages), options_(options), bundles_(passages, options.bundle_bytes) {}

  Program make() {
    for (uint32_t tensor = 0; tensor < passages_.size(); ++tensor) add_tensor(tensor);
    for (auto& [key, phase] : phases_) finish_phase(phase);
    number_messages();
    for (auto& [key, draft] : phases_) program_.phases.push_back(std::move(draft.phase));
    note_uses();
    return std::move(program_);
  }

 private:
  // A phase that is being built. Tensors are still added to it.
  struct Draft {
    ProgramPhase phase;
    std::map<int, ProgramMessage> sends;     // keyed by peer
    std::map<int, ProgramMessage> receives;  // keyed by peer
    std::map<int, bool> puts;  // by peer; true if the processor adds or converts elements
    std::vector<std::pair<int, ProgramArrival>> arrivals;  // with the sending peer; -1: this rank
  };

  // Returns the region of |box|. The tensor's sums begin at |sum_base| in the phase's memory.
  Region region(const StridedBox& box, uint32_t tensor, uint64_t sum_base = 0) const {
    const uint64_t base = box.memory == Space::kScratch ? scratch_base_
                          : box.memory == Space::kSum   ? sum_base
                                                        : 0;
    return region_of(box, tensor, reduce::size_of(program_.tensors[tensor].type_of(box.memory)),
                     base);
  }

  void add_tensor(uint32_t tensor) {
    const Passage& passage = passages_[tensor];
    const Bundles::OfTensor bundles = bundles_.tensors[tensor];
    const Conversion& conversion =
        program_.tensors.emplace_back(conversion_of(*passage.plan, passage.types));
    program_.sources.push_back(side_of(passage.plan->source, passage.types.source));
    program_.destinations.push_back(
        side_of(passage.plan->destination(), passage.types.destination));
    program_.sources.back().stays =
        !conversion.is_sum && passage.types.source == passage.types.destination;
    const Slicing slicing =
        slicing_of(*passage.plan, options_.rank, bundles.slices, conversion.rounds());
    scratch_base_ = program_.scratch_bytes;
    program_.scratch_bytes +=
        aligned(slicing.scratch_elements * reduce::size_of(passage.types.destination));
    for (const Phase& phase : slicing.phases) {
      const uint32_t bundle = bundles.first + phase.slice;
      Draft& draft = phases_[{bundle, phase.hop}];
      draft.phase.bundle = bundle;
      draft.phase.hop = phase.hop;
      add_phase(tensor, phase, draft);
    }
  }

  static uint64_t aligned(uint64_t bytes) {
    return (bytes + kScratchAlign - 1) / kScratchAlign * kScratchAlign;
  }

  ProgramSide side_of(const Layout& layout, ElementType type) const {
    const uint64_t element_bytes = reduce::size_of(type);
    return {.bytes = elements_needed(layout, options_.rank) * element_bytes,
            .boxes = footprint_of(layout, options_.rank, element_bytes)};
  }

  void add_phase(uint32_t tensor, const Phase& phase, Draft& draft) {
    const Conversion& conversion = program_.tensors[tensor];
    // All data sent in one hop has the same type.
    const uint64_t element_bytes =
        reduce::size_of(conversion.sent_type(phase.hop == 0 ? Space::kSource : Space::kScratch));
    const uint64_t sum_base = draft.phase.sum_bytes;
    draft.phase.sum_bytes += aligned(phase.sum_elements * reduce::size_of(conversion.sum_type));
    for (const Message& message : phase.sends) {
      ProgramMessage& own = draft.sends[message.peer];
      for (const StridedBox& box : message.boxes) own.regions.push_back(region(box, tensor));
      own.bytes += message.elements * element_bytes;
    }
    std::vector<uint64_t> begins;  // offset of this tensor's bytes in each message
    for (const Message& message : phase.receives) {
      ProgramMessage& own = draft.receives[message.peer];
      begins.push_back(own.bytes);
      own.bytes += message.elements * element_bytes;
    }
    for (const Arrival& arrival : phase.arrivals) {
      ProgramArrival own;
      own.to = region(arrival.to, tensor, sum_base);
      own.adds = arrival.adds;
      own.is_term = arrival.is_term;
      int peer = -1;
      if (arrival.receive < 0) {
        own.from = region(arrival.from, tensor, sum_base);
      } else {
        const auto index = static_cast<size_t>(arrival.receive);
        peer = phase.receives[index].peer;
        own.position = begins[index] + arrival.position * element_bytes;
        draft.receives[peer].regions.push_back(own.to);
        const bool is_put =
            arrival.adds ||
            conversion.type_of(arrival.to.memory) !=
                (arrival.is_term ? conversion.types.source : conversion.types.destination) ||
            arrival.to.memory == Space::kSum;
        draft.puts[peer] = draft.puts[peer] || is_put;
      }
      draft.arrivals.emplace_back(peer, own);
    }
  }

  bool is_direct(int peer, const ProgramMessage& message) const {
    uint64_t rows = 0;
    for (const Region& region : message.regions) {
      if (region.memory == Space::kSource &&
          program_.tensors[region.tensor].converts(Space::kSource)) {
        return false;
      }
      rows += region.rows;
    }
    if (rows <= 1) return true;
    const auto index = static_cast<size_t>(peer);
    const bool near = index < options_.near.size() && options_.near[index];
    const uint64_t least = near ? options_.least_row_near : options_.least_row_far;
    return rows <= kMaxRows && message.bytes / rows >= least;
  }

  // Turns the collected messages, which are sorted by peer, into those of the phase.
  void finish_phase(Draft& draft) {
    const uint32_t hop = draft.phase.hop;
    for (auto& [peer, message] : draft.sends) {
      message.is_direct = is_direct(peer, message);
      message.track = track_of(peer, hop, true);
      program_.sent_bytes += message.bytes;
      draft.phase.sends.push_back(std::move(message));
    }
    std::map<int, int> index_of;
    for (auto& [peer, message] : draft.receives) {
      message.is_direct = !draft.puts[peer] && is_direct(peer, message);
      if (draft.puts[peer]) message.regions.clear();
      message.track = track_of(peer, hop, false);
      program_.received_bytes += message.bytes;
      index_of[peer] = static_cast<int>(draft.phase.receives.size());
      draft.phase.receives.push_back(std::move(message));
    }
    for (auto& [peer, arrival] : draft.arrivals) {
      if (peer >= 0) arrival.receive = index_of[peer];
      draft.phase.arrivals.push_back(std::move(arrival));
    }
  }

  uint32_t track_of(int peer, uint32_t hop, bool sends) {
    const auto [found, added] = track_numbers_.try_emplace(
        {peer, hop, sends}, static_cast<uint32_t>(program_.tracks.size()));
    if (added) program_.tracks.push_back({.peer = peer, .hop = hop, .sends = sends});
    return found->second;
  }

  void number_messages() {
    std::map<uint32_t, int32_t> last_of;  // latest phase, keyed by bundle
    int32_t index = 0;
    for (auto& [key, draft] : phases_) {
      ProgramPhase& phase = draft.phase;
      if (const auto last = last_of.find(phase.bundle); last != last_of.end()) {
        phase.after = last->second;
      }
      last_of[phase.bundle] = index++;
      for (auto* messages : {&phase.sends, &phase.receives}) {
        for (ProgramMessage& message : *messages) {
          ProgramTrack& track = program_.tracks[message.track];
          message.position = track.messages++;
          track.most_bytes = std::max(track.most_bytes, message.bytes);
        }
      }
    }
  }

  void note_use(const Region& region) {
    if (region.memory == Space::kScratch || region.memory == Space::kSum) return;
    ProgramSide& side = region.memory == Space::kSource ? program_.sources[region.tensor]
                                                        : program_.destinations[region.tensor];
    if (side.used_begin == side.used_end) side.used_begin = region.offset;
    side.used_begin = std::min(side.used_begin, region.offset);
    side.used_end = std::max(side.used_end, region.end());
    side.used_bytes += region.bytes();
    side.rows += region.rows;
    side.planes += region.planes();
  }

  void note_uses() {
    for (const ProgramPhase& phase : program_.phases) {
      for (const ProgramMessage& message : phase.sends) {
        for (const Region& region : message.regions) note_use(region);
      }
      for (const ProgramArrival& arrival : phase.arrivals) {
        if (arrival.receive < 0) note_use(arrival.from);
        note_use(arrival.to);
        if (!arrival.is_term) continue;
        program_.sources[arrival.to.tensor].is_added = true;
        if (arrival.to.memory == Space::kSum) continue;
        program_.destinations[arrival.to.tensor].is_added = true;
      }
    }
  }

  const std::vector<Passage>& passages_;
  const ProgramOptions& options_;
  const Bundles bundles_;
  Program program_;
  uint64_t scratch_base_ = 0;                              // base of the current tensor
  std::map<std::pair<uint32_t, uint32_t>, Draft> phases_;  // keyed by bundle and hop
  std::map<std::tuple<int, uint32_t, bool>, uint32_t> track_numbers_;
};

}  // namespace

Conversion conversion_of(const MovePlan& plan, const TypePair& types) {
  Conversion conversion{.types = types};
  conversion.is_sum = plan.source.terms > 1 && plan.destination().terms == 1;
  conversion.sum_type = sum_type_of(types.source, types.destination);
  if (!conversion.is_sum) return conversion;
  conversion.divisor = plan.source.divisor;
  // A sum that keeps its type overflows in the same way as in a collective operation.
  if (types.source == types.destination) conversion.types.overflow = Overflow::kIsNan;
  return conversion;
}

Program make_program(const std::vector<Passage>& passages, const ProgramOptions& options) {
  return Compiler(passages, options).make();
}

}  // namespace hetcomm::reshard
