// Makes the steps of one lane; the parts of plan.cc. plan_moves.cc: what is only moved,
// plan_sums.cc: what is combined on its way, plan_rounding.cc: what is rounded once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "src/core/collectives/plan.h"

namespace hetcomm::collectives {

// Where there is no other reason: up to here few rounds count for more than few bytes.
inline constexpr uint64_t kShortBytes = 16u << 10;

// Ranks that do something among themselves; this one is number |me|.
struct Members {
  uint32_t count;
  uint32_t me;
  std::vector<uint32_t> ranks{};  // in order; empty: each is its number

  uint32_t rank_of(uint32_t number) const { return ranks.empty() ? number : ranks[number]; }
  // The |distance|-th one after this one.
  uint32_t after(uint32_t distance) const { return rank_of((me + distance) % count); }
  uint32_t before(uint32_t distance) const {
    return rank_of((me + count - distance % count) % count);
  }
};

// Steps of one lane.
class Builder {
 public:
  Builder(const Problem& problem, uint64_t lane, Plan& plan)
      : problem_(problem),
        placement_(*problem.placement),
        algorithm_(choose(problem)),
        plan_(plan) {
    plan_.steps.clear();
    plan_.inputs.clear();
    plan_.scratch_bytes = 0;
    plan_.result = {};
    const uint64_t slice = slice_bytes(problem);
    begin_ = slice == UINT64_MAX ? 0 : lane * slice;
    end_ = slice == UINT64_MAX ? UINT64_MAX : begin_ + slice;
  }

  // Of each part, how much a lane has; UINT64_MAX: there is one lane.
  static uint64_t slice_bytes(const Problem& problem);

  void build();

 private:
  uint32_t n() const { return problem_.ranks; }
  uint32_t me() const { return problem_.rank; }
  // Rings go from cluster to cluster, everything else by rank.
  uint32_t rank_at(uint32_t place) const {
    return algorithm_ == Algorithm::kRing ? placement_.ring[place] : place;
  }
  uint32_t place_of(uint32_t rank) const {
    return algorithm_ == Algorithm::kRing ? placement_.place_of[rank] : rank;
  }
  Members all_ranks() const {
    if (algorithm_ == Algorithm::kRing) return {n(), place_of(me()), placement_.ring};
    return {n(), me()};
  }
  // The |distance|-th rank after this one.
  uint32_t after(uint32_t distance) const { return rank_at((place_of(me()) + distance) % n()); }
  uint32_t before(uint32_t distance) const {
    return rank_at((place_of(me()) + n() - distance % n()) % n());
  }
  uint32_t places_behind(uint32_t rank) const {
    return (place_of(me()) + n() - place_of(rank)) % n();
  }

