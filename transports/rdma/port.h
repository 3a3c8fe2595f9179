// The port of a transport, with everything that all its connections share: queues, receives, memory
// regions, settings.
//
//   found   its name and addresses are known; its device is not open and costs nothing
//   open    from the first open() on, until the end
//
// Members are destroyed in reverse order, so the device's objects go before the device.
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
  // The device has been opened. If this fails it is closed again. It may come from inside any call
  // of the port that opens it.
  virtual Status on_port_opened() = 0;
  // The device is about to be closed, since one of its objects could not be made.
  virtual void on_port_closing() noexcept = 0;
  // The device or its queues have failed: no connection can go on. It may come more than once, and
  // from inside any call of the port.
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

  // Finds the port. All other calls come after it has succeeded.
  Status find(const Verbs& verbs);
  // Opens the device and makes its queues, unless that has been done. For a short time before the
  // next try, a failure is reported again. Lack of memory is a failure like any other.
  Status open();
  bool is_open() const { return device_ != nullptr; }

  const TransportEnvironment& environment() const { return environment_; }
  Poller& poller() { return environment_.poller; }
  Log& log() { return environment_.log; }
  const Settings& settings() const { return settings_; }
  const Verbs& verbs() const { return *verbs_; }
  // The port as it was found, or as the open device reports it.
  const Nic& nic() const { return is_open() ? device_->nic() : found_; }
  // These exist while the port is open.
  Device& device() { return *device_; }
  // Asks the device, regardless of events.
  bool has_address(const Gid& gid) const { return device_->gid_at(gid.index) == gid.bytes; }
  MemoryRegionCache& memory_regions() { return *memory_regions_; }
  ReceivePool& receives() { return *receives_; }
  CompletionInbox& completions() { return completions_; }
  const CompletionInbox& completions() const { return completions_; }

  // The reason why the port is unusable, or kOk.
  const Status& broken() const { return broken_; }
  // Notes the first reason, and tells the handler.
  void break_down(std::string_view reason) noexcept;

  // Opens the port, and makes a queue pair with receives. |count| is the number of queue pairs with
  // this one.
  Result<std::unique_ptr<QueuePair>> make_queue_pair(size_t count);
  Parameters parameters_of(const QueuePair& pair, const Gid& mine, const GidBytes& peer) const;
  // Stops |pair| and takes all its completions. Bounded in time; no upcalls.
  void quiesce(QueuePair& pair);
  // Discards completions for queue pair |number|, which is stopped and has sent nothing.
  void discard_arrived(uint32_t number);

  // Asks the device for completions once. Returns how many came.
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
  // Lets the next completion of the open port make an event. False: the port is broken.
  bool arm();
  // Takes all completion events, after one has come.
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
  uint64_t next_open_ns_ = 0;  // by the real clock
  bool armed_ = false;         // the next completion makes an event
  CompletionInbox completions_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<ReceivePool> receives_;
  std::unique_ptr<MemoryRegionCache> memory_regions_;
};

}  // namespace hetcomm::rdma
