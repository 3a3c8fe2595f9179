// A ReshardBoard holds the reshard plans that this rank has made on one communicator, and what
// other ranks have reported about theirs. Below, "plan" means a reshard plan.
//
// Ranks do not exchange plans. Each rank numbers the plans that it has made with the same peer and
// tag. It sends its peers the tag, the number and a hash of everything that the ranks have to agree
// on (kStarted). A peer that has such a plan with another hash answers kDiffers, and both plans
// end. A peer without such a plan answers kLacks. It may still make the plan, and then sends kHas.
// Notes about single executions are exchanged in the same way. They are kept here until their plan
// is made.
//
// Two plans match if their tag and hash are equal. Among several such plans, those with the same
// number match. The numbers on two ranks can differ if one rank failed to make a plan. If no plan
// has the number, plans match in the order in which they were made. For this purpose, a note
// contains the number of older, equal plans that its sender has not announced yet.
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

// The interface through which the board calls a plan.
class BoardedReshard {
 public:
  // Reports that rank |rank| of the job has a plan with hash |content| in place of this one.
  virtual void peer_differs(int rank, uint64_t content) HETCOMM_UNDER_BATON = 0;
  // Reports that rank |rank| lacks this plan. |others| describes the plans that it has instead. If
  // |others| is empty, |rank| now has the plan.
  virtual void peer_lacks(int rank, std::string_view others) HETCOMM_UNDER_BATON = 0;
  // Delivers a note about an execution: kGivenUp or kLabelled.
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
    std::vector<int> ranks;  // ranks of the job, without this rank
  };
  // The value for an unknown number. No plan has this number.
  static constexpr uint32_t kUnknown = ~uint32_t{0};
  // The maximum length of a note's text.
  static constexpr size_t kMaxText = 512;
  // The highest value of ReshardNoteBody::older, which means this many plans or more.
  static constexpr uint16_t kMaxOlder = 16;

  // Adds |plan| to the board, where it stays until remove(). catch_up() delivers the notes about it
  // that have already arrived. If this throws std::bad_alloc, nothing has changed.
  void add(BoardedReshard& plan, Terms terms) HETCOMM_UNDER_BATON;
  // Delivers waiting notes to |plan| and returns the answers to send. May throw std::bad_alloc. In
  // that case the next call delivers all of the notes again, to |plan| or to its replacement.
  std::vector<Answer> catch_up(BoardedReshard& plan) HETCOMM_UNDER_BATON;
  // Removes |plan|. Does nothing if it is not on the board.
  void remove(BoardedReshard& plan) HETCOMM_UNDER_BATON;
  // Records that |plan| is announced to rank |rank|. Returns how many older plans equal to |plan|
  // have not been announced to |rank|, at most kMaxOlder; 0 if |plan| is not on the board.
  uint16_t note_told(const BoardedReshard& plan, int rank) HETCOMM_UNDER_BATON;
  // Returns whether |plan| was announced to |rank|. False if |plan| is not on the board.
  bool was_told(const BoardedReshard& plan, int rank) const HETCOMM_UNDER_BATON;
  // Returns the number that this rank gave |plan| with |rank|. Returns kUnknown if |plan| is not on
  // the board, or |rank| is not one of its ranks.
  uint32_t number_of(const BoardedReshard& plan, int rank) const HETCOMM_UNDER_BATON;

  // Returns the number of plans that were removed here although a matching plan of a peer still
  // exists.
  size_t remembered() const HETCOMM_UNDER_BATON { return entries_.size() - by_plan_.size(); }

  // Handles |note| from rank |rank| and appends the answers to |*answers|. Returns false if |rank|
  // has sent too many notes about plans that do not exist here. May throw std::bad_alloc.
  bool receive(int rank, const ReshardNote& note, std::vector<Answer>* answers) HETCOMM_UNDER_BATON;

 private:
  static constexpr size_t kMaxWaiting = 1u << 16;
  struct Peer {
    uint32_t number;             // this rank's number for the plan
    uint32_t theirs = kUnknown;  // number of the matching plan on the peer, once known
    bool is_gone = false;        // the peer's plan is gone
  };
  struct Entry {
    BoardedReshard* plan;  // null: the plan is gone
    uint64_t tag;
    uint64_t content;
    std::map<int, Peer> peers;  // indexed by rank
    std::list<Entry>::iterator self;
  };
  using Entries = std::list<Entry>;
  // Keys of the tables below. All begin with rank and tag; the comments name the rest.
  using OwnKey = std::tuple<int, uint64_t, uint32_t>;              // this rank's number
  using FreeKey = std::tuple<int, uint64_t, uint64_t, uint32_t>;   // content, this rank's number
  using TheirKey = std::tuple<int, uint64_t, uint32_t, uint64_t>;  // the peer's number, content
  using NoteKey = std::tuple<int, uint64_t, uint64_t, uint32_t>;   // content, the peer's number
  // A plan of this rank, and its state for one peer.
  struct Match {
    Entry* entry = nullptr;
    Peer* peer = nullptr;
  };

  using FreePlans = std::map<FreeKey, Entry*>;
  // Waiting notes with one key, for which a plan was found.
  struct Caught {
    NoteKey key;
    // The plan's node of |free_|, which catch_notes() has extracted. Empty if the plan was matched
    // earlier.
    FreePlans::node_type free;
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
  std::map<OwnKey, Entry*> own_;       // existing plans, by this rank's number
  FreePlans free_;                     // plans that no plan of the peer matches yet
  std::set<FreeKey> silent_;           // plans that were not announced to the peer
  std::map<TheirKey, Entry*> theirs_;  // plans that a peer's plan matches, even if removed
  std::map<uint64_t, size_t> tags_;    // number of existing plans, by tag
  std::map<std::pair<int, uint64_t>, uint32_t> next_;  // next number, by rank and tag
  // Notes about plans that have not been made here.
  std::map<NoteKey, std::deque<ReshardNote>> waiting_;
  std::set<TheirKey> waiting_numbers_;
  std::map<int, size_t> waiting_of_;  // number of waiting notes, by rank
  size_t waiting_count_ = 0;
};

}  // namespace hetcomm
