// An open port, and the objects that all connections of a transport share on it: protection domain,
// completion queue with its channel, shared receive queue.
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

// Work requests of one connection, each of which may need a completion.
inline constexpr uint32_t kSendDepth = 128;

class Device {
 public:
  // Opens the device of port |name|. Makes room for |connections| at a time, each with |credits|
  // receives, as far as the device allows.
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

  // Reads the port's addresses, which may have changed. Afterwards nic() has the current ones,
  // perhaps none.
  void refresh_addresses(const Config& config);
  // The GID that the port has at |index| now; all-zero for none.
  GidBytes gid_at(uint32_t index) const;
  // The port's LID now; 0 when it cannot be asked.
  uint16_t lid_now() const;

  // Counts a completion event that was taken from the channel.
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
