#include "src/core/peer/plan_board.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace hetcomm {
namespace {

constexpr size_t kMaxNamed = 8;  // tags in a text

}  // namespace

PlanBoard::Peer* PlanBoard::Entry::find(int rank) {
  const auto found =
      std::find_if(peers.begin(), peers.end(), [&](const Peer& each) { return each.rank == rank; });
  return found == peers.end() ? nullptr : &*found;
}

const PlanBoard::Peer* PlanBoard::Entry::find(int rank) const {
  return const_cast<Entry*>(this)->find(rank);
}

// --- the plans of this rank ---------------------------------------------------

void PlanBoard::add(BoardedPlan& plan, Terms terms) {
  Entry entry{.plan = &plan, .tag = terms.tag, .content = terms.content, .peers = {}};
  entries_.reserve(entries_.size() + 1);
  for (const int rank : terms.ranks) {
    entry.peers.push_back({.rank = rank, .number = next_[{rank, terms.tag}]});
  }
  for (const int rank : terms.ranks) ++next_[{rank, terms.tag}];
  entries_.push_back(std::move(entry));
}

// A note that waits may be of a plan that is gone since. So what stands in its place and differs is
// not said to: this rank will start it, and the peer compares what it has then.
std::vector<PlanBoard::Answer> PlanBoard::catch_up(BoardedPlan& plan) {
  std::vector<Answer> answers;
  for (size_t i = 0; i < waiting_.size();) {
    const Match match = find_partner(waiting_[i].rank, waiting_[i].note);
    if (match.entry == nullptr || match.entry->plan != &plan) {
      ++i;
      continue;
    }
    const Waiting own = std::move(waiting_[i]);
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
    tell(*match.entry, own.rank, own.note, &answers);
    if (own.note.action == PlanAction::kStarted) {
      answers.push_back({own.rank, answer_to(own.note, PlanAction::kHas)});
    }
  }
  return answers;
}

// Which plans of peers belonged to it is remembered until these are gone, too: what they still say of
// them is for nobody else.
void PlanBoard::remove(BoardedPlan& plan) {
  for (Entry& entry : entries_) {
    if (entry.plan != &plan) continue;
    entry.plan = nullptr;
    std::erase_if(entry.peers, [](const Peer& peer) { return peer.theirs == kUnknown; });
  }
  std::erase_if(entries_,
                [](const Entry& entry) { return entry.plan == nullptr && entry.peers.empty(); });
}

uint32_t PlanBoard::number_of(const BoardedPlan& plan, int rank) const {
  for (const Entry& entry : entries_) {
    if (entry.plan != &plan) continue;
    const Peer* const peer = entry.find(rank);
    return peer == nullptr ? kUnknown : peer->number;
  }
  return kUnknown;
}

// --- what peers say -----------------------------------------------------------

PlanBoard::Match PlanBoard::find_own(int rank, uint64_t tag, uint32_t number) {
  for (Entry& entry : entries_) {
    Peer* const peer = entry.tag == tag && entry.plan != nullptr ? entry.find(rank) : nullptr;
    if (peer != nullptr && peer->number == number) return {&entry, peer};
  }
  return {};
}

// The plan that belongs to the one of |note|.
PlanBoard::Match PlanBoard::find_partner(int rank, const PlanNote& note) {
  Match found;
  for (Entry& entry : entries_) {
    if (entry.tag != note.tag || entry.content != note.body.content) continue;
    Peer* const peer = entry.find(rank);
    if (peer == nullptr) continue;
    if (peer->theirs == note.body.number) return {&entry, peer};
    if (peer->theirs != kUnknown || entry.plan == nullptr) continue;
    if (found.entry == nullptr || peer->number == note.body.number) found = {&entry, peer};
  }
  if (found.peer != nullptr) found.peer->theirs = note.body.number;
  return found;
}

// The plan that stands in its place and has another hash.
PlanBoard::Match PlanBoard::find_other(int rank, const PlanNote& note) {
  const Match own = find_own(rank, note.tag, note.body.number);
  return own.peer != nullptr && own.peer->theirs == kUnknown ? own : Match{};
}

// The receiver of the answer knows its own plan by tag and number.
PlanNote PlanBoard::answer_to(const PlanNote& note, PlanAction action) {
  PlanNote answer{.action = action, .tag = note.tag, .body = {}, .text = {}};
  answer.body.channel = note.body.reply_channel;
  answer.body.reply_channel = note.body.channel;
  answer.body.number = note.body.number;
  return answer;
}

