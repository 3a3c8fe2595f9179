// ReshardBoard: the reshard plans that this rank has made on one communicator, and what other ranks
// report of theirs. Below, a plan is a reshard plan.
//
// Ranks do not exchange plans. Each rank numbers those that it has made with the same peer and tag,
// and tells its peers the tag, the number and a hash of what the ranks have to agree on (kStarted).
// A peer that has such a plan with another hash answers kDiffers, and both plans end. A peer that
// has none answers kLacks, since the plan may come, and says kHas when it has. Notes about single
// executions come the same way, and wait here if their plan is not made yet.
//
// Two plans belong together if tag and hash are the same. Among several such plans, those with the
// same number belong together. Numbers of two ranks may drift apart when one of them could not make
// a plan. If no plan has the number, plans belong together in order: a note says how many older
// plans, equal to its own, its sender has not mentioned so far.
//
// The cost of a plan or a note grows only with the logarithm of the number of plans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/peer/wire/wire.h"

namespace hetcomm {

// A note from one rank to another about a plan.
struct ReshardNote {
  ReshardAction action = ReshardAction::kStarted;
  uint64_t tag = 0;
  ReshardNoteBody body{};
  std::string text;
};

// The interface of a plan of this rank for its board.
class BoardedReshard {
 public:
  // At this plan's place, rank |rank| of the job has made a plan with the hash |content|.
  virtual void peer_differs(int rank, uint64_t content) HETCOMM_UNDER_BATON = 0;
  // Rank |rank| lacks such a plan and has |others|. If |others| is empty, it has the plan now.
  virtual void peer_lacks(int rank, std::string_view others) HETCOMM_UNDER_BATON = 0;
  // A note about an execution: kGivenUp or kLabelled.
  virtual void peer_says(int rank, const ReshardNote& note) HETCOMM_UNDER_BATON = 0;

 protected:
  ~BoardedReshard() = default;
};

class ReshardBoard {
 public:
  // A note to send to rank |rank|.
  struct Answer {
    int rank;
    ReshardNote note;
  };
  struct Terms {
    uint64_t tag = 0;
    uint64_t content = 0;
    std::vector<int> ranks;  // in the job, without this rank
  };
  // The value for an unknown number: no plan has it.
  static constexpr uint32_t kUnknown = ~uint32_t{0};
  // The longest text that may come with a note.
  static constexpr size_t kMaxText = 512;
  // Stands for this many or more.
  static constexpr uint16_t kMaxOlder = 16;

  // Puts |plan| on the board, where it stays until remove(). catch_up() delivers what peers have
  // said of it before. May throw std::bad_alloc, and has then done nothing.
  void add(BoardedReshard& plan, Terms terms) HETCOMM_UNDER_BATON;
  // Returns the answers to send. May throw std::bad_alloc. Whatever |plan| was told then does not
  // count: the next call repeats all of it, to |plan| or to a plan that takes its place.
  std::vector<Answer> catch_up(BoardedReshard& plan) HETCOMM_UNDER_BATON;
  // No effect if |plan| is not on the board.
  void remove(BoardedReshard& plan) HETCOMM_UNDER_BATON;
  // Rank |rank| is told of |plan|. Returns how many older plans that equal |plan| were not
  // mentioned to |rank|; at most kMaxOlder.
  uint16_t note_told(const BoardedReshard& plan, int rank) HETCOMM_UNDER_BATON;
  // False if |plan| is not on the board.
  bool was_told(const BoardedReshard& plan, int rank) const HETCOMM_UNDER_BATON;
  // This rank's number of |plan| with |rank|, one of its ranks.
  uint32_t number_of(const BoardedReshard& plan, int rank) const HETCOMM_UNDER_BATON;

  // Plans that are gone here although a plan of a peer still belongs to them.
  size_t remembered() const HETCOMM_UNDER_BATON { return entries_.size() - by_plan_.size(); }

  // Takes |note| from rank |rank|. Fills |*answers|. False: the rank says too much about plans that
  // are not made here. May throw std::bad_alloc.
  bool receive(int rank, const ReshardNote& note, std::vector<Answer>* answers) HETCOMM_UNDER_BATON;

