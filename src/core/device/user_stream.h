// UserStream is a user's stream. Operations can be put in order with the work in it.
//
//   post --> record(): puts an event after the earlier work --> hold(): later work waits
//        --> the event completes --> the operations start and end --> the hold ends
//
// If operations wait for several streams, marks in all streams are recorded before the first stream
// is held back. Otherwise two threads could each wait for a stream that the other holds.
//
// The library itself enqueues no copies in a user's stream.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "devices/device.h"
#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/device/memory.h"

namespace hetcomm {

class UserStream;

// Makes a user's stream wait for operations. The end of the last operation resumes the stream.
class StreamHold {
 public:
  StreamHold(UserStream& stream, void* hold) : stream_(stream), hold_(hold) {}
  StreamHold(const StreamHold&) = delete;
  StreamHold& operator=(const StreamHold&) = delete;
  ~StreamHold();

  UserStream& stream() const { return stream_; }
  void add_operation() HETCOMM_UNDER_BATON { ++operations_; }
  // Records the end of an operation. The last call deletes |this|.
  void drop_operation() HETCOMM_UNDER_BATON {
    if (--operations_ == 0) delete this;
  }
  bool has_operations() const HETCOMM_UNDER_BATON { return operations_ != 0; }

 private:
  UserStream& stream_;
  void* const hold_;
  uint32_t operations_ = 0;
};

// A mark in a user's stream, between earlier work and work that waits for operations. It counts as
// a use of the stream.
struct StreamMark {
  StreamMark() = default;
  StreamMark(StreamMark&& other) noexcept;
  StreamMark& operator=(StreamMark&&) = delete;
  ~StreamMark() {
    delete hold;
    forget_event();
  }
  void forget_event();
  // Abandons the mark. Its device was abandoned, so the stream may never reach the mark. Calls that
  // could wait for the mark are deferred.
  void abandon();

  UserStream* stream = nullptr;
  uint64_t number = 0;         // the stream reaches marks in ascending order of numbers
  void* event = nullptr;       // completes when the stream has reached this mark
  StreamHold* hold = nullptr;  // owned until operations share it; null: the stream is not held
};

class UserStream {
 public:
  // An open stream of a device. If |own| is not null, the library has created the stream.
  struct Opened {
    void* native = nullptr;  // the vendor's stream handle
    void* user_stream = nullptr;
    void* own = nullptr;
    bool held = true;  // the stream waits for the operations that name it
  };
  // Opens the stream |native| of device |index|. |held|: whether the stream is held back for its
  // operations. Fails with kUnsupported if the device has no user streams, or cannot hold streams
  // back although |held| is true. Fails with kInvalidArgument if |native| is not one of its
  // streams.
  static Result<Opened> open(const DeviceSet& devices, size_t index, void* native, bool held);
  // Creates a new stream of device |index|.
  static Result<Opened> create(const DeviceSet& devices, size_t index, bool held);
  static void close(const Device& device, const Opened& opened);
  // Takes ownership of |opened|.
  UserStream(DeviceSet& devices, size_t index, const Opened& opened)
      : devices_(devices), index_(index), opened_(opened) {}
  // Call this without the baton, because vendor calls may block.
  ~UserStream();
  UserStream(const UserStream&) = delete;
  UserStream& operator=(const UserStream&) = delete;

  const Device& device() const { return devices_.device(index_); }
  size_t device_index() const { return index_; }
  void* native() const { return opened_.native; }
  // Returns whether the stream waits for the operations that name it.
  bool is_held() const { return opened_.held; }
  // Records a mark at the end of the stream, without holding anything back. [any-thread]
  Result<StreamMark> record();
  // Holds back later work in the stream, if the stream is_held(). [any-thread]
  Status hold(StreamMark* mark);

  // Count the operations that name the stream, including prepared ones. [any-thread]
  void add_use() { uses_.fetch_add(1, std::memory_order_relaxed); }
  void drop_use() { uses_.fetch_sub(1, std::memory_order_release); }
  bool in_use() const { return uses_.load(std::memory_order_acquire) != 0; }

 private:
  friend class StreamHold;
  friend struct StreamMark;
  Status failed(hetcomm_status_t status) const;

  DeviceSet& devices_;
  const size_t index_;
  const Opened opened_;
  std::atomic<uint64_t> uses_{0};
  std::mutex recording_;
  uint64_t records_ = 0;  // under |recording_|
};

}  // namespace hetcomm
