#include "pipeline/simulate/longest_path.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "pipeline/schedule/text.h"
#include "pipeline/simulate/step_time.h"

namespace hetcomm::pipeline {
namespace {

using Kind = ActionKind;
constexpr uint64_t kUnknown = UINT64_MAX;

// Link is one direction of a boundary. Items are numbered in the order in which they are sent, and
// occupy the link in this order.
class Link {
 public:
  // Opens a link whose receiver is always ready.
  void open(uint32_t micro_batches, const BoundaryTime& time) {
    time_ = time;
    arrived_.assign(micro_batches, kUnknown);
  }
  // Opens a link whose receiver is ready for an item once it has taken the item |in_flight|
  // positions earlier, and the sender has been notified of that, |credit_ns| later.
  void open_with_credits(uint32_t micro_batches, const BoundaryTime& time, uint64_t credit_ns,
                         uint32_t in_flight) {
    open(micro_batches, time);
    credit_ns_ = credit_ns;
    rings_.resize(std::min(in_flight, micro_batches));
  }
  // Opens a link whose receiver is ready for an item once it has posted a receive.
  void open_with_receives(uint32_t micro_batches, const BoundaryTime& time) {
    open(micro_batches, time);
    has_receives_ = true;
    sent_.reserve(micro_batches);
    posted_.assign(micro_batches, kUnknown);
  }
  bool is_open() const { return !arrived_.empty(); }

  // send(), post() and take() return true if the time of another transfer has become known.
  bool send(uint32_t micro_batch, uint64_t now) {
    if (has_receives_) {
      sent_.push_back({now, micro_batch});
      return resolve_posted();
    }
    if (rings_.empty()) {
      transfer({now, micro_batch}, 0);
      return true;
    }
    ring(count_++).item = {now, micro_batch};
    return resolve_credited();
  }
  bool post(uint32_t micro_batch, uint64_t now) {
    posted_[micro_batch] = now;
    return resolve_posted();
  }
  bool take(uint64_t now) {
    if (rings_.empty()) return false;
    ring(taken_++).taken_ns = now;
    return resolve_credited();
  }

  uint64_t arrived(uint32_t micro_batch) const { return arrived_[micro_batch]; }
  // Returns the time at which the buffer of an earlier item becomes free for the next item. Returns
  // 0 if the next item needs no such buffer, and kUnknown if the time is not known yet.
  uint64_t room() const {
    if (count_ < rings_.size() || rings_.empty()) return 0;
    return count_ - rings_.size() < resolved_ ? rings_[count_ % rings_.size()].left_ns : kUnknown;
  }

 private:
  struct Item {
    uint64_t sent_ns;
    uint32_t micro_batch;
  };
  // The known times of an item. The entry is reused for a later item.
  struct Entry {
    Item item;
    uint64_t left_ns;   // when the item leaves the link
    uint64_t taken_ns;  // when the receiver takes the item
  };
  Entry& ring(size_t number) { return rings_[number % rings_.size()]; }

  void transfer(const Item& item, uint64_t ready_ns) {
    free_ns_ = std::max({item.sent_ns, ready_ns, free_ns_}) + time_.busy_ns;
    arrived_[item.micro_batch] = free_ns_ + time_.latency_ns;
  }

  bool resolve_posted() {
    const size_t before = resolved_;
    for (; resolved_ < sent_.size(); ++resolved_) {
      const uint64_t ready_ns = posted_[sent_[resolved_].micro_batch];
      if (ready_ns == kUnknown) break;
      transfer(sent_[resolved_], ready_ns);
    }
    return resolved_ != before;
  }

  bool resolve_credited() {
    const size_t before = resolved_;
    for (; resolved_ < count_; ++resolved_) {
      const bool is_first = resolved_ < rings_.size();
      if (!is_first && resolved_ - rings_.size() >= taken_) break;
      // The entry still holds the time at which the earlier item was taken.
      Entry& entry = ring(resolved_);
      transfer(entry.item, is_first ? 0 : entry.taken_ns + credit_ns_);
      entry.left_ns = free_ns_;
    }
    return resolved_ != before;
  }

