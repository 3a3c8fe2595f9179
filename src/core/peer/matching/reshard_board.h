// ReshardBoard: the reshard plans that this rank has made on one communicator, and what other ranks
// say of theirs. A plan, below, is a reshard plan.
//
// Ranks do not exchange plans. Each numbers those that it has made with the same peer and tag, and
// tells its peers tag, number and a hash of what the ranks have to agree on (kStarted). A peer that
// has such a plan with another hash answers kDiffers, and both end. One that has none answers
// kLacks, since the plan may come, and says kHas when it has. Notes about single executions come
// the same way, and wait here for a plan that is not made yet.
//
// Two plans belong together if tag and hash are the same; among several such ones, those with the
// same number. Numbers of two ranks may drift apart: one of them could not make a plan. Where none
// has the number, they belong together in their order: a note says of how many older ones, equal to
// its plan, its sender has said nothing so far.
//
// The cost of a plan or a note grows with the logarithm of the number of plans only.
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

// A note of one rank to another about a plan.
struct ReshardNote {
  ReshardAction action = ReshardAction::kStarted;
  uint64_t tag = 0;
  ReshardNoteBody body{};
  std::string text;
};

// A plan of this rank, as its board sees it.
class BoardedReshard {
 public:
  // Rank |rank| of the job has made a plan in its place whose hash is |content|.
  virtual void peer_differs(int rank, uint64_t content) HETCOMM_UNDER_BATON = 0;
  // Rank |rank| has no such plan, but |others|; or, if that is empty, it has it now.
  virtual void peer_lacks(int rank, std::string_view others) HETCOMM_UNDER_BATON = 0;
  // A note about an execution: kGivenUp or kLabelled.
  virtual void peer_says(int rank, const ReshardNote& note) HETCOMM_UNDER_BATON = 0;

 protected:
  ~BoardedReshard() = default;
};

class ReshardBoard {
 public:
  // A note that is to be sent to rank |rank|.
  struct Answer {
    int rank;
    ReshardNote note;
  };
  struct Terms {
    uint64_t tag = 0;
    uint64_t content = 0;
    std::vector<int> ranks;  // of the job, this one not among them
  };
  // No plan has this number.
  static constexpr uint32_t kUnknown = ~uint32_t{0};
  // Text that may come with a note.
  static constexpr size_t kMaxText = 512;
  // That many, or more.
  static constexpr uint16_t kMaxOlder = 16;

  // Puts |plan| on the board, where it stays until remove(). What peers have said of it before is
  // handed over by catch_up(). May throw std::bad_alloc, and has then done nothing.
  void add(BoardedReshard& plan, Terms terms) HETCOMM_UNDER_BATON;
  // Returns what has to be answered. May throw std::bad_alloc. What |plan| was told does not count
  // then: it is told all of it by the next call, or another plan is that comes in its place.
  std::vector<Answer> catch_up(BoardedReshard& plan) HETCOMM_UNDER_BATON;
  // No effect if |plan| is not on the board.
  void remove(BoardedReshard& plan) HETCOMM_UNDER_BATON;
  // Rank |rank| is told of |plan|. Returns how many plans equal it, are older, and are such that
  // |rank| has been told nothing of them; at most kMaxOlder.
  uint16_t note_told(const BoardedReshard& plan, int rank) HETCOMM_UNDER_BATON;
  // False if |plan| is not on the board.
  bool was_told(const BoardedReshard& plan, int rank) const HETCOMM_UNDER_BATON;
  // This rank's number of |plan| with |rank|, one of its ranks.
  uint32_t number_of(const BoardedReshard& plan, int rank) const HETCOMM_UNDER_BATON;

  // Plans that are gone here while a plan of a peer still belongs to them.
  size_t remembered() const HETCOMM_UNDER_BATON { return entries_.size() - by_plan_.size(); }

  // Rank |rank| says |note|. Fills |*answers|. False: it says too much of plans that are not made
  // here. May throw std::bad_alloc.
  bool receive(int rank, const ReshardNote& note, std::vector<Answer>* answers) HETCOMM_UNDER_BATON;

 private:
  static constexpr size_t kMaxWaiting = 1u << 16;
  struct Peer {
    uint32_t number;             // this rank's
    uint32_t theirs = kUnknown;  // once it is known which plan of the peer belongs to it
    bool is_gone = false;        // that plan
  };
  struct Entry {
    BoardedReshard* plan;  // null: it is gone
    uint64_t tag;
    uint64_t content;
    std::map<int, Peer> peers;  // by rank
    std::list<Entry>::iterator self;
  };
  using Entries = std::list<Entry>;
  // Keys are rank, tag and what they are named by.
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
  // Notes that waited for a plan.
  struct Caught {
    NoteKey key;
    FreePlans::node_type free;  // of the plan before it was joined to theirs; empty: it was before
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
  std::map<OwnKey, Entry*> own_;       // of plans that are there
  FreePlans free_;                     // of those that no plan of the peer belongs to yet
  std::set<FreeKey> silent_;           // of those of which the peer has been told nothing
  std::map<TheirKey, Entry*> theirs_;  // of those that one does, though they may be gone
  std::map<uint64_t, size_t> tags_;    // plans that are there, by tag
  std::map<std::pair<int, uint64_t>, uint32_t> next_;  // number, by rank and tag
  // Notes of plans that are not made here.
  std::map<NoteKey, std::deque<ReshardNote>> waiting_;
  std::set<TheirKey> waiting_numbers_;
  std::map<int, size_t> waiting_of_;  // how many, by rank
  size_t waiting_count_ = 0;
};

}  // namespace hetcomm
