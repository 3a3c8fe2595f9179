// Port is the NIC port of one transport, with everything that the transport's connections share:
// queues, receives, memory regions, settings.
//
//   found   name and addresses are known; the device is closed and uses no resources
//   open    from the first successful open() until destruction
//
// Members are destroyed in reverse order, so the device's objects are destroyed before the device.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "src/base/status.h"
#include "transports/rdma/completion_inbox.h"
#include "transports/rdma/device.h"
#include "transports/rdma/memory_region_cache.h"
#include "transports/rdma/queue_pair.h"
#include "transports/rdma/receive_pool.h"
#include "transports/rdma/settings.h"
#include "transports/rdma/wire.h"
#include "transports/transport.h"

namespace hetcomm::rdma {

class PortHandler {
 public:
  // Reports that the device has been opened. If the upcall fails, the device is closed again. Any
  // call to the port that opens the device may make this upcall.
  virtual Status on_port_opened() = 0;
  // Reports that the device is about to be closed, since one of its objects could not be created.
  virtual void on_port_closing() noexcept = 0;
  // Reports that the device or its queues have failed, so no connection can continue. Any call to
  // the port may make this upcall, possibly several times.
  virtual void on_port_broken(std::string_view reason) noexcept = 0;

 protected:
  ~PortHandler() = default;
};

class Port {
 public:
  Port(const TransportEnvironment& environment, PortHandler& handler)
      : environment_(environment),
        settings_(read_settings(environment.config)),
        handler_(handler) {}
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  // Finds the port. Must succeed before any other call.
  Status find(const Verbs& verbs);
  // Opens the device and creates its queues, unless it is already open. After a failure, calls
  // report the same failure for 0.1 s before the next attempt. Lack of memory is also returned as a
  // failure, but the next call tries again immediately.
  Status open();
  bool is_open() const { return device_ != nullptr; }

  const TransportEnvironment& environment() const { return environment_; }
  Poller& poller() { return environment_.poller; }
  Log& log() { return environment_.log; }
  const Settings& settings() const { return settings_; }
  const Verbs& verbs() const { return *verbs_; }
  // Returns the port as found, or as the open device reports it.
  const Nic& nic() const { return is_open() ? device_->nic() : found_; }
  // device(), has_address(), memory_regions() and receives() require that the port is open.
  Device& device() { return *device_; }
  // Returns whether the port still has |gid|. Queries the device, since the event that reports a
  // change may not have been read yet.
  bool has_address(const Gid& gid) const { return device_->gid_at(gid.index) == gid.bytes; }
  MemoryRegionCache& memory_regions() { return *memory_regions_; }
  ReceivePool& receives() { return *receives_; }
  CompletionInbox& completions() { return completions_; }
  const CompletionInbox& completions() const { return completions_; }

  // Returns the reason why the port is unusable, or kOk.
  const Status& broken() const { return broken_; }
  // Marks the port as unusable and calls on_port_broken(). broken() keeps the first reason.
  void break_down(std::string_view reason) noexcept;

  // Opens the port, ensures that there are receives for |count| queue pairs, and creates a queue
  // pair. |count| includes the new queue pair.
  Result<std::unique_ptr<QueuePair>> make_queue_pair(size_t count);
  Parameters parameters_of(const QueuePair& pair, const Gid& mine, const GidBytes& peer) const;
  // Stops |pair| and fetches its completions until all have arrived or a time limit has passed.
  // Makes no upcalls except on_port_broken().
  void quiesce(QueuePair& pair);
  // Discards completions for queue pair |number|, which has been stopped and never sent anything.
  void discard_arrived(uint32_t number);

  // Polls the device for completions once. Returns the number fetched.
  size_t fetch() {
    if (!is_open()) return 0;
    const int got = completions_.fetch(device_->verbs(), device_->cq());
    if (got >= 0) [[likely]]
      return static_cast<size_t>(got);
    if (broken_.ok()) break_down("the completion queue cannot be read");
    return 0;
  }
  void post_receives() {
    if (is_open() && !receives_->flush()) break_down("receives cannot be posted");
  }
  // Requests an event for the next completion, unless the port is broken. Returns false if the
  // device refuses, which breaks the port. The port must be open.
  bool arm();
  // Reads all completion events after at least one has arrived.
  void take_completion_events();

 private:
  void recycle(const ibv_wc& receive);
  Status try_open();
  void close() noexcept;

  const TransportEnvironment environment_;
  const Verbs* verbs_ = nullptr;
  Nic found_;
  Settings settings_;
  PortHandler& handler_;
  Status broken_;
  Status open_failure_;
  uint64_t next_open_ns_ = 0;  // earliest time of the next attempt to open, on the real clock
  bool armed_ = false;         // the next completion causes an event
  CompletionInbox completions_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<ReceivePool> receives_;
  std::unique_ptr<MemoryRegionCache> memory_regions_;
};

}  // namespace hetcomm::rdma