  BoundaryTime time_;
  uint64_t credit_ns_ = 0;
  bool has_receives_ = false;
  uint64_t free_ns_ = 0;           // when the last transfer leaves the link
  size_t resolved_ = 0;            // number of transfers whose time is known
  size_t count_ = 0;               // with credits: number of items sent
  size_t taken_ = 0;               // with credits: number of items taken
  std::vector<Entry> rings_;       // with credits: one entry for each item in flight
  std::vector<Item> sent_;         // with receives: items sent so far
  std::vector<uint64_t> posted_;   // with receives, indexed by micro-batch
  std::vector<uint64_t> arrived_;  // indexed by micro-batch
};

class PathSimulation {
 public:
  PathSimulation(const Schedule& schedule, const PipelineTimes& times,
                 const SimulateOptions& options)
      : schedule_(schedule),
        times_(times),
        options_(options),
        has_transfers_(level_of(schedule) != Level::kCompute),
        forward_(schedule.stages()),
        backward_(schedule.stages()),
        ranks_(schedule.ranks()),
        queue_(schedule.ranks()) {
    for (uint32_t stage = 0; stage < schedule.stages(); ++stage) {
      if (!schedule.crosses(stage)) continue;
      const auto time_of = [&](const std::vector<BoundaryTime>& given) {
        return given.empty() ? BoundaryTime() : given[stage];
      };
      const BoundaryTime forward = time_of(times.forward);
      const BoundaryTime backward = time_of(times.backward);
      open(forward_[stage], stage, forward, backward.latency_ns);
      open(backward_[stage], stage, backward, forward.latency_ns);
    }
    if (!options.keeps_spans) return;
    for (const std::vector<Action>& actions : schedule.actions) {
      forecast_.actions.emplace_back().reserve(actions.size());
      forecast_.bounds.emplace_back().reserve(actions.size());
    }
  }

  Result<Forecast> run() {
    for (uint32_t rank = 0; rank < schedule_.ranks(); ++rank) wake(rank);
    while (queued_ > 0) {
      const uint32_t rank = queue_[first_];
      first_ = first_ + 1 == queue_.size() ? 0 : first_ + 1;
      --queued_;
      ranks_[rank].is_queued = false;
      advance(rank);
    }
    for (uint32_t rank = 0; rank < schedule_.ranks(); ++rank) {
      const Rank& each = ranks_[rank];
      const std::vector<Action>& actions = schedule_.actions[rank];
      if (each.next != actions.size()) {
        return Status(
            Code::kInvalidArgument,
            fmt::format("rank {} can't go on at {}: the schedule is not sound, or receives "
                        "are posted in another order than the items are sent",
                        rank, to_text(actions[each.next])));
      }
      forecast_.busy_ns.push_back(each.busy_ns);
      forecast_.total_ns = std::max(forecast_.total_ns, each.clock_ns);
    }
    return std::move(forecast_);
  }

 private:
  struct Rank {
    uint64_t clock_ns = 0;
    uint64_t busy_ns = 0;
    size_t next = 0;
    bool is_queued = false;
  };

  void open(Link& link, uint32_t boundary, const BoundaryTime& time, uint64_t credit_ns) const {
    if (has_transfers_) {
      link.open_with_receives(schedule_.micro_batches, time);
    } else if (options_.in_flight.empty()) {
      link.open(schedule_.micro_batches, time);
    } else {
      link.open_with_credits(schedule_.micro_batches, time, credit_ns,
                             options_.in_flight[boundary]);
    }
  }

  // Runs the actions of |rank| whose times are known.
  void advance(uint32_t rank) {
    const std::vector<Action>& actions = schedule_.actions[rank];
    Rank& own = ranks_[rank];
    while (own.next < actions.size()) {
      const Action& action = actions[own.next];
      if (action.overlaps_next) {
        if (!perform_pair(rank, own, action, actions[own.next + 1])) return;
        own.next += 2;
        continue;
      }
      const uint64_t start_ns = std::max(own.clock_ns, ready(action));
      if (start_ns == kUnknown) return;
      const uint64_t length_ns = next_length_ns(rank);
      if (options_.keeps_spans) keep(rank, own, action, {start_ns, start_ns + length_ns});
      own.busy_ns += length_ns;
      own.clock_ns = start_ns + length_ns;
      ++own.next;
      finish(action, start_ns, own.clock_ns);
    }
  }