 private:
  static constexpr size_t kMaxWaiting = 1u << 16;
  struct Peer {
    uint32_t number;             // this rank's number of the plan
    uint32_t theirs = kUnknown;  // number of the peer's plan that belongs to it, once known
    bool is_gone = false;        // the peer's plan is gone
  };
  struct Entry {
    BoardedReshard* plan;  // null: the plan is gone
    uint64_t tag;
    uint64_t content;
    std::map<int, Peer> peers;  // by rank
    std::list<Entry>::iterator self;
  };
  using Entries = std::list<Entry>;
  // Keys begin with rank and tag.
  using OwnKey = std::tuple<int, uint64_t, uint32_t>;              // own number
  using FreeKey = std::tuple<int, uint64_t, uint64_t, uint32_t>;   // content, own number
  using TheirKey = std::tuple<int, uint64_t, uint32_t, uint64_t>;  // the peer's number, content
  using NoteKey = std::tuple<int, uint64_t, uint64_t, uint32_t>;   // content, the peer's number
  // A plan of this rank, and its peer.
  struct Match {
    Entry* entry = nullptr;
    Peer* peer = nullptr;
  };

  using FreePlans = std::map<FreeKey, Entry*>;
  // A note that waited for a plan.
  struct Caught {
    NoteKey key;
    FreePlans::node_type free;  // entry of the plan before it was joined; empty: joined earlier
  };

  static NoteKey key_of(int rank, const ReshardNote& note) {
    return {rank, note.tag, note.body.content, note.body.number};
  }
  static TheirKey their_key_of(const NoteKey& key) {
    const auto& [rank, tag, content, number] = key;
    return {rank, tag, number, content};
  }
  Match find_own(int rank, uint64_t tag, uint32_t number) HETCOMM_UNDER_BATON;
  Match find_partner(int rank, const NoteKey& key, uint16_t older) HETCOMM_UNDER_BATON;
  FreePlans::iterator find_free(const NoteKey& key, uint16_t older) HETCOMM_UNDER_BATON;
  Match find_other(int rank, const ReshardNote& note) HETCOMM_UNDER_BATON;
  static ReshardNote answer_to(const ReshardNote& note, ReshardAction action);
  void tell(Entry& entry, int rank, const ReshardNote& note,
            std::vector<Answer>* answers) HETCOMM_UNDER_BATON;
  std::string others(int rank, const ReshardNote& note) const HETCOMM_UNDER_BATON;
  void take_back(Entry& entry) HETCOMM_UNDER_BATON;
  void unlist(Entry& entry) HETCOMM_UNDER_BATON;
  void catch_notes(Entry& entry, std::vector<Caught>* out) HETCOMM_UNDER_BATON;
  void let_go(Entry& entry, Caught& caught) HETCOMM_UNDER_BATON;
  void wait(int rank, const ReshardNote& note) HETCOMM_UNDER_BATON;
  bool take_waiting(const NoteKey& key, ReshardNote* out) HETCOMM_UNDER_BATON;
  bool find_waiting(int rank, const Entry& entry, const Peer& peer,
                    NoteKey* out) const HETCOMM_UNDER_BATON;
  void forget(int rank, const ReshardNote& note) HETCOMM_UNDER_BATON;

  Entries entries_;
  std::unordered_map<const BoardedReshard*, Entry*> by_plan_;
  std::map<OwnKey, Entry*> own_;       // plans that exist
  FreePlans free_;                     // plans without a plan of the peer so far
  std::set<FreeKey> silent_;           // plans that the peer was not told of
  std::map<TheirKey, Entry*> theirs_;  // plans with a plan of the peer; they may be gone
  std::map<uint64_t, size_t> tags_;    // number of existing plans, by tag
  std::map<std::pair<int, uint64_t>, uint32_t> next_;  // next number, by rank and tag
  // Notes about plans that are not made here.
  std::map<NoteKey, std::deque<ReshardNote>> waiting_;
  std::set<TheirKey> waiting_numbers_;
  std::map<int, size_t> waiting_of_;  // number of waiting notes, by rank
  size_t waiting_count_ = 0;
};

}  // namespace hetcomm
