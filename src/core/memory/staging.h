// Staging copies between device memory and pinned chunks of host memory, for transports that cannot
// reach the device.
//
// Copies run on the devices' streams, and progress() queries their events. While copies run, a
// thread may sleep if the devices promise to end the sleep (event_notify). All calls are made
// under the baton.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/span.h"
#include "src/base/status.h"
#include "src/core/device/abandoned_copies.h"
#include "src/core/device/memory.h"
#include "src/core/device/stand_ins.h"
#include "src/core/memory/chunk_pools.h"
#include "src/core/memory/throughput.h"
#include "src/core/progress/operation.h"
#include "src/core/progress/spin_policy.h"

namespace hetcomm {

class CopyHandler {
 public:
  // Called when the copy has ended and no longer touches the memory of either side. The exception
  // is a copy of an abandoned device (see DeviceSet::is_abandoned()), which may continue. Host
  // memory that it may touch is not reused before it has ended (see DeviceSet::abandoned()).
  virtual void on_copied(const Status& status) HETCOMM_UNDER_BATON = 0;
  // Returns readable text about the purpose of the copy.
  virtual std::string copy_purpose() const HETCOMM_UNDER_BATON = 0;

 protected:
  ~CopyHandler() = default;
};

// One asynchronous copy, or one piece of work on a device. A copy may involve several devices.
class CopyJob {
 public:
  bool running() const HETCOMM_UNDER_BATON { return running_; }

 private:
  friend class Staging;
  struct Event {
    const Device* device;
    void* event;
    uint64_t bytes;
    HostRange host;  // host memory that the copy touches
    uint64_t started_ns;
    uint32_t load;    // index of its load in Staging::loads_
    bool is_near;     // the host's processors make the copy
    bool ends_sleep;  // the device has promised to end a sleep
  };
  // A stream with copies that have no event to signal their end.
  struct Unended {
    size_t device;
    StreamDirection direction;
    HostRange host;  // host memory that the copies touch
  };
  static constexpr size_t kFewEvents = 2;

  bool has_events() const HETCOMM_UNDER_BATON { return few_ != 0; }
  void make_room() HETCOMM_UNDER_BATON {
    if (few_ != kFewEvents || more_events_.size() < more_events_.capacity()) return;
    more_events_.reserve(2 * more_events_.size() + 1);
  }
  // Adds |event|. Call make_room() first.
  void push(const Event& event) HETCOMM_UNDER_BATON {
    if (few_ < kFewEvents) {
      first_events_[few_++] = event;
    } else {
      more_events_.push_back(event);
    }
  }
  Event& last() HETCOMM_UNDER_BATON {
    return more_events_.empty() ? first_events_[few_ - 1] : more_events_.back();
  }
  // Removes the events for which take(event) is true.
  template <typename Take>
  void take_events(Take&& take) HETCOMM_UNDER_BATON {
    std::erase_if(more_events_, take);
    for (size_t i = few_; i-- > 0;) {
      if (!take(first_events_[i])) continue;
      for (size_t j = i; j + 1 < few_; ++j) first_events_[j] = first_events_[j + 1];
      --few_;
      if (more_events_.empty()) continue;
      first_events_[few_++] = more_events_.front();
      more_events_.erase(more_events_.begin());
    }
  }
  void pop() HETCOMM_UNDER_BATON {
    if (more_events_.empty()) {
      --few_;
    } else {
      more_events_.pop_back();
    }
  }