  bool perform_pair(uint32_t rank, Rank& own, const Action& first, const Action& second) {
    const uint64_t start_ns = std::max({own.clock_ns, ready(first), ready(second)});
    if (start_ns == kUnknown) return false;
    const uint64_t length_ns = next_length_ns(rank);
    if (options_.keeps_spans) {
      keep(rank, own, first, {start_ns, start_ns + length_ns});
      keep(rank, own, second, {start_ns, start_ns + length_ns});
    }
    own.busy_ns += length_ns;
    own.clock_ns = start_ns + length_ns;
    finish(first, start_ns, own.clock_ns);
    finish(second, start_ns, own.clock_ns);
    return true;
  }

  // Returns the length of the step, or of the pair, that begins with the next action of |rank|.
  uint64_t next_length_ns(uint32_t rank) const {
    const std::vector<Action>& actions = schedule_.actions[rank];
    const size_t at = ranks_[rank].next;
    if (!options_.lengths.empty()) return options_.lengths[rank][at];
    if (!actions[at].overlaps_next) return step_ns(times_.stages, actions[at]);
    return pair_ns(times_.stages, actions[at], actions[at + 1], times_.overlap_ppm);
  }

  // Records the span of |action|, and the reason why it did not start earlier.
  void keep(uint32_t rank, const Rank& own, const Action& action, const Span& span) {
    Bound bound = Bound::kRank;
    if (span.start_ns > own.clock_ns && span.start_ns == ready(action)) {
      bound = span.start_ns == data_ready(action) ? Bound::kData : Bound::kRoom;
    }
    forecast_.actions[rank].push_back(span);
    forecast_.bounds[rank].push_back(bound);
  }

  // Returns the time at which the data that |action| needs from another rank has arrived, or 0 if
  // it needs none.
  uint64_t data_ready(const Action& action) const {
    switch (action.kind) {
      case Kind::kForward:
      case Kind::kWaitReceiveForward:
        return arrived(forward_, action.stage, -1, action);
      case Kind::kBackward:
      case Kind::kInputGrad:
      case Kind::kWaitReceiveBackward:
        return arrived(backward_, action.stage, 0, action);
      default:
        return 0;
    }
  }

  // Returns the earliest time at which other ranks allow |action| to start, or kUnknown if it is
  // not known yet.
  uint64_t ready(const Action& action) const {
    const uint32_t stage = action.stage;
    switch (action.kind) {
      case Kind::kForward:
        return std::max(arrived(forward_, stage, -1, action), room(forward_, stage, 0));
      case Kind::kBackward:
      case Kind::kInputGrad:
        return std::max(arrived(backward_, stage, 0, action), room(backward_, stage, -1));
      case Kind::kWaitSendForward:
        return arrived(forward_, stage, 0, action);
      case Kind::kWaitReceiveForward:
        return arrived(forward_, stage, -1, action);
      case Kind::kWaitSendBackward:
        return arrived(backward_, stage, -1, action);
      case Kind::kWaitReceiveBackward:
        return arrived(backward_, stage, 0, action);
      default:
        return 0;
    }
  }

  // |back| is -1 for the boundary before |stage|, and 0 for the boundary after it.
  static uint64_t arrived(const std::vector<Link>& links, uint32_t stage, int back,
                          const Action& action) {
    if (back < 0 && stage == 0) return 0;
    const Link& link = links[stage + static_cast<uint32_t>(back)];
    return link.is_open() ? link.arrived(action.micro_batch) : 0;
  }
  static uint64_t room(const std::vector<Link>& links, uint32_t stage, int back) {
    if (back < 0 && stage == 0) return 0;
    return links[stage + static_cast<uint32_t>(back)].room();
  }

