#include "pipeline/schedule/lower.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace hetcomm::pipeline {
namespace {

using Kind = ActionKind;

Action with_kind(const Action& action, Kind kind) {
  return {.micro_batch = action.micro_batch, .stage = action.stage, .kind = kind};
}

// Returns the kind of the receive whose data |action| needs from another rank, if any. A
// recomputation (R) needs none, although the I that follows it does: the gradient can arrive while
// R runs.
std::optional<Kind> receive_for(const Schedule& schedule, const Action& action) {
  if (action.kind == Kind::kForward) {
    if (action.stage > 0 && schedule.crosses(action.stage - 1u)) return Kind::kReceiveForward;
  } else if (gives_input_grad(action.kind) && schedule.crosses(action.stage)) {
    return Kind::kReceiveBackward;
  }
  return std::nullopt;
}

// Returns the kind of the send that transfers the result of |action| to another rank, if any.
std::optional<Kind> send_after(const Schedule& schedule, const Action& action) {
  if (action.kind == Kind::kForward) {
    if (schedule.crosses(action.stage)) return Kind::kSendForward;
  } else if (gives_input_grad(action.kind) && action.stage > 0 &&
             schedule.crosses(action.stage - 1u)) {
    return Kind::kSendBackward;
  }
  return std::nullopt;
}

Kind wait_of(Kind transfer) {
  switch (transfer) {
    case Kind::kSendForward:
      return Kind::kWaitSendForward;
    case Kind::kReceiveForward:
      return Kind::kWaitReceiveForward;
    case Kind::kSendBackward:
      return Kind::kWaitSendBackward;
    default:
      return Kind::kWaitReceiveBackward;
  }
}

// ByDirection holds a value for each stage of one rank and each direction.
template <class T>
class ByDirection {
 public:
  T& at(Kind kind, uint32_t stage) {
    const bool is_backward =
        kind != Kind::kForward && kind != Kind::kSendForward && kind != Kind::kReceiveForward;
    return all_[{stage, is_backward}];
  }
  template <class Use>
  void for_each(Use&& use) {
    for (auto& [key, value] : all_) use(value);
  }

 private:
  std::map<std::pair<uint32_t, bool>, T> all_;
};

// Posts the receives of one rank ahead of the steps that need them.
class ReceivePoster {
 public:
  ReceivePoster(const Schedule& schedule, const std::vector<Action>& actions, uint32_t ahead)
      : schedule_(schedule), ahead_(ahead) {
    for (const Action& action : actions) {
      const std::optional<Kind> kind = receive_for(schedule, action);
      if (kind) lines_.at(action.kind, action.stage).receives.push_back(with_kind(action, *kind));
    }
  }
  // Appends the receives that have to be posted before |action|.
  void post_before(const Action& action, std::vector<Action>& out) {
    if (!receive_for(schedule_, action)) return;
    Line& line = lines_.at(action.kind, action.stage);
    const size_t end = std::min(line.receives.size(), size_t{++line.steps} + ahead_);
    for (; line.posted < end; ++line.posted) out.push_back(line.receives[line.posted]);
  }
  // Appends the receives that have to be posted at the beginning.
  void post_first(const std::vector<Action>& actions, std::vector<Action>& out) {
    for (const Action& action : actions) {
      if (!receive_for(schedule_, action)) continue;
      Line& line = lines_.at(action.kind, action.stage);
      const size_t end = std::min<size_t>(line.receives.size(), ahead_);
      for (; line.posted < end; ++line.posted) out.push_back(line.receives[line.posted]);
    }
  }