  // Of two levels: the clusters, this rank's, and the one of each cluster that speaks for it.
  uint32_t cluster() const { return placement_.cluster_of[me()]; }
  uint32_t index() const { return placement_.index_of[me()]; }
  const std::vector<uint32_t>& mates() const { return placement_.clusters[cluster()]; }
  uint32_t leader_of(uint32_t cluster) const {
    const bool of_root = has_root(problem_.kind) && placement_.cluster_of[problem_.root] == cluster;
    return of_root ? problem_.root : placement_.clusters[cluster][0];
  }
  bool leads() const { return leader_of(cluster()) == me(); }
  // One rank of each cluster, as |rank_of| says.
  template <typename RankOf>
  Members one_of_each(RankOf&& rank_of) const {
    Members members{placement_.cluster_count(), cluster()};
    for (uint32_t i = 0; i < members.count; ++i) members.ranks.push_back(rank_of(i));
    return members;
  }
  Members leaders() const {
    return one_of_each([this](uint32_t cluster) { return leader_of(cluster); });
  }
  Members own_cluster() const { return {static_cast<uint32_t>(mates().size()), index(), mates()}; }
  // The ranks of the same index in all clusters; there has to be one in each.
  Members peers() const {
    return one_of_each([this](uint32_t cluster) { return placement_.clusters[cluster][index()]; });
  }
  // Who in |cluster| is the other end of |rank|'s traffic with it.
  uint32_t counterpart(uint32_t rank, uint32_t cluster) const {
    const std::vector<uint32_t>& members = placement_.clusters[cluster];
    return members[placement_.index_of[rank] % members.size()];
  }
  Range slice(Place place, uint32_t part, uint64_t length) const {
    const uint64_t from = std::min(begin_, length);
    return {place, part, from, std::min(end_, length) - from};
  }
  Range sent(uint32_t part) const { return slice(Place::kSend, part, problem_.send_part(part)); }
  Range received(uint32_t part) const {
    return slice(Place::kReceive, part, problem_.receive_part(part));
  }
  Range scratch(uint64_t length) {
    constexpr uint64_t kAlign = 64;
    const uint64_t at = plan_.scratch_bytes;
    plan_.scratch_bytes += (length + kAlign - 1) / kAlign * kAlign;
    return {Place::kScratch, 0, at, length};
  }
  std::vector<Range> received_parts() const {
    std::vector<Range> parts(n());
    for (uint32_t rank = 0; rank < n(); ++rank) parts[rank] = received(rank);
    return parts;
  }
  // For what every rank has for all: this rank's is where it is, and comes to no other place.
  std::vector<Range> places_for_all(const Range& own) {
    std::vector<Range> places(n());
    for (uint32_t rank = 0; rank < n(); ++rank) {
      places[rank] = rank == me() ? own : scratch(own.length);
    }
    return places;
  }
  // The |index|-th of the parts of |length| bytes each that |packed| has.
  static Range unpacked(const Range& packed, size_t index, uint64_t length) {
    return {packed.place, packed.part, packed.offset + index * length, length};
  }
  // The |index|-th of |pieces| pieces of |range|, whole elements each.
  Range piece(const Range& range, uint32_t index, uint32_t pieces) const {
    const uint64_t elements = range.length / problem_.element_bytes;
    const uint64_t from = elements / pieces * index + std::min<uint64_t>(index, elements % pieces);
    const uint64_t count = elements / pieces + (index < elements % pieces ? 1 : 0);
    return {range.place, range.part, range.offset + from * problem_.element_bytes,
            count * problem_.element_bytes};
  }
  void add(StepKind kind, uint32_t peer, const Range& to, const Range& first = {},
           const Range& second = {}) {
    // Both ends leave out what both know to be empty; barriers are made of it.
    if (to.length == 0 && problem_.kind != Kind::kBarrier && parts_are_known(problem_.kind)) return;
    plan_.steps.push_back({kind, round_, peer, to, first, second});
  }
  // |to| may be one of the inputs: it is written when all of them have been read.
  void reduce(StepKind kind, const Range& to, std::span<const Range> inputs, const Range& before) {
    if (to.length == 0) return;
    Step step{kind, round_, me(), to, before, {}};
    step.inputs_at = static_cast<uint32_t>(plan_.inputs.size());
    step.inputs = static_cast<uint32_t>(inputs.size());
    plan_.inputs.insert(plan_.inputs.end(), inputs.begin(), inputs.end());
    plan_.steps.push_back(step);
  }
  void reduce(const Range& to, std::span<const Range> inputs, const Range& before = {}) {
    reduce(StepKind::kReduce, to, inputs, before);
  }
  void reduce_wide(const Range& to, std::span<const Range> inputs, const Range& before) {
    reduce(StepKind::kReduceWide, to, inputs, before);
  }
  // For what |range| comes to before it is rounded.
  Range wide(const Range& range) {
    return scratch(range.length / problem_.element_bytes * problem_.wide_bytes);
  }
  void send(uint32_t peer, const Range& what) { add(StepKind::kSend, peer, what); }
  void receive(uint32_t peer, const Range& where) { add(StepKind::kReceive, peer, where); }
  void copy(const Range& to, const Range& from) { add(StepKind::kCopy, me(), to, from); }
  void combine(const Range& to, const Range& first, const Range& second) {
    add(StepKind::kCombine, me(), to, first, second);
  }
  void next_round() { ++round_; }

  void disseminate(const Members& among);
  void broadcast_tree(const Members& among, uint32_t root, const Range& all);
  Range reduce_tree(const Members& among, uint32_t root, Range mine, const Range& out);
  void allreduce_doubling(const Members& among, const Range& own, const Range& all);
  void allreduce_ring(const Members& among, const Range& own, const Range& all);
  void barrier();
  void monitored_barrier();
  void barrier_two_level();
  void broadcast_ring();
  void broadcast_two_level();
  void reduce_ring();
  void reduce_two_level();
  void allreduce_two_level();
  void allgather_two_level(std::span<const Range> places);
  void reduce_scatter_two_level();
  void allgather(std::span<const Range> places);
  void allgather_ring();
  void reduce_scatter();
  void reduce_scatter_ring();
  void alltoall(bool at_once);
  template <typename SenderOf>
  void receive_of_clusters(uint64_t length, SenderOf&& sender_of);
  void alltoall_two_level();
  void gather();
  void gather_two_level();
  void scatter();
  void scatter_two_level();
  void scan_doubling(const Members& among, const Range& own, const Range& inclusive,
                     const Range* exclusive);
  void scan_doubling();
  void scan_ring();
  void scan_two_level();
  void copy_own();

  void gather_ring(const Members& among, const Range& all);
  std::vector<Range> collect_of_mates(uint32_t pieces);
  void hand_to_mates(uint32_t pieces);

  // These make the plans of what rounds.
  bool gathers(uint64_t length) const;
  bool chains() const { return algorithm_ == Algorithm::kTwoLevel && placement_.contiguous; }
  std::vector<Range> exchange_pieces(const Members& among, const Range& own);
  void chain(const Members& among, std::span<const Range> inputs, const Range& out);
  void allreduce_rounding();
  void allreduce_gathered();
  void allreduce_rows();
  void allreduce_by_owners();
  void allreduce_chained();
  void reduce_rounding();
  std::vector<Range> collect(const Members& among, uint32_t root, const Range& own);
  void reduce_by_owners();
  void reduce_chained();
  void reduce_scatter_chained();
  void scan_rounding();

  const Problem& problem_;
  const RankPlacement& placement_;
  const Algorithm algorithm_;
  Plan& plan_;
  uint64_t begin_;
  uint64_t end_;
  uint32_t round_ = 0;
};

}  // namespace hetcomm::collectives
