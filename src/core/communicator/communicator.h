// A Communicator is a numbered set of a job's ranks, with its own match tables.
//
// The job and the layers below call it as a JobMember. Poster makes and starts the operations of
// data calls, RegisteredMemories keeps track of registered and imported memories, and Collectives
// carries out collective operations.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <hetcomm/p2p.h>

#include "src/base/baton_role.h"
#include "src/core/communicator/link_queries.h"
#include "src/core/communicator/operation_filler.h"
#include "src/core/communicator/poster.h"
#include "src/core/communicator/registered_memories.h"
#include "src/core/job/job.h"
#include "src/core/job/job_member.h"
#include "src/core/memory/registration.h"
#include "src/core/progress/engine.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

class Context;
namespace collectives {
class Collectives;
}  // namespace collectives

class Communicator final : public JobMember {
 public:
  static Result<std::unique_ptr<Communicator>> create(Context& context, Bootstrap& bootstrap,
                                                      const JobOptions& options);
  ~Communicator();
  // Return the communicator on which |operation| was posted, or on which a memory is registered.
  static Communicator& of(const Operation& operation) {
    return static_cast<Communicator&>(*operation.communicator);
  }
  static Communicator& of(const Registration& registration) {
    return static_cast<Communicator&>(registration.communicator());
  }

  // The parts of the communicator that handle calls. Collective calls are in collective_calls.h and
  // split.h.
  Poster& poster() { return poster_; }
  const Poster& poster() const { return poster_; }
  RegisteredMemories& memories() { return memories_; }
  LinkQueries& links() { return links_; }
  collectives::Collectives& collectives() { return *collectives_; }

  // All functions down to flush() are [any-thread].

  // Looks for an unexpected message that matches. Returns false if there is none.
  bool probe(int32_t source, uint64_t tag, uint64_t ignore, hetcomm_completion_t* out);
  // Makes a communicator from some ranks of this one. The new communicator takes ownership of
  // |channel|. May throw std::bad_alloc.
  std::unique_ptr<Communicator> make_child(Channel& channel, std::vector<MemberChannel> members);
  void abort(std::string_view reason);
  // Returns why the communicator was aborted; OK if it was not.
  Status status();
  Status peer_status(int32_t rank);
  size_t counters(int32_t rank, size_t capacity, hetcomm_counters_t* out);
  std::string explain(int32_t rank);
  // Adds |more| to the number of existing groups, whose collected operations refer to this
  // communicator.
  void count_groups(int32_t more) { groups_.fetch_add(more, std::memory_order_release); }
  // Count the existing queues and redistributions, whose tracks refer to this communicator.
  void add_track_user() { track_users_.fetch_add(1, std::memory_order_relaxed); }
  void drop_track_user() { track_users_.fetch_sub(1, std::memory_order_release); }
  // Returns kBusy, and the reason, while the communicator cannot be destroyed.
  Status check_idle();
  // Returns the reason why no message from |source| (-1: from any rank) can arrive any longer; OK
  // while one can.
  Status check_source(int32_t source);
  // Waits for at most |timeout_ns| until accepted messages have been sent, and those that may be
  // lost have been acknowledged. Returns immediately unless this is the last communicator of its
  // job.
  void flush(uint64_t timeout_ns);

  int32_t rank() const { return rank_; }
  int32_t size() const { return static_cast<int32_t>(ranks().size()); }
  // Returns the number of this rank's channel.
  uint32_t id() const { return id_; }
  const JobMember* split_from() const override { return parent_; }
  // Returns the ancestor that was made from a bootstrap, not split from a communicator.
  Communicator& root() { return parent_ == nullptr ? *this : parent_->root(); }
  // Returns, by rank, whether the rank died, left or cannot be reached. For this rank, returns
  // whether the others have declared it lost. Does not communicate. [any-thread]
  std::vector<bool> lost_ranks();
  Job& job() { return *job_; }
  const std::shared_ptr<Job>& shared_job() { return job_; }
  Engine& engine() { return engine_; }
  Context& context() { return context_; }
  const JobOptions& options() const { return options_; }

  // Returns the number of the channel of |job_rank|, which is a rank of this communicator.
  uint32_t channel_at(int job_rank) const override HETCOMM_UNDER_BATON {
    return members_[static_cast<size_t>(rank_of(job_rank))].channel;
  }
  void end(Operation& operation, Code code, std::string_view why) override HETCOMM_UNDER_BATON;
  std::string awaited_text(const Operation& operation) override HETCOMM_UNDER_BATON;
  // Ends a pending operation with kCancelled.
  void cancel(Operation& operation) HETCOMM_UNDER_BATON;
  // Releases the handle of a pending operation. The caller will not see how the operation ends.
  void release(Operation& operation) HETCOMM_UNDER_BATON;
  void add_remote(RemoteMemory& remote) override { memories_.add_remote(remote); }
  void drop_remote(RemoteMemory& remote) override { memories_.drop_remote(remote); }
  void end_collectives(const Status& why) override HETCOMM_UNDER_BATON;
  void peer_calls(int job_rank, ConstByteSpan note) override HETCOMM_UNDER_BATON;
  void note_unexpected_message(int job_rank, uint64_t tag) override HETCOMM_UNDER_BATON;
  void peer_lost(int job_rank) override HETCOMM_UNDER_BATON;

 private:
  // Takes ownership of |channel|.
  Communicator(Context& context, std::shared_ptr<Job> job, Channel& channel,
               std::vector<MemberChannel> members, Communicator* parent, JobOptions options);
  // Creates a communicator over a job that all its ranks share. Returns null if there is no such
  // job.
  static Result<std::unique_ptr<Communicator>> create_over_known_job(Context& context,
                                                                     Bootstrap& bootstrap,
                                                                     const JobOptions& options);
  const Status& peer_status_locked(int job_rank) const HETCOMM_UNDER_BATON {
    return job_->peer_status(job_rank);
  }

  Context& context_;
  std::shared_ptr<Job> job_;
  Engine& engine_;
  const uint32_t id_;  // number of this rank's channel
  Communicator* parent_;
  JobOptions options_;
  const std::vector<MemberChannel> members_;  // by rank
  const int32_t rank_;
  std::atomic<int32_t> children_{0};
  std::atomic<int32_t> groups_{0};
  std::atomic<int32_t> track_users_{0};
  std::unique_ptr<collectives::Collectives> collectives_;
  Poster poster_;
  RegisteredMemories memories_;
  LinkQueries links_;
};

}  // namespace hetcomm
