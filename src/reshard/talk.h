// ReshardTalk: what this rank tells the other ranks of a redistribution, and hears of them: that it
// has started, executions that were given up, and labels. It tells the ranks with which it has
// tracks. Under the baton, but for the constructor.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/communicator/communicator.h"
#include "src/core/peer/matching/reshard_board.h"

namespace hetcomm::reshard {

// By which the caller knows an execution.
struct Label {
  uint64_t step = 0;
  uint64_t micro_batch = 0;
  bool is_set() const { return step != 0 || micro_batch != 0; }
  bool operator==(const Label&) const = default;
};

// An execution that ends before any rank has sent data of it.
struct GivenUp {
  uint64_t execution = 0;
  Code code = Code::kAborted;  // on the rank that gave it up; kMismatch: it was refused
  int32_t origin = 0;          // that rank, in the communicator
  std::string text;

  // How it ends on the other ranks.
  Status status() const;
};

class ReshardTalkClient {
 public:
  // Rank |rank| of the job has made another plan.
  virtual void plan_differs(int rank, const Status& why) HETCOMM_UNDER_BATON = 0;
  // Rank |from| of the job says so.
  virtual void peer_gave_up(int from, const GivenUp& given_up) HETCOMM_UNDER_BATON = 0;
  // A peer's label of |execution| has come.
  virtual void label_came(uint64_t execution) HETCOMM_UNDER_BATON = 0;

 protected:
  ~ReshardTalkClient() = default;
};

class ReshardTalk final : private BoardedReshard {
 public:
  // |peers|: ranks of the job with which this rank has tracks, each once. All arguments outlive
  // this.
  ReshardTalk(Communicator& communicator, ReshardTalkClient& client, ReshardBoard::Terms terms,
              std::vector<int> peers);
  ReshardTalk(const ReshardTalk&) = delete;
  ReshardTalk& operator=(const ReshardTalk&) = delete;

  // Takes the plan's numbers, and hears of others from now on. May throw std::bad_alloc.
  void enter() HETCOMM_UNDER_BATON;
  // This rank's number of the plan with rank |rank| of the job, with which it has tracks.
  uint32_t number_with(int rank) const HETCOMM_UNDER_BATON;
  // Hears what others have said before. May throw std::bad_alloc.
  void catch_up() HETCOMM_UNDER_BATON;
  void close() HETCOMM_UNDER_BATON;
  // An execution of this rank is called: the peers hear of the plan, if they have not.
  void introduce() HETCOMM_UNDER_BATON;
  // Tells all peers but |but|.
  void tell(const GivenUp& given_up, int but) HETCOMM_UNDER_BATON;
  void tell(uint64_t execution, const Label& label) HETCOMM_UNDER_BATON;

  // Label of |execution| that rank |rank| of the job has told; null: none.
  const Label* told(int rank, uint64_t execution) const HETCOMM_UNDER_BATON;
  // A peer whose label of |execution| is not |own|, with that label; null: there is none.
  const std::pair<const std::pair<uint64_t, int>, Label>* find_other(
      uint64_t execution, const Label& own) const HETCOMM_UNDER_BATON;
  // Nobody asks for labels of |execution| any more.
  void forget_labels(uint64_t execution) HETCOMM_UNDER_BATON;
  // Some peer has said that it has no such plan, and not that it has made it since.
  bool is_lacking() const HETCOMM_UNDER_BATON { return !lacking_.empty(); }
  // For people: "; rank 1 has no plan with tag 0 and rank 0; it has tag 1"; empty if nobody lacks
  // it.
  std::string lacking() const HETCOMM_UNDER_BATON;

 private:
  // BoardedReshard
  void peer_differs(int rank, uint64_t content) override HETCOMM_UNDER_BATON;
  void peer_lacks(int rank, std::string_view others) override HETCOMM_UNDER_BATON;
  void peer_says(int rank, const ReshardNote& note) override HETCOMM_UNDER_BATON;

  ReshardNote note_to(int rank, ReshardAction action) const HETCOMM_UNDER_BATON;
  void send(int rank, const ReshardNote& note) HETCOMM_UNDER_BATON;

  Communicator& communicator_;
  ReshardTalkClient& client_;
  const ReshardBoard::Terms terms_;
  const std::vector<int> peers_;
  bool is_introduced_ = false;
  std::map<int, std::string> lacking_;                // by rank: what it has instead
  std::map<std::pair<uint64_t, int>, Label> labels_;  // by execution and rank
};

}  // namespace hetcomm::reshard
