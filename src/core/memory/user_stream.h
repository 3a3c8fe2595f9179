// Users' streams, into whose order operations are put.
//
//   post --> record(): an event after what the stream holds --> hold(): what comes later waits
//        --> the event completes --> the operations start and end --> the hold ends
//
// Where operations wait for several streams, all are recorded before the first is held back.
// Otherwise two threads could each wait for what the other one holds.
//
// The library copies nothing in a user's stream.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "devices/device.h"
#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/memory/memory.h"

namespace hetcomm {

class UserStream;

// Makes a user's stream wait for operations. The last of them that ends lets it go on.
class StreamHold {
 public:
  StreamHold(UserStream& stream, void* hold) : stream_(stream), hold_(hold) {}
  StreamHold(const StreamHold&) = delete;
  StreamHold& operator=(const StreamHold&) = delete;
  ~StreamHold();

  UserStream& stream() const { return stream_; }
  void add_operation() HETCOMM_UNDER_BATON { ++operations_; }
  // One operation has ended. The last one deletes |this|.
  void drop_operation() HETCOMM_UNDER_BATON {
    if (--operations_ == 0) delete this;
  }
  bool has_operations() const HETCOMM_UNDER_BATON { return operations_ != 0; }

 private:
  UserStream& stream_;
  void* const hold_;
  uint32_t operations_ = 0;
};

// A place in a user's stream, between what comes before operations and what waits for them. It uses
// the stream.
struct StreamPlace {
  StreamPlace() = default;
  StreamPlace(StreamPlace&& other) noexcept;
  StreamPlace& operator=(StreamPlace&&) = delete;
  ~StreamPlace() {
    delete hold;
    forget_event();
  }
  void forget_event();
  // Its device was given up and may never come here. Calls that could wait for that are put off.
  void abandon();

  UserStream* stream = nullptr;
  uint64_t number = 0;         // the stream comes to places in the order of their numbers
  void* event = nullptr;       // completes when the stream has come here
  StreamHold* hold = nullptr;  // owned until operations have it; null: the stream goes on
};

class UserStream {
 public:
  // A stream of a device that is used. If |own| is not null, its stream_create() has made it.
  struct Opened {
    void* native = nullptr;  // what the vendor calls it
    void* user_stream = nullptr;
    void* own = nullptr;
    bool held = true;  // waits for the operations that name it
  };
  // Opens the stream |native| of device |index|, which will be |held| back or not. UNSUPPORTED: the
  // device has no such streams. INVALID_ARGUMENT: |native| is not one of its streams.
  static Result<Opened> open(const DeviceSet& devices, size_t index, void* native, bool held);
  // Makes a new stream of device |index|.
  static Result<Opened> create(const DeviceSet& devices, size_t index, bool held);
  static void close(const Device& device, const Opened& opened);
  // Takes |opened| over.
  UserStream(DeviceSet& devices, size_t index, const Opened& opened)
      : devices_(devices), index_(index), opened_(opened) {}
  // Call this without the baton: the vendor may wait.
  ~UserStream();
  UserStream(const UserStream&) = delete;
  UserStream& operator=(const UserStream&) = delete;

  const Device& device() const { return devices_.device(index_); }
  size_t device_index() const { return index_; }
  void* native() const { return opened_.native; }
  // Whether it waits for the operations that name it.
  bool is_held() const { return opened_.held; }
  // Puts a place at the end of the stream, which holds nothing back yet. [any-thread]
  Result<StreamPlace> record();
  // Holds back later work in the stream, if streams like this one are held. [any-thread]
  Status hold(StreamPlace* place);

  // Operations that name it, prepared ones included. [any-thread]
  void add_use() { uses_.fetch_add(1, std::memory_order_relaxed); }
  void drop_use() { uses_.fetch_sub(1, std::memory_order_release); }
  bool in_use() const { return uses_.load(std::memory_order_acquire) != 0; }

 private:
  friend class StreamHold;
  friend struct StreamPlace;
  Status failed(hetcomm_status_t status) const;

  DeviceSet& devices_;
  const size_t index_;
  const Opened opened_;
  std::atomic<uint64_t> uses_{0};
  std::mutex recording_;
  uint64_t records_ = 0;  // under |recording_|
};

}  // namespace hetcomm
