// A Redistribution is one rank's prepared state for moving tensors repeatedly from one layout to
// another. It holds the rank's program, the tracks to other ranks, and the executions.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <hetcomm/memory.h>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/communicator/communicator.h"
#include "src/core/job/job_member.h"
#include "src/reshard/execution.h"
#include "src/reshard/program.h"

namespace hetcomm::reshard {

// The terms of a redistribution. All ranks specify the same values, except for the fields that are
// specific to a rank.
struct RedistributionTerms {
  uint64_t tag = 0;        // distinguishes redistributions between the same ranks, as for queues
  uint64_t content = 0;    // hash of everything that the ranks must agree on
  uint32_t in_flight = 1;  // maximum number of executions in progress
  std::vector<int> ranks;  // ranks of the communicator that appear in some layout
  // Specific to this rank:
  uint64_t landing_bytes = 0;  // maximum bytes of memory for messages, in each direction
  TrackShare share;            // a weight of 0 means no part in sharing
};

// Options of one execution.
struct ExecutionOptions {
  uint64_t timeout_ns = 0;  // 0: the communicator's timeout
  bool high_priority = false;
  UserStream* stream = nullptr;  // stream that the execution waits for, or null
  bool in_group = false;         // true if the execution starts with the caller's open group
  Label label{};
};

class Redistribution final : private QuietTask,
                             private ExecutionOwner,
                             private ReshardTalkClient,
                             private TrackWatcher {
 public:
  // Opens the tracks without waiting for other ranks. May throw std::bad_alloc.
  static std::unique_ptr<Redistribution> create(Communicator& communicator, Program program,
                                                const RedistributionTerms& terms);
  Redistribution(const Redistribution&) = delete;
  Redistribution& operator=(const Redistribution&) = delete;
  // close() must have returned success.
  ~Redistribution();

  // [any-thread]
  Communicator& communicator() { return communicator_; }
  const Program& program() const { return shared_.program; }
  // Starts an execution, or adds it to the caller's open group. |sources| and |destinations| have a
  // buffer for each tensor. A buffer is ignored if this rank has no part of the tensor. If the
  // execution is refused, |*text| gives the reason. May throw std::bad_alloc.
  Code start(const hetcomm_buffer_t* sources, const hetcomm_buffer_t* destinations,
             const ExecutionOptions& options, Operation** out, std::string* text);
  // Refuses this rank's next execution because of |why|. The refused execution counts as started.
  // May throw std::bad_alloc.
  void refuse(std::string_view why);
  // Returns the number of pending executions.
  uint32_t pending() const { return pending_.load(std::memory_order_acquire); }
  // Waits for the pending executions, for at most |timeout_ns| (0: HETCOMM_TIMEOUT). Returns false
  // if some are still pending.
  bool drain(uint64_t timeout_ns);
  // Ends the pending executions with kCancelled.
  void cancel();
  // Closes the redistribution. Fails with kBusy while executions are in progress. After success,
  // only the destructor may be called.
  Status close();

 private:
  Redistribution(Communicator& communicator, Program program, const RedistributionTerms& terms);

  // Implementation of QuietTask.
  int progress() override HETCOMM_UNDER_BATON;
  void note_pause(uint64_t pause_ns) override HETCOMM_UNDER_BATON;
  // Implementation of ExecutionOwner.
  void lined_up(Execution& execution) override HETCOMM_UNDER_BATON;
  Status begin(Execution& execution, Operation& operation) override HETCOMM_UNDER_BATON;
  void withdraw(Execution& execution, const Status& why) override HETCOMM_UNDER_BATON;
  Status known_end(const Execution& execution) const override HETCOMM_UNDER_BATON;
  bool give_up(Execution& execution, const Status& why) override HETCOMM_UNDER_BATON;
  void note_ready() override HETCOMM_UNDER_BATON;
  void break_off(const Status& why) override HETCOMM_UNDER_BATON;
  Status told_to(int rank, const Status& why) const override HETCOMM_UNDER_BATON;
  void leave_line(Execution& execution) override HETCOMM_UNDER_BATON;
  void note_over() override { pending_.fetch_sub(1, std::memory_order_release); }
  void give_permit() override { under_way_.fetch_sub(1, std::memory_order_release); }

  // Implementation of ReshardTalkClient.
  void plan_differs(int rank, const Status& why) override HETCOMM_UNDER_BATON;
  void peer_gave_up(int from, const GivenUp& given_up) override HETCOMM_UNDER_BATON;
  void label_came(uint64_t execution) override HETCOMM_UNDER_BATON;
  // Implementation of TrackWatcher.
  void track_closed() override HETCOMM_UNDER_BATON;

  Code check(const hetcomm_buffer_t* buffers, const std::vector<ProgramSide>& sides,
             const char* name, std::string* text) const;
  bool take_permit();
  std::unique_ptr<Execution> take() HETCOMM_EXCLUDES(baton_role);
  void add_tracks(const RedistributionTerms& terms) HETCOMM_UNDER_BATON;
  void open_tracks();
  void call(Execution& execution) HETCOMM_UNDER_BATON;
  void begin_row(uint64_t execution) HETCOMM_UNDER_BATON;
  bool note_given_up(const GivenUp& given_up, int from) HETCOMM_UNDER_BATON;
  Execution* find(uint64_t number) HETCOMM_UNDER_BATON;
  void break_off_and_sweep(const Status& why) HETCOMM_UNDER_BATON;
  Status ended() const HETCOMM_UNDER_BATON;
  void end_lined_up() HETCOMM_UNDER_BATON;
  void sweep_over() HETCOMM_UNDER_BATON;
  void set_busy(bool busy) HETCOMM_UNDER_BATON;
  void close_tracks(const Status& why) HETCOMM_UNDER_BATON;

  Communicator& communicator_;
  ExecutionCommons shared_;
  const uint32_t in_flight_;
  std::atomic<uint32_t> under_way_{0};  // executions that have a permit
  std::atomic<uint32_t> pending_{0};    // executions that have not ended
  uint64_t next_number_ = 0;            // number of the next execution to be called
  Status broken_;                       // the reason why no execution can continue
  std::set<int> differing_;             // job ranks whose plan differs
  bool differs_ = false;                // true if |broken_| reports a different plan
  bool tracks_open_ = false;
  bool has_closed_track_ = false;
  bool is_track_closed_ = false;  // true if executions are not yet notified of a closed track
  bool ready_ = false;
  bool busy_ = false;
  uint64_t quiet_until_ = 0;              // note_pause() logs no execution below this number
  std::map<uint64_t, GivenUp> given_up_;  // latest executions that were abandoned, keyed by number
  size_t in_row_ = 0;                     // executions abandoned since the last successful one
  std::vector<Execution*> lined_up_;      // called, but still waiting for a stream
  std::vector<std::unique_ptr<Execution>> active_;  // in ascending order of their numbers
  std::vector<std::unique_ptr<Execution>> spare_;
};

}  // namespace hetcomm::reshard
