// PlanBoard: the plans of redistributions that this rank has made on one communicator, and what
// other ranks say of theirs.
//
// Ranks do not exchange plans. Each numbers those that it has made with the same peer and tag, and
// tells its peers tag, number and a hash of what the ranks have to agree on (kStarted). A peer that
// has such a plan with another hash answers kDiffers, and both end. One that has none answers
// kLacks, since the plan may come, and says kHas when it has. Notes about single executions come
// the same way, and wait here for a plan that is not made yet.
//
// Two plans belong together if tag and hash are the same; among several such ones, those with the
// same number. Numbers of two ranks may drift apart: one of them could not make a plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/peer/wire.h"

namespace hetcomm {

// A note of one rank to another about a plan.
struct PlanNote {
  PlanAction action = PlanAction::kStarted;
  uint64_t tag = 0;
  PlanNoteBody body{};
  std::string text;
};

// A plan of this rank, as its board sees it.
class BoardedPlan {
 public:
  // Rank |rank| of the job has made a plan in its place whose hash is |content|.
  virtual void peer_differs(int rank, uint64_t content) HETCOMM_UNDER_BATON = 0;
  // Rank |rank| has no such plan, but |others|; or, if that is empty, it has it now.
  virtual void peer_lacks(int rank, std::string_view others) HETCOMM_UNDER_BATON = 0;
  // A note about an execution: kGivenUp or kLabelled.
  virtual void peer_says(int rank, const PlanNote& note) HETCOMM_UNDER_BATON = 0;

 protected:
  ~BoardedPlan() = default;
};

class PlanBoard {
 public:
  // A note that is to be sent to rank |rank|.
  struct Answer {
    int rank;
    PlanNote note;
  };
  struct Terms {
    uint64_t tag = 0;
    uint64_t content = 0;
    std::vector<int> ranks;  // of the job, this one not among them
  };
  // Text that may come with a note.
  static constexpr size_t kMaxText = 512;

  // Puts |plan| on the board, where it stays until remove(). What peers have said of it before is
  // handed over by catch_up(). May throw std::bad_alloc.
  void add(BoardedPlan& plan, Terms terms) HETCOMM_UNDER_BATON;
  // Returns what has to be answered. May throw std::bad_alloc, and then the rest is handed over
  // later.
  std::vector<Answer> catch_up(BoardedPlan& plan) HETCOMM_UNDER_BATON;
  void remove(BoardedPlan& plan) HETCOMM_UNDER_BATON;
  // This rank's number of |plan| with |rank|, one of its ranks.
  uint32_t number_of(const BoardedPlan& plan, int rank) const HETCOMM_UNDER_BATON;

  // Rank |rank| says |note|. Fills |*answers|. False: it says too much of plans that are not made
  // here. May throw std::bad_alloc.
  bool receive(int rank, const PlanNote& note, std::vector<Answer>* answers) HETCOMM_UNDER_BATON;

 private:
  static constexpr size_t kMaxWaiting = 1u << 16;
  static constexpr uint32_t kUnknown = ~uint32_t{0};
  struct Peer {
    int rank;
    uint32_t number;             // this rank's
    uint32_t theirs = kUnknown;  // once it is known which plan of the peer belongs to it
  };
  struct Entry {
    BoardedPlan* plan;
    uint64_t tag;
    uint64_t content;
    std::vector<Peer> peers;

    Peer* find(int rank);
    const Peer* find(int rank) const;
  };
  struct Waiting {
    int rank;
    PlanNote note;
  };
  // A plan of this rank, and its peer.
  struct Match {
    Entry* entry = nullptr;
    Peer* peer = nullptr;
  };

  Match find_own(int rank, uint64_t tag, uint32_t number) HETCOMM_UNDER_BATON;
  Match find_partner(int rank, const PlanNote& note) HETCOMM_UNDER_BATON;
  Match find_other(int rank, const PlanNote& note) HETCOMM_UNDER_BATON;
  static PlanNote answer_to(const PlanNote& note, PlanAction action);
  void tell(Entry& entry, int rank, const PlanNote& note,
            std::vector<Answer>* answers) HETCOMM_UNDER_BATON;
  std::string others(int rank, const PlanNote& note) const HETCOMM_UNDER_BATON;
  void forget(int rank, const PlanNote& note) HETCOMM_UNDER_BATON;
  bool is_flooded_by(int rank) const HETCOMM_UNDER_BATON;

  std::vector<Entry> entries_;                         // in the order of their making
  std::map<std::pair<int, uint64_t>, uint32_t> next_;  // number, by rank and tag
  std::vector<Waiting> waiting_;                       // notes of plans that are not made here
};

}  // namespace hetcomm