 private:
  struct Line {
    std::vector<Action> receives;  // in the order of the steps that need them
    size_t posted = 0;
    size_t steps = 0;
  };
  const Schedule& schedule_;
  const size_t ahead_;
  ByDirection<Line> lines_;
};

// Calls use(first, count) for each single action and for each pair that can overlap.
template <class Use>
void for_each_group(const std::vector<Action>& actions, Use&& use) {
  for (size_t i = 0; i < actions.size();) {
    const size_t count = actions[i].overlaps_next ? 2 : 1;
    use(&actions[i], count);
    i += count;
  }
}

std::vector<Action> with_transfers(const Schedule& schedule, const std::vector<Action>& actions,
                                   uint32_t ahead) {
  std::vector<Action> out;
  ReceivePoster poster(schedule, actions, ahead);
  poster.post_first(actions, out);
  for_each_group(actions, [&](const Action* group, size_t count) {
    for (size_t i = 0; i < count; ++i) poster.post_before(group[i], out);
    out.insert(out.end(), group, group + count);
    for (size_t i = 0; i < count; ++i) {
      const std::optional<Kind> kind = send_after(schedule, group[i]);
      if (kind) out.push_back(with_kind(group[i], *kind));
    }
  });
  return out;
}

// The sends of one stage in one direction, oldest first. The first |waited| already have a wait.
struct OpenSends {
  std::vector<Action> sends;
  size_t waited = 0;
  // Appends waits until fewer than |most| sends are without one.
  void wait_below(size_t most, std::vector<Action>& out) {
    while (sends.size() - waited >= most) {
      out.push_back(with_kind(sends[waited], wait_of(sends[waited].kind)));
      ++waited;
    }
  }
};

std::vector<Action> with_waits(const Schedule& schedule, const std::vector<Action>& actions,
                               SendWaits where, uint32_t buffers) {
  std::vector<Action> out;
  ByDirection<OpenSends> open;
  for_each_group(actions, [&](const Action* group, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const std::optional<Kind> kind = receive_for(schedule, group[i]);
      if (kind) out.push_back(with_kind(group[i], wait_of(*kind)));
      if (where == SendWaits::kBeforeReuse && send_after(schedule, group[i])) {
        open.at(group[i].kind, group[i].stage).wait_below(buffers, out);
      }
    }
    out.insert(out.end(), group, group + count);
    if (!is_send(group->kind)) return;
    OpenSends& sends = open.at(group->kind, group->stage);
    sends.sends.push_back(*group);
    if (where == SendWaits::kAtOnce) sends.wait_below(1, out);
  });
  open.for_each([&](OpenSends& each) { each.wait_below(1, out); });
  return out;
}

// Returns the forward steps of one rank, and the actions that gather and free weights around them.
std::vector<Action> forward_steps(const std::vector<Action>& actions) {
  std::vector<Action> kept;
  // Keyed by stage: the gather whose weights no step has used yet.
  std::map<uint32_t, size_t> unused;
  std::set<size_t> dropped;
  for (const Action& action : actions) {
    switch (action.kind) {
      case Kind::kUnshard:
        unused[action.stage] = kept.size();
        break;
      case Kind::kReshard:
        if (const auto gather = unused.find(action.stage); gather != unused.end()) {
          dropped.insert({gather->second, kept.size()});
          unused.erase(gather);
        }
        break;
      case Kind::kForward:
        unused.erase(action.stage);
        break;
      default:
        if (!kept.empty()) kept.back().overlaps_next = false;
        continue;
    }
    kept.push_back(action);
  }
  if (!kept.empty()) kept.back().overlaps_next = false;
  for (const auto& [stage, gather] : unused) dropped.insert(gather);
  std::vector<Action> out;
  for (size_t i = 0; i < kept.size(); ++i) {
    if (!dropped.contains(i)) out.push_back(kept[i]);
  }
  return out;
}

}  // namespace

Schedule add_reductions(Schedule schedule) {
  for (std::vector<Action>& actions : schedule.actions) {
    std::map<uint32_t, size_t> last;  // by stage: one past its last step that changes the gradients
    std::set<uint32_t> reduced;
    for (const Action& each : actions) {
      if (each.kind == Kind::kReduceGradient) reduced.insert(each.stage);
    }
    for (size_t i = 0; i < actions.size(); ++i) {
      if (!gives_weight_grad(actions[i].kind) || reduced.contains(actions[i].stage)) continue;
      last[actions[i].stage] = i + 1 + (actions[i].overlaps_next ? 1 : 0);
    }
    std::multimap<size_t, uint32_t> due;
    for (const auto& [stage, end] : last) due.emplace(end, stage);
    std::vector<Action> out;
    auto next = due.begin();
    for (size_t i = 0; i < actions.size(); ++i) {
      out.push_back(actions[i]);
      for (; next != due.end() && next->first == i + 1; ++next) {
        out.push_back(
            {.stage = static_cast<uint16_t>(next->second), .kind = Kind::kReduceGradient});
      }
    }
    actions = std::move(out);
  }
  return schedule;
}

Schedule add_transfers(const Schedule& schedule, uint32_t ahead) {
  Schedule out = schedule;
  for (std::vector<Action>& actions : out.actions) {
    actions = with_transfers(schedule, actions, ahead);
  }
  return out;
}

Schedule add_waits(const Schedule& schedule, SendWaits where, uint32_t buffers) {
  Schedule out = schedule;
  for (std::vector<Action>& actions : out.actions) {
    actions = with_waits(schedule, actions, where, buffers);
  }
  return out;
}

Schedule computations_of(Schedule schedule) {
  for (std::vector<Action>& actions : schedule.actions) {
    std::erase_if(actions, [](const Action& each) {
      return is_send(each.kind) || is_receive(each.kind) || is_wait(each.kind) ||
             each.kind == Kind::kBubble;
    });
  }
  return schedule;
}

Schedule forward_steps_of(Schedule schedule) {
  for (std::vector<Action>& actions : schedule.actions) actions = forward_steps(actions);
  return schedule;
}

}  // namespace hetcomm::pipeline