// Hands |note| to the plan that belongs to its plan. The peer hears of one that stands in its place; if
// it has its own still, it says so, and both end.
void PlanBoard::tell(Entry& entry, int rank, const PlanNote& note, std::vector<Answer>* answers) {
  if (entry.plan == nullptr) return;
  BoardedPlan& plan = *entry.plan;
  if (entry.content != note.body.content) {
    PlanNote answer = answer_to(note, PlanAction::kDiffers);
    answer.body.content = entry.content;
    answers->push_back({rank, std::move(answer)});
  } else if (note.action == PlanAction::kStarted) {
    plan.peer_lacks(rank, {});
  } else {
    plan.peer_says(rank, note);
  }
}

// What there is in place of the plan of |note|, for people.
std::string PlanBoard::others(int rank, const PlanNote& note) const {
  std::set<uint64_t> shared;
  bool has_tag = false;
  for (const Entry& entry : entries_) {
    if (entry.plan == nullptr) continue;
    if (entry.find(rank) != nullptr) {
      shared.insert(entry.tag);
    } else {
      has_tag = has_tag || entry.tag == note.tag;
    }
  }
  if (shared.contains(note.tag)) {
    return fmt::format("it has made {} with tag {} so far", next_.find({rank, note.tag})->second,
                       note.tag);
  }
  std::string text;
  if (!shared.empty()) {
    const bool more = shared.size() > kMaxNamed;
    while (shared.size() > kMaxNamed) shared.erase(std::prev(shared.end()));
    text = fmt::format("it has tag {}{}", fmt::join(shared, ", tag "), more ? " and more" : "");
  }
  if (has_tag) {
    text += fmt::format("{} tag {} with other ranks", text.empty() ? "it has" : " and", note.tag);
  }
  return text.empty() ? "it has none of any tag" : text;
}

void PlanBoard::forget(int rank, const PlanNote& note) {
  std::erase_if(waiting_, [&](const Waiting& each) {
    return each.rank == rank && each.note.tag == note.tag &&
           each.note.body.number == note.body.number;
  });
  // A plan that is there stays joined to the one that is gone, if both have the same number: another
  // one of the peer is not its. One that was joined for want of a better one is free again.
  for (Entry& entry : entries_) {
    if (entry.tag != note.tag) continue;
    if (entry.plan != nullptr) {
      for (Peer& each : entry.peers) {
        const bool is_guess = each.number != note.body.number;
        if (each.rank == rank && each.theirs == note.body.number && is_guess) {
          each.theirs = kUnknown;
        }
      }
      continue;
    }
    std::erase_if(entry.peers, [&](const Peer& each) {
      return each.rank == rank && each.theirs == note.body.number;
    });
  }
  std::erase_if(entries_,
                [](const Entry& entry) { return entry.plan == nullptr && entry.peers.empty(); });
}

// Whether it is |rank| whose notes are too many.
bool PlanBoard::is_flooded_by(int rank) const {
  return static_cast<size_t>(std::count_if(
             waiting_.begin(), waiting_.end(),
             [&](const Waiting& each) { return each.rank == rank; })) >= kMaxWaiting / 2;
}

bool PlanBoard::receive(int rank, const PlanNote& note, std::vector<Answer>* answers) {
  switch (note.action) {
    case PlanAction::kDiffers:
    case PlanAction::kLacks:
    case PlanAction::kHas: {
      const Match own = find_own(rank, note.tag, note.body.number);
      if (own.entry == nullptr) return true;
      if (note.action == PlanAction::kDiffers) {
        if (note.body.confirmed == 0) {
          PlanNote answer = answer_to(note, PlanAction::kDiffers);
          answer.body.content = own.entry->content;
          answer.body.confirmed = 1;
          answers->push_back({rank, std::move(answer)});
        }
        own.entry->plan->peer_differs(rank, note.body.content);
      } else {
        const bool has = note.action == PlanAction::kHas;
        own.entry->plan->peer_lacks(rank, has ? std::string_view() : note.text);
      }
      return true;
    }
    case PlanAction::kGone:
      forget(rank, note);
      return true;
    case PlanAction::kPastLast:
      return true;
    case PlanAction::kStarted:
    case PlanAction::kGivenUp:
    case PlanAction::kLabelled:
      break;
  }
  Match match = find_partner(rank, note);
  if (match.entry == nullptr) match = find_other(rank, note);
  if (match.entry != nullptr) {
    tell(*match.entry, rank, note, answers);
    return true;
  }
  if (waiting_.size() >= kMaxWaiting && is_flooded_by(rank)) return false;
  waiting_.push_back({rank, note});
  if (note.action != PlanAction::kStarted) return true;
  PlanNote answer = answer_to(note, PlanAction::kLacks);
  answer.text = others(rank, note);
  answers->push_back({rank, std::move(answer)});
  return true;
}

}  // namespace hetcomm