  std::array<Event, kFewEvents> first_events_{};
  size_t few_ = 0;
  std::vector<Event> more_events_;
  std::optional<Unended> unended_;
  CopyHandler* handler_ = nullptr;
  CopyJob* next_ = nullptr;
  Status status_;
  bool running_ = false;
};

// Rows of device memory, and the host memory that holds them contiguously.
struct StagedRows {
  Memory* memory = nullptr;
  DeviceRows rows;
  std::byte* host = nullptr;
};

// Rows of device memory that are copied to other rows of device memory.
struct RowsBetween {
  Memory* from = nullptr;
  DeviceRows from_rows;
  Memory* to = nullptr;
  DeviceRows to_rows;
};

// Work that a device does in one stream: copies or reductions.
class DeviceWork {
 public:
  // Enqueues all of the work in |stream| of |device|. Returns the status of the first call that
  // fails.
  virtual hetcomm_status_t start(const Device& device, void* stream) = 0;
  // Returns the host memory that the work reads and writes.
  virtual HostRange host() const = 0;
  // Returns whether start() may have enqueued commands that write results.
  virtual bool has_begun_to_write() const = 0;

 protected:
  ~DeviceWork() = default;
};

// Returns whether devices can copy directly from |from| to |to|.
bool can_copy_between(const Memory& from, const Memory& to);

class Staging {
 public:
  // |spin| is notified of copies that processors of this host make; may be null.
  Staging(DeviceSet& devices, const StagingOptions& options, SpinPolicy* spin = nullptr);

  ChunkPools& chunks() { return chunks_; }
  // Chooses |share|'s shape for |length| bytes of |pieces|, unless it was chosen before. The shape
  // depends on the copy costs of the pieces' device, and the chunks are near that device.
  void choose_shape(ChunkPools::Share& share, uint64_t length, StreamDirection direction,
                    const std::vector<BufferPiece>& pieces) HETCOMM_UNDER_BATON {
    if (share.shape().chunk_bytes != 0) return;
    share.choose_shape(length, costs(direction, pieces), chunk_kind_of(pieces));
  }
  // Starts copying [offset, offset + length) of |pieces| to or from |host|. on_copied() is always
  // called from a later progress(), even if the start fails. |job| must live until then.
  void start(CopyJob& job, StreamDirection direction, const std::vector<BufferPiece>& pieces,
             uint64_t offset, std::byte* host, uint64_t length,
             CopyHandler& handler) HETCOMM_UNDER_BATON;
  // Starts copying rows to or from the host.
  void start(CopyJob& job, StreamDirection direction, std::span<const StagedRows> pieces,
             CopyHandler& handler) HETCOMM_UNDER_BATON;
  // Starts copying rows between devices. Requires can_copy_between().
  void start(CopyJob& job, std::span<const RowsBetween> pieces,
             CopyHandler& handler) HETCOMM_UNDER_BATON;
  // Starts |work| on device number |device|, whose results have |bytes|. progress() later calls
  // on_copied(). Returns false if the work failed before it began to write. Nothing runs then, and
  // on_copied() is not called. If failed work may still run because a held stream prevents waiting
  // for its end, this returns true and on_copied() reports the failure.
  bool try_start(CopyJob& job, size_t device, uint64_t bytes, DeviceWork& work,
                 CopyHandler& handler) HETCOMM_UNDER_BATON;
  int progress() HETCOMM_UNDER_BATON;
  // See DeviceUser. The next progress() reports the device's copies as ended, with the reason why
  // the device was abandoned.
  void on_abandoned(size_t index) HETCOMM_UNDER_BATON;
  void describe_oldest_copy(size_t index, uint64_t now_ns, uint64_t* started_ns,
                            std::string* text) HETCOMM_UNDER_BATON;
  // Returns the record of abandoned copies, which keeps the memory that they may touch.
  AbandonedCopies& abandoned() HETCOMM_UNDER_BATON { return devices_.abandoned(); }
  bool idle() const HETCOMM_UNDER_BATON { return running_ == nullptr; }
  // See Driven's functions of the same names. Completed copies end the sleep. The functions return
  // false if a device cannot signal completion in this way.
  bool prepare_sleep() HETCOMM_UNDER_BATON;
  bool may_sleep_on() const HETCOMM_UNDER_BATON;
  // Creates streams and blocks for device |index| before its users' streams are held back, since
  // nothing can be pinned while they are.
  void prepare_for_holds(size_t index) HETCOMM_UNDER_BATON;
  // Returns the costs of copies by the pieces' device, as measured recently.
  CopyCosts costs(StreamDirection direction,
                  const std::vector<BufferPiece>& pieces) HETCOMM_UNDER_BATON;
  // Returns the best length for copies of |pieces| when this thread has other work: each copy
  // interrupts that work, and wakes the thread if it sleeps.
  uint64_t slice_bytes(StreamDirection direction,
                       const std::vector<BufferPiece>& pieces) HETCOMM_UNDER_BATON;
  // Returns whether copies to |pieces| are as fast from another process's memory as from chunks.
  bool takes_any_memory(const std::vector<BufferPiece>& pieces) HETCOMM_UNDER_BATON;
  // Returns host memory that stands for |pieces|; empty if out of memory. Where possible, the
  // pieces' device copies to and from it at full speed.
  StandIns::Memory stand_in(uint64_t size,
                            const std::vector<BufferPiece>& pieces) HETCOMM_UNDER_BATON;

