// Device access knows which transports of a job reach memory of devices without staging, and
// attaches memory to them.
//
// When memory of a device is about to go over a transport for the first time, it tries whether the
// transport reaches the device. The result holds permanently, for that transport, which is one
// network interface. After a temporary failure it tries again; the pause before is long compared
// with the trial, and doubles each time. A trial allocates memory of the device and frees it, so
// there is none while a user's stream is held back; the memory is staged then. It attaches each
// memory on its first use. If a transport does not reach a memory, or refuses it, core stages. With
// HETCOMM_DEVICE_PATH=direct the operation fails instead. All calls are made under the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/memory/memory.h"
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
  // Notes whether device |device|, which was added, is beyond the root complex of the NIC of
  // transport number |index|.
  void set_far(size_t index, size_t device, bool far) HETCOMM_UNDER_BATON;
  // Forgets all transports, before they go. No memory is attached afterwards.
  void close() HETCOMM_UNDER_BATON;

  // Returns whether transport |index| moves all of |operation|'s memory by its extents(). The first
  // question about a device and a transport tries it, which takes milliseconds.
  bool reaches(const Operation& operation, size_t index) HETCOMM_UNDER_BATON;
  bool reaches(Memory& memory, size_t index) HETCOMM_UNDER_BATON;
  // Returns whether the network interface of transport |index| lies beyond the root complex of
  // device |device|, so that staging may be faster. It says nothing of whether the interface
  // reaches the device. False where HETCOMM_DEVICE_PATH=direct leaves no choice.
  bool is_far(size_t device, size_t index) const HETCOMM_UNDER_BATON {
    return !insists_ && device < 64 && (paths_[index].far_devices >> device & 1) != 0;
  }
  // Notes that transport |index| has refused to work with |operation|'s memory after all.
  void give_up(const Operation& operation, size_t index, const Status& why) HETCOMM_UNDER_BATON;
  // Lets the devices of |operation|'s memory see what network interfaces have written to it.
  static Status flush_remote_writes(const Operation& operation);

  // Returns whether HETCOMM_DEVICE_PATH=direct forbids staging.
  bool insists() const HETCOMM_UNDER_BATON { return insists_; }
  // Says why |operation| cannot go over transport |index| without staging.
  std::string refusal(const Operation& operation, size_t index) HETCOMM_UNDER_BATON;
  // Call this before users' streams are held back, since nothing is tried while they are. Tries
  // what was not tried yet of the devices that have such streams, or of all where nothing may be
  // staged, over those transports that |near| lets their data go over.
  void prepare_for_holds(const NearTransports& near) HETCOMM_UNDER_BATON;
  // Returns a line for each device and transport, and nothing if there are no devices. Tries what
  // was not tried yet, where |near| lets the device's data go over the transport.
  std::string explain(const NearTransports& near) HETCOMM_UNDER_BATON;

  void forget(const Memory& memory) override HETCOMM_UNDER_BATON;

 private:
  struct Verdict {
    std::optional<Status> status;  // none: not tried yet
    uint64_t again_ns = kForever;  // when it is tried again
    uint32_t failures = 0;         // temporary ones, in a row
  };
  struct Path {
    DeviceAttacher* attacher;  // null: it moves host memory only
    std::string name;
    uint64_t far_devices;
    std::vector<Verdict> verdicts;  // by device; one that was added later has none at first
    // A trial that failed recently with one device may fail with all. None is made before this
    // time.
    uint64_t resume_ns = 0;
    Status failure;
  };
  enum class State : uint8_t { kUnknown, kAttached, kRefused };

  Verdict& known_verdict(Path& path, size_t device) HETCOMM_UNDER_BATON;
  const Status& verdict(Path& path, size_t device) HETCOMM_UNDER_BATON;
  bool has_to_try(const Path& path, const Device& device) const HETCOMM_UNDER_BATON {
    return path.attacher != nullptr && !device.table->host_accessible && !staged_;
  }
  // |*out_hangs|: a copy of the device has not ended.
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
  std::unordered_map<const Memory*, std::vector<State>> memories_;  // by transport
};

}  // namespace hetcomm
