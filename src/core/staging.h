// Staging: copies between device memory and pinned chunks of host memory, for transports that
// cannot reach the device.
//
// Two pools of chunks, one for sending and one for receiving, so that one direction cannot starve
// the other. Each pool is bounded, but whoever holds no chunk always gets one: a transfer can
// always go on, so staging cannot deadlock. Copies run on the devices' streams; progress() asks
// their events. All calls under the baton.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/core/memory.h"
#include "src/core/operation.h"

namespace hetcomm {

class CopyHandler {
 public:
  // The copy is over; neither side's memory is touched by it any more.
  virtual void on_copied(const Status& status) = 0;

 protected:
  ~CopyHandler() = default;
};

// One copy between a host range and a range of a message's pieces, perhaps on several devices.
class CopyJob {
 public:
  bool running() const { return running_; }

 private:
  friend class Staging;
  struct Event {
    const Device* device;
    void* event;
  };
  static constexpr size_t kFewEvents = 2;

  bool has_events() const { return few_ != 0; }
  void push(const Event& event) {
    if (few_ < kFewEvents) {
      first_events_[few_++] = event;
    } else {
      more_events_.push_back(event);
    }
  }
  const Event& last() const {
    return more_events_.empty() ? first_events_[few_ - 1] : more_events_.back();
  }
  void pop() {
    if (more_events_.empty()) {
      --few_;
    } else {
      more_events_.pop_back();
    }
  }

  std::array<Event, kFewEvents> first_events_{};
  size_t few_ = 0;
  std::vector<Event> more_events_;
  CopyHandler* handler_ = nullptr;
  Status status_;
  bool running_ = false;
};

class Staging {
 public:
  enum class Pool : uint8_t { kSend, kReceive };

  Staging(DeviceSet& devices, uint64_t chunk_bytes)
      : devices_(devices), chunk_bytes_(chunk_bytes) {}
  ~Staging();

  uint64_t chunk_bytes() const { return chunk_bytes_; }
  // A pinned chunk, null when the pool is used up and |holds_one|, or when memory is exhausted
  // (|*exhausted|).
  std::byte* acquire(Pool pool, bool holds_one, bool* exhausted);
  void release(Pool pool, std::byte* chunk);

  // Starts copying [offset, offset + length) of |pieces| to or from |host|. on_copied follows from
  // progress(), always; a failure to start is reported the same way. |job| stays until then.
  void start(CopyJob& job, StreamDirection direction, const std::vector<BufferPiece>& pieces,
             uint64_t offset, std::byte* host, uint64_t length, CopyHandler& handler);
  int progress();
  bool idle() const { return running_.empty(); }

 private:
  static constexpr size_t kMaxChunks = 32;  // of each pool, before the guaranteed ones
  struct PoolState {
    std::vector<std::byte*> free;
    size_t made = 0;
  };
  Status start_piece(CopyJob& job, StreamDirection direction, const BufferPiece& piece,
                     uint64_t offset, std::byte* host, uint64_t length);
  std::byte* make_chunk();

  DeviceSet& devices_;
  uint64_t chunk_bytes_;
  PoolState pools_[2];
  std::vector<std::byte*> chunks_;
  std::vector<CopyJob*> running_;
};

}  // namespace hetcomm
