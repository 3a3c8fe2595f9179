#include "src/core/peer/matching/reshard_board.h"

#include <iterator>
#include <new>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/base/room.h"

namespace hetcomm {
namespace {

constexpr size_t kMaxNamed = 8;  // the most tags that a text lists

}  // namespace

// --- the plans of this rank ---------------------------------------------------

void ReshardBoard::add(BoardedReshard& plan, Terms terms) {
  Entry& entry = entries_.emplace_back(
      Entry{.plan = &plan, .tag = terms.tag, .content = terms.content, .peers = {}, .self = {}});
  entry.self = std::prev(entries_.end());
  try {
    by_plan_.emplace(&plan, &entry);
    tags_.try_emplace(terms.tag, 0);
    for (const int rank : terms.ranks) {
      const uint32_t number = next_.try_emplace({rank, terms.tag}, 0).first->second;
      entry.peers.emplace(rank, Peer{.number = number});
      own_.emplace(OwnKey{rank, terms.tag, number}, &entry);
      free_.emplace(FreeKey{rank, terms.tag, terms.content, number}, &entry);
      silent_.insert({rank, terms.tag, terms.content, number});
    }
  } catch (const std::bad_alloc&) {
    take_back(entry);
    throw;
  }
  ++tags_.find(terms.tag)->second;
  for (const int rank : terms.ranks) ++next_.find({rank, terms.tag})->second;
}

// Removes |entry|, the last one, after add() has failed. The entry has not been counted.
void ReshardBoard::take_back(Entry& entry) {
  by_plan_.erase(entry.plan);
  for (const auto& [rank, peer] : entry.peers) {
    own_.erase({rank, entry.tag, peer.number});
    free_.erase({rank, entry.tag, entry.content, peer.number});
    silent_.erase({rank, entry.tag, entry.content, peer.number});
    if (peer.number == 0) next_.erase({rank, entry.tag});
  }
  if (const auto count = tags_.find(entry.tag); count != tags_.end() && count->second == 0) {
    tags_.erase(count);
  }
  entries_.pop_back();
}

// Removes the plan of |entry|. Peers with a matching plan stay in the entry.
void ReshardBoard::unlist(Entry& entry) {
  by_plan_.erase(entry.plan);
  entry.plan = nullptr;
  if (const auto count = tags_.find(entry.tag); --count->second == 0) tags_.erase(count);
  for (auto each = entry.peers.begin(); each != entry.peers.end();) {
    const auto& [rank, peer] = *each;
    own_.erase({rank, entry.tag, peer.number});
    silent_.erase({rank, entry.tag, entry.content, peer.number});
    if (peer.theirs != kUnknown && !peer.is_gone) {
      ++each;
      continue;
    }
    if (peer.is_gone) {
      theirs_.erase({rank, entry.tag, peer.theirs, entry.content});
    } else {
      free_.erase({rank, entry.tag, entry.content, peer.number});
    }
    each = entry.peers.erase(each);
  }
}

// Keeps a record of the peers' plans that matched |plan| until those are gone, too. Later notes
// about them are thus not delivered to another plan.
void ReshardBoard::remove(BoardedReshard& plan) {
  const auto known = by_plan_.find(&plan);
  if (known == by_plan_.end()) return;
  Entry& entry = *known->second;
  unlist(entry);
  if (entry.peers.empty()) entries_.erase(entry.self);
}

uint16_t ReshardBoard::note_told(const BoardedReshard& plan, int rank) {
  const auto known = by_plan_.find(&plan);
  if (known == by_plan_.end()) return 0;
  const Entry& entry = *known->second;
  const FreeKey key{rank, entry.tag, entry.content, number_of(plan, rank)};
  uint16_t count = 0;
  auto each = silent_.lower_bound({rank, entry.tag, entry.content, 0});
  for (; count < kMaxOlder && each != silent_.end() && *each < key; ++each) ++count;
  silent_.erase(key);
  return count;
}

bool ReshardBoard::was_told(const BoardedReshard& plan, int rank) const {
  const auto known = by_plan_.find(&plan);
  if (known == by_plan_.end()) return false;
  const Entry& entry = *known->second;
  return !silent_.contains({rank, entry.tag, entry.content, number_of(plan, rank)});
}

uint32_t ReshardBoard::number_of(const BoardedReshard& plan, int rank) const {
  const auto known = by_plan_.find(&plan);
  if (known == by_plan_.end()) return kUnknown;
  const auto peer = known->second->peers.find(rank);
  return peer == known->second->peers.end() ? kUnknown : peer->second.number;
}

// --- waiting notes ------------------------------------------------------------

// Keeps |note| until its plan is made. If this throws, nothing has changed.
void ReshardBoard::wait(int rank, const ReshardNote& note) {
  size_t& own_count = waiting_of_[rank];
  const NoteKey key = key_of(rank, note);
  const TheirKey number{rank, note.tag, note.body.number, note.body.content};
  waiting_numbers_.insert(number);
  try {
    waiting_[key].push_back(note);
  } catch (const std::bad_alloc&) {
    const auto own = waiting_.find(key);
    if (own != waiting_.end() && own->second.empty()) waiting_.erase(own);
    if (!waiting_.contains(key)) waiting_numbers_.erase(number);
    throw;
  }
  ++own_count;
  ++waiting_count_;
}

// Removes the oldest waiting note for |key| and stores it in |*out|. Returns false if none is left.
bool ReshardBoard::take_waiting(const NoteKey& key, ReshardNote* out) {
  const auto [rank, tag, content, number] = key;
  const auto found = waiting_.find(key);
  if (found == waiting_.end() || found->second.empty()) {
    if (found != waiting_.end()) waiting_.erase(found);
    waiting_numbers_.erase({rank, tag, number, content});
    return false;
  }
  *out = std::move(found->second.front());
  found->second.pop_front();
  --waiting_of_[rank];
  --waiting_count_;
  return true;
}

// Finds the key of waiting notes of rank |rank| that may be for |entry|, and stores it in |*out|.
// Returns false if there are none. |peer| is the state of that rank in |entry|.
bool ReshardBoard::find_waiting(int rank, const Entry& entry, const Peer& peer,
                                NoteKey* out) const {
  const bool is_joined = peer.theirs != kUnknown;
  *out = {rank, entry.tag, entry.content, is_joined ? peer.theirs : peer.number};
  if (waiting_.contains(*out)) return true;
  const auto lowest = waiting_.lower_bound({rank, entry.tag, entry.content, 0});
  if (is_joined || lowest == waiting_.end()) return false;
  *out = {rank, entry.tag, entry.content, std::get<3>(lowest->first)};
  return *out == lowest->first;
}

// A waiting note can be about a plan that no longer exists, so it is not compared with a plan that
// has the same number but a different hash. This rank will announce that plan, and the peer then
// compares it with its own.
std::vector<ReshardBoard::Answer> ReshardBoard::catch_up(BoardedReshard& plan) {
  std::vector<Answer> answers;
  const auto known = by_plan_.find(&plan);
  if (waiting_.empty() || known == by_plan_.end()) return answers;
  Entry& entry = *known->second;
  std::vector<Caught> caught;
  try {
    catch_notes(entry, &caught);
    for (const Caught& each : caught) {
      for (const ReshardNote& note : waiting_.at(each.key)) {
        tell(entry, std::get<0>(each.key), note, &answers);
        if (note.action != ReshardAction::kStarted) continue;
        answers.push_back({std::get<0>(each.key), answer_to(note, ReshardAction::kHas)});
      }
    }
  } catch (const std::bad_alloc&) {
    for (Caught& each : caught) let_go(entry, each);
    throw;
  }
  for (const Caught& each : caught) {
    ReshardNote told;
    while (take_waiting(each.key, &told)) {
    }
  }
  return answers;
}

// Matches |entry| with the peers' plans whose notes are waiting for it.
void ReshardBoard::catch_notes(Entry& entry, std::vector<Caught>* out) {
  out->reserve(entry.peers.size());
  for (auto& [rank, peer] : entry.peers) {
    NoteKey key;
    if (!find_waiting(rank, entry, peer, &key)) continue;
    const TheirKey their_key = their_key_of(key);
    if (const auto joined = theirs_.find(their_key); joined != theirs_.end()) {
      if (joined->second == &entry) out->push_back({key, {}});
      continue;
    }
    const auto found = find_free(key, waiting_.at(key).front().body.older);
    if (found == free_.end() || found->second != &entry) continue;
    theirs_.emplace(their_key, &entry);
    peer.theirs = std::get<3>(key);
    out->push_back({key, free_.extract(found)});
  }
}

// Undoes the match |caught| that catch_notes() made for |entry|, because the notes could not be
// delivered. Allocates nothing.
void ReshardBoard::let_go(Entry& entry, Caught& caught) {
  if (caught.free.empty() || entry.plan == nullptr) return;
  theirs_.erase(their_key_of(caught.key));
  entry.peers.find(std::get<0>(caught.key))->second.theirs = kUnknown;
  free_.insert(std::move(caught.free));
}

// --- notes from peers -----------------------------------------------------------

ReshardBoard::Match ReshardBoard::find_own(int rank, uint64_t tag, uint32_t number) {
  const auto found = own_.find({rank, tag, number});
  if (found == own_.end()) return {};
  return {found->second, &found->second->peers.at(rank)};
}

// Finds this rank's plan that matches the plan of rank |rank| with |key|. Records the match if it
// is new.
ReshardBoard::Match ReshardBoard::find_partner(int rank, const NoteKey& key, uint16_t older) {
  const TheirKey their_key = their_key_of(key);
  if (const auto known = theirs_.find(their_key); known != theirs_.end()) {
    return {known->second, &known->second->peers.at(rank)};
  }
  const auto found = find_free(key, older);
  if (found == free_.end()) return {};
  Entry& entry = *found->second;
  theirs_.emplace(their_key, &entry);
  free_.erase(found);
  Peer& peer = entry.peers.at(rank);
  peer.theirs = std::get<3>(key);
  return {&entry, &peer};
}

// Finds the plan for |key| among the plans that no plan of the peer matches yet. The result has the
// number in |key|, or else |older| equal plans precede it. Finds nothing by order if |older| is at
// its limit, or while a note with a lower number is waiting.
ReshardBoard::FreePlans::iterator ReshardBoard::find_free(const NoteKey& key, uint16_t older) {
  auto found = free_.find(key);
  if (found != free_.end()) return found;
  const auto& [rank, tag, content, number] = key;
  const FreeKey first{rank, tag, content, 0};
  const auto waiting = waiting_.lower_bound(first);
  if (older >= kMaxOlder || (waiting != waiting_.end() && waiting->first < key)) return free_.end();
  found = free_.lower_bound(first);
  for (; found != free_.end(); ++found, --older) {
    const auto& [free_rank, free_tag, free_content, free_number] = found->first;
    if (free_rank != rank || free_tag != tag || free_content != content) return free_.end();
    if (older == 0) return found;
  }
  return found;
}

// Finds this rank's plan with the tag and number of |note|, unless a plan of the peer matches it.
// Its hash differs from the note's, since no plan matched the note.
ReshardBoard::Match ReshardBoard::find_other(int rank, const ReshardNote& note) {
  const Match own = find_own(rank, note.tag, note.body.number);
  return own.peer != nullptr && own.peer->theirs == kUnknown ? own : Match{};
}

// Makes an answer to |note|. The receiver of the answer finds its own plan by tag and number.
ReshardNote ReshardBoard::answer_to(const ReshardNote& note, ReshardAction action) {
  ReshardNote answer{.action = action, .tag = note.tag, .body = {}, .text = {}};
  answer.body.channel = note.body.reply_channel;
  answer.body.reply_channel = note.body.channel;
  answer.body.number = note.body.number;
  return answer;
}

// Delivers |note| to the plan of |entry|, if that plan still exists. If the plan's hash differs
// from the note's, answers with kDiffers instead. If the peer's plan still exists, the peer then
// confirms the difference, and both plans fail.
void ReshardBoard::tell(Entry& entry, int rank, const ReshardNote& note,
                        std::vector<Answer>* answers) {
  if (entry.plan == nullptr) return;
  BoardedReshard& plan = *entry.plan;
  if (entry.content != note.body.content) {
    ReshardNote answer = answer_to(note, ReshardAction::kDiffers);
    answer.body.content = entry.content;
    answers->push_back({rank, std::move(answer)});
  } else if (note.action == ReshardAction::kStarted) {
    plan.peer_lacks(rank, {});
  } else {
    plan.peer_says(rank, note);
  }
}

// Returns a readable text about the plans that this rank has instead of the one that |note| names.
std::string ReshardBoard::others(int rank, const ReshardNote& note) const {
  const auto next_of = [&](uint64_t tag) { return own_.lower_bound({rank, tag, 0}); };
  const auto is_of = [&](auto each) {
    return each != own_.end() && std::get<0>(each->first) == rank;
  };
  if (const auto same = next_of(note.tag); is_of(same) && std::get<1>(same->first) == note.tag) {
    return fmt::format("it has made {} with tag {} so far", next_.find({rank, note.tag})->second,
                       note.tag);
  }
  std::vector<uint64_t> shared;
  auto each = next_of(0);
  for (; is_of(each) && shared.size() < kMaxNamed;) {
    shared.push_back(std::get<1>(each->first));
    each = own_.upper_bound({rank, shared.back(), ~uint32_t{0}});
  }
  std::string text;
  if (!shared.empty()) {
    text =
        fmt::format("it has tag {}{}", fmt::join(shared, ", tag "), is_of(each) ? " and more" : "");
  }
  if (tags_.contains(note.tag)) {
    text += fmt::format("{} tag {} with other ranks", text.empty() ? "it has" : " and", note.tag);
  }
  return text.empty() ? "it has none of any tag" : text;
}

void ReshardBoard::forget(int rank, const ReshardNote& note) {
  const uint32_t number = note.body.number;
  const auto is_named = [&](const TheirKey& key) {
    const auto& [of, tag, theirs, content] = key;
    return of == rank && tag == note.tag && theirs == number;
  };
  const TheirKey first{rank, note.tag, number, 0};
  for (auto each = waiting_numbers_.lower_bound(first);
       each != waiting_numbers_.end() && is_named(*each);
       each = waiting_numbers_.lower_bound(first)) {
    const NoteKey key{rank, note.tag, std::get<3>(*each), number};
    ReshardNote dropped;
    while (take_waiting(key, &dropped)) {
    }
  }
  // An existing plan stays matched with the peer's destroyed plan if both have the same number,
  // since no other plan of the peer can match it. A plan that was matched by order can be matched
  // again.
  for (auto each = theirs_.lower_bound(first); each != theirs_.end() && is_named(each->first);) {
    Entry& entry = *each->second;
    Peer& peer = entry.peers.at(rank);
    if (entry.plan != nullptr && peer.number == number) {
      peer.is_gone = true;
      ++each;
      continue;
    }
    if (entry.plan != nullptr) {
      free_.emplace(FreeKey{rank, entry.tag, entry.content, peer.number}, &entry);
      peer.theirs = kUnknown;
    } else {
      entry.peers.erase(rank);
    }
    each = theirs_.erase(each);
    if (entry.plan == nullptr && entry.peers.empty()) entries_.erase(entry.self);
  }
}

bool ReshardBoard::receive(int rank, const ReshardNote& note, std::vector<Answer>* answers) {
  switch (note.action) {
    case ReshardAction::kDiffers:
    case ReshardAction::kLacks:
    case ReshardAction::kHas: {
      const Match own = find_own(rank, note.tag, note.body.number);
      if (own.entry == nullptr) return true;
      if (note.action == ReshardAction::kDiffers) {
        if (note.body.confirmed == 0) {
          ReshardNote answer = answer_to(note, ReshardAction::kDiffers);
          answer.body.content = own.entry->content;
          answer.body.confirmed = 1;
          answers->push_back({rank, std::move(answer)});
        }
        own.entry->plan->peer_differs(rank, note.body.content);
      } else {
        const bool has = note.action == ReshardAction::kHas;
        own.entry->plan->peer_lacks(rank, has ? std::string_view() : note.text);
      }
      return true;
    }
    case ReshardAction::kGone:
      forget(rank, note);
      return true;
    case ReshardAction::kPastLast:
      return true;
    case ReshardAction::kStarted:
    case ReshardAction::kGivenUp:
    case ReshardAction::kLabelled:
      break;
  }
  Match match = find_partner(rank, key_of(rank, note), note.body.older);
  if (match.entry == nullptr) match = find_other(rank, note);
  if (match.entry != nullptr) {
    tell(*match.entry, rank, note, answers);
    return true;
  }
  if (waiting_count_ >= kMaxWaiting && waiting_of_[rank] >= kMaxWaiting / 2) return false;
  if (note.action != ReshardAction::kStarted) {
    wait(rank, note);
    return true;
  }
  ReshardNote answer = answer_to(note, ReshardAction::kLacks);
  answer.text = others(rank, note);
  make_room(*answers);
  wait(rank, note);
  answers->push_back({rank, std::move(answer)});
  return true;
}

}  // namespace hetcomm
