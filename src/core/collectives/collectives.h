// Collectives executes the collective operations of one communicator. It has a team for each list
// of ranks.
//
// Callers hold the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/span.h"
#include "src/base/status.h"
#include "src/core/job/job.h"
#include "src/core/job/job_member.h"
#include "src/system/config.h"

namespace hetcomm::collectives {

class Collective;
class Team;

class Collectives {
 public:
  Collectives(JobMember& communicator, Job& job, const Config& config);
  // No operation may be in progress.
  ~Collectives();
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  // Returns a fresh object. May throw std::bad_alloc.
  std::unique_ptr<Collective> take() HETCOMM_UNDER_BATON;
  // Keeps an object that is over, or was never started, for reuse.
  void recycle(std::unique_ptr<Collective> collective) HETCOMM_UNDER_BATON;
  // Starts the pending |operation|. On failure, |operation| is unchanged. May throw std::bad_alloc.
  Status start(Operation& operation) HETCOMM_UNDER_BATON;
  // Refuses the next call on the list of all ranks (see Team::refuse()).
  void refuse(std::string_view why) HETCOMM_UNDER_BATON;
  // Ends the pending operations on all ranks, because they cannot continue.
  void fail(Code code, std::string_view text) HETCOMM_UNDER_BATON;
  // Ends the pending operations on this rank. Does not fail if out of memory.
  void end(const Status& why) HETCOMM_UNDER_BATON;
  // These functions are described at JobMember.
  void peer_calls(int job_rank, ConstByteSpan note) HETCOMM_UNDER_BATON;
  void note_unexpected_message(int job_rank, uint64_t tag) HETCOMM_UNDER_BATON;
  void peer_lost(int job_rank) HETCOMM_UNDER_BATON;

  // Teams use the functions below.
  JobMember& communicator() { return communicator_; }
  Job& job() { return job_; }
  // Records that the caller has seen an operation fail.
  void note_told() HETCOMM_UNDER_BATON { told_ = true; }
  // Returns whether the ranks compare their arguments.
  bool checks() const HETCOMM_UNDER_BATON { return checks_; }
  bool has_failed() const HETCOMM_UNDER_BATON {
    return !communicator_.channel().collectives_failed.ok();
  }
  // Returns whether the ranks of a host may use shared memory.
  bool may_share() const HETCOMM_UNDER_BATON { return may_share_; }

 private:
  // Returns the team of |list|, or null if its messages cannot be distinguished from another
  // team's.
  Team* team_of(const std::vector<int32_t>& list) HETCOMM_UNDER_BATON;

  JobMember& communicator_;
  Job& job_;
  const bool checks_;
  const bool may_share_;
  bool told_ = false;  // the caller has seen an operation fail
  // One team for each list of ranks used so far.
  std::vector<std::unique_ptr<Team>> teams_;
  std::map<std::vector<int32_t>, Team*> by_list_;
  std::unordered_map<uint64_t, Team*> by_mark_;  // Team::mark()
  std::vector<std::unique_ptr<Collective>> spare_;
  // Notes of peers' calls on lists of ranks that this rank has not used yet, with the peers' job
  // ranks.
  std::vector<std::pair<int, std::vector<std::byte>>> early_calls_;
};

}  // namespace hetcomm::collectives
