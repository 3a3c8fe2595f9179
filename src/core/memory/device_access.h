// DeviceAccess determines which transports of a job reach device memory without staging, and
// attaches memory to them.
//
// When device memory is about to be sent over a transport for the first time, a trial determines
// whether the transport reaches the device. The result is final for that transport, and so for its
// network interface. After a temporary failure the trial is repeated; the pause before it is long
// compared with the trial, and doubles each time. A trial allocates and frees device memory.
// Therefore no trial is made while a user's stream is held back, and the memory is staged. Each
// memory is attached on its first use. If a transport does not reach a memory, or refuses it, core
// stages the data. With HETCOMM_DEVICE_PATH=direct the operation fails instead. All calls are made
// under the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/device/memory.h"
#include "src/core/memory/near_transports.h"
#include "src/core/progress/operation.h"
#include "src/system/clock.h"
#include "src/system/config.h"
#include "src/system/log.h"
#include "transports/transport.h"

namespace hetcomm {

class DeviceAccess final : public MemoryUser {
 public:
  DeviceAccess(DeviceSet& devices, const Config& config, Log& log);
  ~DeviceAccess() = default;
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;

  // Adds the next transport, in the order of their numbers. |attacher| is null for a transport that
  // moves host memory only. |far_devices| has a bit for each device beyond the root complex of its
  // network interface.
  void add(DeviceAttacher* attacher, const std::string& name,
           uint64_t far_devices = 0) HETCOMM_UNDER_BATON;
  // Sets whether device |device|, which was added, is beyond the root complex of the NIC of
  // transport number |index|.
  void set_far(size_t index, size_t device, bool far) HETCOMM_UNDER_BATON;
  // Drops all transports before they are destroyed. No memory is attached afterwards.
  void close() HETCOMM_UNDER_BATON;

  // Returns whether transport |index| moves all of |operation|'s memory without staging. The first
  // call for a device and a transport makes the trial, which takes milliseconds.
  bool reaches(const Operation& operation, size_t index) HETCOMM_UNDER_BATON;
  bool reaches(Memory& memory, size_t index) HETCOMM_UNDER_BATON;
  // Returns whether the network interface of transport |index| is beyond the root complex of device
  // |device|, in which case staging may be faster. Such an interface may still reach the device.
  // Always returns false with HETCOMM_DEVICE_PATH=direct, which leaves no choice.
  bool is_far(size_t device, size_t index) const HETCOMM_UNDER_BATON {
    return !insists_ && device < 64 && (paths_[index].far_devices >> device & 1) != 0;
  }
  // Records that transport |index| has refused |operation|'s memory after a successful trial.
  void give_up(const Operation& operation, size_t index, const Status& why) HETCOMM_UNDER_BATON;
  // Makes network interfaces' writes to |operation|'s memory visible to its devices.
  static Status flush_remote_writes(const Operation& operation);

  // Returns whether HETCOMM_DEVICE_PATH=direct forbids staging.
  bool insists() const HETCOMM_UNDER_BATON { return insists_; }
  // Returns the reason why |operation| cannot use transport |index| without staging.
  std::string refusal(const Operation& operation, size_t index) HETCOMM_UNDER_BATON;
  // Makes the outstanding trials before users' streams are held back, because no trial is made
  // while they are. Tries the devices that have such streams, or all devices if insists(), over the
  // transports that |near| allows for their data.
  void prepare_for_holds(const NearTransports& near) HETCOMM_UNDER_BATON;
  // Returns a line for each device whose memory the host cannot access and each transport to other
  // ranks, or an empty text if there are none. Makes outstanding trials where |near| allows the
  // transport for the device's data.
  std::string explain(const NearTransports& near) HETCOMM_UNDER_BATON;

  void forget(const Memory& memory) override HETCOMM_UNDER_BATON;

 private:
  struct Verdict {
    std::optional<Status> status;  // none: not tried yet
    uint64_t again_ns = kForever;  // time of the next trial; kForever: the result is final
    uint32_t failures = 0;         // consecutive temporary failures
  };
  struct Path {
    DeviceAttacher* attacher;  // null: the transport moves host memory only
    std::string name;
    uint64_t far_devices;
    std::vector<Verdict> verdicts;  // by device; grows when a new device is looked up
    // If a trial with one device has failed recently, trials with other devices may fail too. None
    // is made before this time.
    uint64_t resume_ns = 0;
    Status failure;
  };
  enum class State : uint8_t { kUnknown, kAttached, kRefused };

  Verdict& known_verdict(Path& path, size_t device) HETCOMM_UNDER_BATON;
  const Status& verdict(Path& path, size_t device) HETCOMM_UNDER_BATON;
  bool has_to_try(const Path& path, const Device& device) const HETCOMM_UNDER_BATON {
    return path.attacher != nullptr && !device.table->host_accessible && !staged_;
  }
  // Makes a trial. Sets |*out_hangs| to whether the trial's copy has not ended.
  Status try_device(Path& path, const Device& device, bool* out_hangs) HETCOMM_UNDER_BATON;
  State& state_of(const Memory& memory, size_t index) HETCOMM_UNDER_BATON;

  DeviceSet& devices_;
  Log& log_;
  const bool staged_;
  const bool insists_;
  const Status held_back_{Code::kOutOfResources,
                          "it is tried when no stream of a user is held back, and no copy that was "
                          "given up is under way"};
  std::vector<Path> paths_;
  std::unordered_map<const Memory*, std::vector<State>> memories_;  // states by transport
};

}  // namespace hetcomm