  void finish(const Action& action, uint64_t start_ns, uint64_t end_ns) {
    const uint32_t stage = action.stage;
    const uint32_t at = action.micro_batch;
    switch (action.kind) {
      case Kind::kForward:
        if (has_transfers_) return;
        if (stage > 0) take(forward_[stage - 1], start_ns, stage - 1, stage);
        send(forward_[stage], at, end_ns, stage, stage + 1);
        return;
      case Kind::kBackward:
      case Kind::kInputGrad:
        if (has_transfers_) return;
        take(backward_[stage], start_ns, stage + 1, stage);
        if (stage > 0) send(backward_[stage - 1], at, end_ns, stage, stage - 1);
        return;
      case Kind::kSendForward:
        return send(forward_[stage], at, end_ns, stage, stage + 1);
      case Kind::kSendBackward:
        return send(backward_[stage - 1], at, end_ns, stage, stage - 1);
      case Kind::kReceiveForward:
        return post(forward_[stage - 1], at, end_ns, stage - 1, stage);
      case Kind::kReceiveBackward:
        return post(backward_[stage], at, end_ns, stage + 1, stage);
      default:
        return;
    }
  }

  void send(Link& link, uint32_t micro_batch, uint64_t now, uint32_t sender, uint32_t receiver) {
    if (link.is_open() && link.send(micro_batch, now)) wake_ends(sender, receiver);
  }
  void post(Link& link, uint32_t micro_batch, uint64_t now, uint32_t sender, uint32_t receiver) {
    if (link.post(micro_batch, now)) wake_ends(sender, receiver);
  }
  void take(Link& link, uint64_t now, uint32_t sender, uint32_t receiver) {
    if (link.is_open() && link.take(now)) wake_ends(sender, receiver);
  }

  void wake_ends(uint32_t sender, uint32_t receiver) {
    wake(schedule_.rank_of[receiver]);
    if (has_transfers_ || !options_.in_flight.empty()) wake(schedule_.rank_of[sender]);
  }
  void wake(uint32_t rank) {
    if (ranks_[rank].is_queued) return;
    ranks_[rank].is_queued = true;
    const size_t at = first_ + queued_++;
    queue_[at < queue_.size() ? at : at - queue_.size()] = rank;
  }

  const Schedule& schedule_;
  const PipelineTimes& times_;
  const SimulateOptions& options_;
  const bool has_transfers_;
  std::vector<Link> forward_;   // indexed by the stage before the boundary
  std::vector<Link> backward_;  // indexed by the stage before the boundary
  std::vector<Rank> ranks_;
  std::vector<uint32_t> queue_;  // ring of ranks that may be able to continue
  size_t first_ = 0;
  size_t queued_ = 0;
  Forecast forecast_;
};

Status check_options(const Schedule& schedule, const SimulateOptions& options) {
  const std::vector<uint32_t>& given = options.in_flight;
  if (!given.empty() && given.size() + 1 != schedule.stages()) {
    return Status(Code::kInvalidArgument,
                  fmt::format("items in flight are given for {} boundaries of {} stages",
                              given.size(), schedule.stages()));
  }
  if (std::count(given.begin(), given.end(), 0u) != 0) {
    return Status(Code::kInvalidArgument, "a boundary needs one item in flight at least");
  }
  return options.lengths.empty() ? Status() : check_lengths(options.lengths, schedule);
}

}  // namespace

Status check_times(const Schedule& schedule, const PipelineTimes& times) {
  const size_t stages = schedule.stages();
  if (times.stages.size() != stages) {
    return Status(Code::kInvalidArgument, fmt::format("times of {} stages for a schedule of {}",
                                                      times.stages.size(), stages));
  }
  for (const auto* boundaries : {&times.forward, &times.backward}) {
    if (boundaries->empty() || boundaries->size() + 1 == stages) continue;
    return Status(Code::kInvalidArgument,
                  fmt::format("times of {} boundaries for a schedule of {} stages",
                              boundaries->size(), stages));
  }
  return check_length(times, schedule.micro_batches);
}

Result<Forecast> simulate(const Schedule& schedule, const PipelineTimes& times,
                          const SimulateOptions& options) {
  HETCOMM_RETURN_IF_ERROR(check_times(schedule, times));
  HETCOMM_RETURN_IF_ERROR(check_options(schedule, options));
  return PathSimulation(schedule, times, options).run();
}

}  // namespace hetcomm::pipeline
