// PortSource describes the ports of an RDMA device. OpenPorts queries the open device. PortFiles
// reads the kernel's files, which does not require the device to be open.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "src/base/status.h"
#include "transports/rdma/verbs.h"

namespace hetcomm::rdma {

struct PortState {
  ibv_port_state state = IBV_PORT_NOP;
  bool ethernet = true;
  uint16_t lid = 0;
  uint64_t rate_mbit = 0;
  uint32_t gids = 0;  // entries in the GID table, most of which may be empty
};

class PortSource {
 public:
  // Returns the number of ports, which are numbered from 1. Returns 0 if this source has no
  // information.
  virtual uint32_t ports() const = 0;
  virtual Result<PortState> read(uint8_t port) const = 0;
  // Returns the bytes and the type of a GID. If there is no GID, returns nullopt or all-zero bytes.
  virtual std::optional<ibv_gid_entry> gid(uint8_t port, uint32_t index) const = 0;

 protected:
  ~PortSource() = default;
};

class OpenPorts final : public PortSource {
 public:
  OpenPorts(const Verbs& verbs, ibv_context* context, uint32_t ports)
      : verbs_(verbs), context_(context), ports_(ports) {}
  uint32_t ports() const override { return ports_; }
  Result<PortState> read(uint8_t port) const override;
  std::optional<ibv_gid_entry> gid(uint8_t port, uint32_t index) const override;

 private:
  const Verbs& verbs_;
  ibv_context* const context_;
  const uint32_t ports_;
};

class PortFiles final : public PortSource {
 public:
  // |folder| is the device's folder below /sys; empty if there is none.
  explicit PortFiles(std::string folder);
  uint32_t ports() const override { return ports_; }
  Result<PortState> read(uint8_t port) const override;
  std::optional<ibv_gid_entry> gid(uint8_t port, uint32_t index) const override;

 private:
  std::string folder_of(uint8_t port) const;

  const std::string folder_;
  uint32_t ports_ = 0;
};

}  // namespace hetcomm::rdma
