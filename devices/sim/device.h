// SimDevice simulates an accelerator without hardware: memory that the CPU cannot access, copies
// that take time, streams and events. README.md describes what is modelled.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "devices/device.h"
#include "devices/sim/memory.h"
#include "devices/sim/options.h"
#include "devices/sim/stream.h"
#include "src/base/status.h"

namespace hetcomm {

// An event handle points to a SimEvent, which its device recycles.
struct SimEvent {
  std::shared_ptr<SimTimeline> timeline;  // null while the event is free
  uint64_t count = 0;                     // copies that must be complete
};

// The instance on which the functions of the tables "sim-handle" and "sim-address" operate. All
// functions except the destructor are thread-safe.
class SimDevice final {
 public:
  SimDevice(std::string_view kind, const SimOptions& options, std::unique_ptr<SimMemory> memory,
            bool pins_host);
  // Waits for the pending work of the streams and stops their threads.
  ~SimDevice() = default;
  SimDevice(const SimDevice&) = delete;
  SimDevice& operator=(const SimDevice&) = delete;

  const char* name() const { return name_.c_str(); }
  const char* pci_address() const { return pci_address_.empty() ? nullptr : pci_address_.c_str(); }
  int numa_node() const { return numa_node_; }  // -1: unknown
  bool unified() const { return unified_; }     // true: reports that any host memory suffices
  SimMemory& memory() { return *memory_; }

  Code stream_create(void** out_stream);
  void stream_destroy(void* stream);

  Code copy_to_host(void* stream, void* host, const void* address, uint64_t offset, uint64_t size);
  Code copy_from_host(void* stream, void* address, uint64_t offset, const void* host,
                      uint64_t size);
  Code copy_rows_to_host(void* stream, void* host, const void* address, const DeviceRows* rows);
  Code copy_rows_from_host(void* stream, void* address, const DeviceRows* rows, const void* host);
  // Copies at memory speed, regardless of the bandwidth to the host.
  Code copy_rows_between(void* stream, const void* from, const DeviceRows* from_rows,
                         SimDevice& to_device, void* to, const DeviceRows* to_rows);

  // Reduces on the stream's thread, at host speed.
  Code reduce(void* stream, const DeviceReduction* what);

  Code event_record(void* stream, void** out_event);
  static Code event_query(void* event);
  static Code event_wait(void* event);
  void event_release(void* event);
  static Code event_notify(void* event, int file);

  // Pins host memory. A region that is pinned twice must be unpinned twice. A device that can pin,
  // and that is not unified, reads unpinned host memory when a copy is submitted, like vendors that
  // stage it in their own memory.
  Code pin_host(const void* host, uint64_t size);
  void unpin_host(const void* host);
  size_t pinned_regions();

  // Opens one of this device's streams as a user stream. While one is open, calls that pin, unpin,
  // allocate or free host memory, and calls that free device memory, wait for the stream, as with
  // many vendors.
  Code user_stream_open(void* native, void** out_user_stream);
  void user_stream_close(void* user_stream);
  static Code user_stream_hold(void* user_stream, void** out_hold);
  void synchronize();

 private:
  struct Pin {
    uint64_t size;
    uint64_t times;
  };

  Code submit(void* stream, const void* address, const DeviceRows& rows, std::byte* host,
              bool to_host);
  bool is_pinned(const std::byte* host, uint64_t size);

  const std::string name_;
  const std::string pci_address_;
  const int numa_node_;
  const bool unified_;
  const bool reads_early_;  // reads unpinned host memory at submission
  const uint64_t latency_ns_;
  const std::unique_ptr<SimMemory> memory_;
  SimBus to_device_;
  SimBus to_host_;
  SimBus inside_{0};  // transfers within the device and to other devices

  std::mutex mutex_;
  std::deque<SimEvent> events_;  // stable addresses
  std::vector<SimEvent*> free_events_;
  std::map<const std::byte*, Pin> pins_;  // by start address
  std::vector<SimStream*> user_streams_;
  // Destroyed first: the streams' threads end before the members above are destroyed.
  std::vector<std::unique_ptr<SimStream>> streams_;
};

}  // namespace hetcomm
