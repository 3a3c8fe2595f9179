// Device holds an open port and the objects that all connections of a transport share on it:
// protection domain, completion queue with its channel, and shared receive queue.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "src/base/status.h"
#include "src/system/config.h"
#include "src/system/log.h"
#include "transports/rdma/nic.h"
#include "transports/rdma/verbs.h"

namespace hetcomm::rdma {

// The maximum number of work requests in flight on one connection. Each may need an entry in the
// completion queue.
inline constexpr uint32_t kSendDepth = 128;

class Device {
 public:
  // Opens the device of port |name|. Sizes the queues for |connections| concurrent connections with
  // |credits| receives each, within the device's limits.
  static Result<std::unique_ptr<Device>> create(const Verbs& verbs, const Config& config,
                                                const std::string& name, uint32_t connections,
                                                uint32_t credits);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Verbs& verbs() const { return verbs_; }
  const Nic& nic() const { return nic_; }
  ibv_context* context() const { return context_.get(); }
  ibv_pd* pd() const { return pd_; }
  ibv_cq* cq() const { return cq_; }
  ibv_srq* srq() const { return srq_; }
  ibv_comp_channel* channel() const { return channel_; }
  uint32_t max_connections() const { return max_connections_; }
  uint32_t max_receives() const { return max_receives_; }

  // Rereads the port's addresses, which may have changed. Afterwards nic() has the current
  // addresses, possibly none.
  void refresh_addresses(const Config& config);
  // Returns the port's current GID at |index|; all-zero if there is none.
  GidBytes gid_at(uint32_t index) const;
  // Returns the port's current LID; 0 if it cannot be queried.
  uint16_t lid_now() const;

  // Counts a completion event that was read from the channel. The destructor acknowledges all of
  // them.
  void count_event() { ++events_; }

 private:
  Device(const Verbs& verbs, OpenNic nic);
  Status set_up(uint32_t connections, uint32_t credits);

  const Verbs& verbs_;
  const OpenContext context_;
  Nic nic_;
  ibv_pd* pd_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_srq* srq_ = nullptr;
  uint32_t max_connections_ = 0;
  uint32_t max_receives_ = 0;
  unsigned events_ = 0;
};

}  // namespace hetcomm::rdma
