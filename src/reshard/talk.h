// ReshardTalk exchanges messages about a redistribution with the ranks to which this rank has
// tracks. The messages report the start of the redistribution, abandoned executions, and labels.
// Callers hold the baton, except in the constructor.
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

// The caller's label for an execution.
struct Label {
  uint64_t step = 0;
  uint64_t micro_batch = 0;
  bool is_set() const { return step != 0 || micro_batch != 0; }
  bool operator==(const Label&) const = default;
};

// A GivenUp reports an execution that was abandoned before any rank had sent any of its data.
struct GivenUp {
  uint64_t execution = 0;
  Code code = Code::kAborted;  // result on the rank that abandoned it; kMismatch: it was refused
  int32_t origin = 0;          // rank of the communicator that abandoned the execution
  std::string text;

  // Returns the status with which the execution ends on the other ranks.
  Status status() const;
};

class ReshardTalkClient {
 public:
  // Handles the report that the plan of rank |rank| of the job differs.
  virtual void plan_differs(int rank, const Status& why) HETCOMM_UNDER_BATON = 0;
  // Handles |given_up|, reported by rank |from| of the job.
  virtual void peer_gave_up(int from, const GivenUp& given_up) HETCOMM_UNDER_BATON = 0;
  // Handles the arrival of a peer's label for |execution|.
  virtual void label_came(uint64_t execution) HETCOMM_UNDER_BATON = 0;

 protected:
  ~ReshardTalkClient() = default;
};

class ReshardTalk final : private BoardedReshard {
 public:
  // |peers| are the job ranks to which this rank has tracks, without duplicates. |communicator| and
  // |client| outlive this object.
  ReshardTalk(Communicator& communicator, ReshardTalkClient& client, ReshardBoard::Terms terms,
              std::vector<int> peers);
  ReshardTalk(const ReshardTalk&) = delete;
  ReshardTalk& operator=(const ReshardTalk&) = delete;

  // Allocates the plan's numbers, and starts to receive reports from other ranks. May throw
  // std::bad_alloc.
  void enter() HETCOMM_UNDER_BATON;
  // Returns the number that this rank uses for the plan with rank |rank| of the job, to which it
  // has tracks.
  uint32_t number_with(int rank) const HETCOMM_UNDER_BATON;
  // Processes reports that arrived earlier from other ranks. May throw std::bad_alloc.
  void catch_up() HETCOMM_UNDER_BATON;
  void close() HETCOMM_UNDER_BATON;
  // Notifies the peers that this rank has called an execution of the plan. Only the first call has
  // an effect.
  void introduce() HETCOMM_UNDER_BATON;
  // Reports |given_up| to all peers except |but|.
  void tell(const GivenUp& given_up, int but) HETCOMM_UNDER_BATON;
  void tell(uint64_t execution, const Label& label) HETCOMM_UNDER_BATON;

  // Returns the label for |execution| that rank |rank| of the job has sent, or null if none has
  // arrived.
  const Label* told(int rank, uint64_t execution) const HETCOMM_UNDER_BATON;
  // Returns an entry of |labels_| in which a peer's label for |execution| differs from |own|, or
  // null if there is none.
  const std::pair<const std::pair<uint64_t, int>, Label>* find_other(
      uint64_t execution, const Label& own) const HETCOMM_UNDER_BATON;
  // Discards the labels for |execution|.
  void forget_labels(uint64_t execution) HETCOMM_UNDER_BATON;
  // Returns whether the latest report of any peer says that it has no such plan.
  bool is_lacking() const HETCOMM_UNDER_BATON { return !lacking_.empty(); }
  // Returns a text for users such as "; rank 1 has no plan with tag 0 and rank 0; it has tag 1".
  // The text is empty if no peer lacks the plan.
  std::string lacking() const HETCOMM_UNDER_BATON;

 private:
  // Implementation of BoardedReshard.
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
  std::map<int, std::string> lacking_;                // keyed by rank: text about its other plans
  std::map<std::pair<uint64_t, int>, Label> labels_;  // keyed by execution and rank
};

}  // namespace hetcomm::reshard
