// Collectives: the collective operations of one communicator, by team.
//
// Under the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/config.h"
#include "src/base/span.h"
#include "src/base/status.h"
#include "src/core/job/job.h"
#include "src/core/job/job_member.h"

namespace hetcomm::collectives {

class Collective;
class Team;

class Collectives {
 public:
  Collectives(JobMember& communicator, Job& job, const Config& config);
  // Nothing is under way any more.
  ~Collectives();
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  // A fresh one. May throw std::bad_alloc.
  std::unique_ptr<Collective> take();
  // Takes back one that is over, or was never started.
  void recycle(std::unique_ptr<Collective> collective);
  // Starts |operation|, which stands for one and is pending. After a failure it stays as it is. May
  // throw std::bad_alloc.
  Status start(Operation& operation);
  // This rank does not make the next call of all ranks; see Team::refuse().
  void refuse(std::string_view why);
  // They cannot go on: those under way end, on all ranks.
  void fail(Code code, std::string_view text);
  // Those under way on this rank end. Works without memory.
  void end(const Status& why);
  // See JobMember.
  void peer_calls(int job_rank, ConstByteSpan note);
  void note_unexpected_part(int job_rank, uint64_t tag);
  void peer_lost(int job_rank);

  // For teams.
  JobMember& communicator() { return communicator_; }
  Job& job() { return job_; }
  // Arguments of the ranks are compared.
  bool checks() const { return checks_; }
  // Memory that ranks of a host share may be used.
  bool may_share() const { return may_share_; }

 private:
  // Null when it cannot be told from another one.
  Team* team_of(const std::vector<int32_t>& list);

  JobMember& communicator_;
  Job& job_;
  const bool checks_;
  const bool may_share_;
  // One for each list of ranks that was used.
  std::vector<std::unique_ptr<Team>> teams_;
  std::vector<std::unique_ptr<Collective>> spare_;
  // Notes of peers' calls on lists of ranks that were not used here yet.
  std::vector<std::pair<int, std::vector<std::byte>>> early_calls_;
};

}  // namespace hetcomm::collectives
