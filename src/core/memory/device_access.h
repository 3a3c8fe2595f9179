// Which transports of a job reach memory of devices by themselves, without staging, and what they
// were told of it.
//
// Whether a transport reaches a device is tried once, when the job is created; each memory is
// attached on its first use. Where it is not reached, or was refused, core stages: with
// HETCOMM_DEVICE_PATH=direct the operation fails instead. All under the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/base/config.h"
#include "src/base/log.h"
#include "src/core/memory/memory.h"
#include "src/core/progress/operation.h"
#include "transports/transport.h"

namespace hetcomm {

class DeviceAccess final : public MemoryUser {
 public:
  DeviceAccess(DeviceSet& devices, const Config& config, Log& log);
  ~DeviceAccess() = default;
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;

  // Transports in the order of their numbers, each tried with every device. |attacher| is null for
  // one that moves host memory only. Blocks.
  void add(DeviceAttacher* attacher, const std::string& name);
  // Before the transports go. Nothing is attached any more.
  void close();

  // Whether transport |index| moves all of |operation|'s memory by its segments().
  bool reaches(const Operation& operation, size_t index);
  bool reaches(Memory& memory, size_t index);
  // The transport has refused to work with |operation|'s memory after all.
  void give_up(const Operation& operation, size_t index, const Status& why);
  // What network interfaces have written to |operation|'s memory is seen by its devices.
  static Status flush_remote_writes(const Operation& operation);

  // Nothing may be staged.
  bool insists() const { return insists_; }
  // Why |operation| cannot go over transport |index| as it is wanted.
  std::string refusal(const Operation& operation, size_t index) const;
  // A line for each device and transport; empty without devices.
  std::string explain() const;

  void forget(const Memory& memory) override;

 private:
  struct Path {
    DeviceAttacher* attacher;  // null: no verdict is good
    std::string name;
    std::vector<Status> verdicts;  // by device
  };
  enum class State : uint8_t { kUnknown, kAttached, kRefused };

  State& state_of(const Memory& memory, size_t index);

  DeviceSet& devices_;
  Log& log_;
  const bool staged_;
  const bool insists_;
  std::vector<Path> paths_;
  std::unordered_map<const Memory*, std::vector<State>> memories_;  // by transport
};

}  // namespace hetcomm
