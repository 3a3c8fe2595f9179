// One collective operation on this rank.
//
//   fresh --> queued --> loading --> moving --> storing --> over --> fresh
//                 (any of them) --fail--> ending, until its parts and copies have ended --> over
//
// Loading and storing copy buffers of devices to and from host memory; moving follows a plan by
// messages (lanes, see plan.h), or goes through the segment that the ranks of a host share
// (segment.h). Objects are used again, so that an operation allocates nothing once there are
// enough. All under the baton, but for set_up().
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <hetcomm/collective.h>

#include "src/core/block_pool.h"
#include "src/core/collectives/call.h"
#include "src/core/collectives/plan.h"
#include "src/core/staging.h"

namespace hetcomm {
class Communicator;
class Mesh;
struct Operation;
}  // namespace hetcomm

namespace hetcomm::collectives {

class Team;

// Of a call of the C ABI; handles of memories and groups are good ones.
struct Arguments {
  Kind kind = Kind::kBarrier;
  int32_t root = 0;
  int32_t datatype = HETCOMM_UINT8;
  int32_t reduction = -1;
  const hetcomm_buffer_t* sends = nullptr;
  size_t send_count = 0;
  const hetcomm_buffer_t* receives = nullptr;
  size_t receive_count = 0;
  const hetcomm_collective_options_t* options = nullptr;  // null: defaults
  bool splits = false;                                    // the communicator's own: an allgather
};

// The memory of one side, on the host.
struct Side {
  BufferPiece one{};              // without parts, or with all parts in a row
  std::vector<BufferPiece> many;  // a buffer for each rank
  std::vector<uint64_t> lengths;  // of |many|
  std::vector<uint64_t> starts;   // of |many| in |staged|
  uint64_t length = 0;            // in all
  uint64_t stride = 0;            // from one part to the next in |one|
  bool on_device = false;
  PoolBytes staged;  // host memory that stands for the buffers
  CopyJob copy;

  std::byte* address(uint32_t part) const {
    if (staged) return staged.get() + (many.empty() ? part * stride : starts[part]);
    const BufferPiece& piece = many.empty() ? one : many[part];
    return host_address(piece) + (many.empty() ? part * stride : 0);
  }
  static std::byte* host_address(const BufferPiece& piece);
  void reset();
};

class Collective final : public CompositeOperation, public EndHandler, private CopyHandler {
 public:
  Collective() = default;
  ~Collective() override = default;
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  // Of a fresh one. Checks everything that this rank can check by itself. After a failure it has to
  // be reset. [any-thread]
  Code set_up(Communicator& communicator, const Arguments& arguments, std::string* text);
  void reset();

  // Takes its place behind |operation|, whose pieces hold the memories.
  void attach(Operation& operation);
  Operation& operation() const { return *operation_; }
  const std::vector<int32_t>& list() const { return list_; }
  const Problem& problem() const { return problem_; }
  const Call& call() const { return call_; }
  int32_t datatype() const { return call_.datatype; }
  // Says how the inputs of all ranks become the result.
  reduce::Reduction reduction() const;
  uint64_t sequence() const { return sequence_; }
  uint64_t started_ns() const { return started_ns_; }
  // In the segment: its turn has come.
  bool moving() const { return stage_ == Stage::kMoving; }
  std::byte* send_address(uint32_t part) const {
    if (!scaled_) return send_.address(part);
    return scaled_.get() + (send_.many.empty() ? part * send_.stride : send_.starts[part]);
  }
  std::byte* receive_address(uint32_t part) const { return receive_.address(part); }

  // Called by its team: when it has come, and in its turn.
  void place(Team& team, uint64_t sequence, uint64_t now_ns);
  void start(bool in_segment);
  // Goes on with what is ready.
  void advance();
  bool ready() const { return ready_; }
  // The shared segment has done its part.
  void moved();
  // What another rank has for this one is not as long as it has to be.
  void refuse_length(int32_t shown_rank, uint64_t sent, uint64_t expected);
  // Ends it; its memory is quiet when the operation completes.
  void fail(Code code, const std::string& text);
  bool over() const { return stage_ == Stage::kOver; }
  // The deadline, or somebody who cancels.
  void end(Code code, const std::string& text) override;
  uint64_t next_timer_ns() const;
  void tick(uint64_t now_ns);
  // A message of a lane has ended.
  void on_end(Operation& part) override;
  // "allreduce #5 of 64 bytes, FLOAT32, SUM".
  std::string describe() const override;
  // "; still waits for rank 2, rank 3", or "".
  std::string missing() const;

 private:
  enum class Stage : uint8_t { kQueued, kLoading, kMoving, kStoring, kEnding, kOver };
  static constexpr size_t kLanesAtOnce = 4;
  // How long the reason of another rank may take.
  static constexpr uint64_t kReasonNs = 1'000'000'000;
  struct Lane {
    Plan plan;
    PoolBytes scratch;
    uint64_t index = 0;
    size_t next = 0;       // first step of the round
    uint32_t pending = 0;  // messages of the round
    bool posted = false;   // those of the round are
    bool active = false;
    void reset() {
      scratch.reset();
      next = pending = 0;
      posted = active = false;
    }
  };

  Code set_up_list(const Communicator& communicator, const Arguments& arguments, std::string* text);
  Code set_up_options(const Arguments& arguments, std::string* text);
  Code set_up_buffers(const Arguments& arguments, std::string* text);
  Code check_sizes(const Arguments& arguments, std::string* text);
  static Code fill_side(Side* side, const hetcomm_buffer_t* buffers, size_t count, bool parts,
                        std::string* text);
  Code check_elements(const Side& side, std::string* text) const;
  bool loads(const Side& side) const;
  bool stores() const;
  void load();
  bool start_copy(Side& side, StreamDirection direction);
  void on_copied(const Status& status) override;
  void begin_moving();
  bool scale();
  uint64_t oldest_lane() const;
  void advance(Lane& lane, size_t slot);
  void post_round(Lane& lane, size_t slot);
  size_t end_of_round(const Lane& lane) const;
  void run_step(Lane& lane, const Step& step);
  void run_reduction(Lane& lane, const Step& step);
  std::byte* address(const Lane& lane, const Range& range) const;
  void finish_lane(Lane& lane);
  void store();
  void finish();
  void try_to_end();
  void give_up(Code code, std::string_view why);
  Mesh& mesh() const;

  Communicator* communicator_ = nullptr;
  Team* team_ = nullptr;
  Operation* operation_ = nullptr;
  Problem problem_;
  Call call_;
  std::vector<int32_t> list_;  // ranks of the communicator; empty: all
  bool wait_all_ = false;
  bool in_segment_ = false;
  bool ready_ = false;
  Stage stage_ = Stage::kQueued;
  uint32_t copies_ = 0;  // under way
  uint64_t sequence_ = 0;
  uint64_t started_ns_ = 0;
  uint64_t forsaken_ns_ = 0;  // another rank has ended it; 0: none
  uint64_t tag_ = 0;
  Side send_;
  Side receive_;
  PoolBytes scaled_;
  uint64_t lanes_ = 0;
  uint64_t next_lane_ = 0;
  uint64_t lanes_done_ = 0;
  std::vector<Lane> lane_list_;  // those under way, and room
  std::vector<Operation*> parts_;
  std::vector<const std::byte*> inputs_;  // of a step
  Code code_ = Code::kOk;
  std::string text_;
};

}  // namespace hetcomm::collectives