 private:
  static constexpr uint64_t kKeptStandIns = 128u << 20;
  // Adds the loads of devices that were added since the last call.
  void meet_devices();
  template <typename Check>
  bool check_first_events(Check&& check) const HETCOMM_UNDER_BATON;
  void end_copies(CopyJob& job) HETCOMM_UNDER_BATON;
  void enlist(CopyJob& job, CopyHandler& handler) HETCOMM_UNDER_BATON;
  // Called once |job| has been started as far as possible. A job without events is reported in the
  // next pass.
  void note_started(const CopyJob& job) HETCOMM_UNDER_BATON {
    if (!job.has_events() || job.unended_) look_at_all_ = true;
  }
  void add_event(CopyJob& job, const CopyJob::Event& event) HETCOMM_UNDER_BATON;
  void drop_event(uint32_t load) HETCOMM_UNDER_BATON {
    if (--loads_[load].events == 0) --busy_loads_;
  }
  template <typename Piece, typename Copy>
  Status submit_alike(CopyJob& job, StreamDirection direction, std::span<const Piece>& pieces,
                      Memory* Piece::*memory, DeviceRows Piece::*rows,
                      Copy&& copy) HETCOMM_UNDER_BATON;
  template <typename Submit>
  Status submit(CopyJob& job, StreamDirection direction, size_t device, uint64_t length,
                const HostRange& host, Submit&& copies) HETCOMM_UNDER_BATON;
  Status start_piece(CopyJob& job, StreamDirection direction, const BufferPiece& piece,
                     uint64_t offset, std::byte* host, uint64_t length) HETCOMM_UNDER_BATON;
  size_t chunk_kind_of(const std::vector<BufferPiece>& pieces) HETCOMM_UNDER_BATON;
  static uint32_t load_of(size_t device, StreamDirection direction) {
    return static_cast<uint32_t>(device * kStreamDirections) + static_cast<uint32_t>(direction);
  }
  static size_t device_of(const CopyJob::Event& event) { return event.load / kStreamDirections; }

  DeviceSet& devices_;
  SpinPolicy* const spin_;
  ChunkPools chunks_;
  StandIns stand_ins_;
  CopyJob* running_ = nullptr;  // list of jobs, oldest first
  CopyJob** running_end_ = &running_;
  bool look_at_all_ = false;  // the next progress() checks all jobs, since some wait for no event
  size_t busy_loads_ = 0;     // loads that have events
  uint64_t pass_ = 0;
  // By load: whether check_first_events() has seen the first event. All are false between calls.
  mutable std::vector<bool> found_;
  struct Load {
    Throughput copies;
    double start_s = 0;       // CopyCosts::start_s
    size_t events = 0;        // events of running jobs
    uint64_t pending_in = 0;  // last pass that found its first event incomplete
  };
  std::vector<Load> loads_;  // one for each direction of each device
};

}  // namespace hetcomm
