// An accelerator stand-in: what a real one does to its users (memory that the CPU cannot touch,
// copies that take time, streams, events), without hardware. See README.md for what is modelled.
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
  uint64_t count = 0;                     // copies that must be done
};

// The instance behind the tables of "sim-handle" and "sim-address". All functions are thread-safe
// but the destructor.
class SimDevice final {
 public:
  SimDevice(std::string_view kind, const SimOptions& options, std::unique_ptr<SimMemory> memory,
            bool pins_host);
  // Waits for what the streams still run and ends their threads.
  ~SimDevice() = default;
  SimDevice(const SimDevice&) = delete;
  SimDevice& operator=(const SimDevice&) = delete;

  const char* name() const { return name_.c_str(); }
  const char* pci_address() const { return pci_address_.empty() ? nullptr : pci_address_.c_str(); }
  int numa_node() const { return numa_node_; }  // -1: it does not say
  bool unified() const { return unified_; }     // it says that any host memory suffices
  SimMemory& memory() { return *memory_; }

  Code stream_create(void** out_stream);
  void stream_destroy(void* stream);

  Code copy_to_host(void* stream, void* host, const void* address, uint64_t offset, uint64_t size);
  Code copy_from_host(void* stream, void* address, uint64_t offset, const void* host,
                      uint64_t size);
  Code copy_rows_to_host(void* stream, void* host, const void* address, const DeviceRows* rows);
  Code copy_rows_from_host(void* stream, void* address, const DeviceRows* rows, const void* host);
  // As fast as memory, whatever the bandwidth to the host.
  Code copy_rows_between(void* stream, const void* from, const DeviceRows* from_rows,
                         SimDevice& to_device, void* to, const DeviceRows* to_rows);

  // On the thread of the stream, as fast as the host.
  Code reduce(void* stream, const DeviceReduction* what);

  Code event_record(void* stream, void** out_event);
  static Code event_query(void* event);
  static Code event_wait(void* event);
  void event_release(void* event);
  static Code event_notify(void* event, int file);

  // A region that was pinned twice needs two unpins. A device that pins reads other host memory
  // when a copy is submitted, as vendors do who move it through memory of their own.
  Code pin_host(const void* host, uint64_t size);
  void unpin_host(const void* host);
  size_t pinned_regions();

  // A user's stream is one of this device's. While there is one, calls that change what the device
  // has of host memory, and those that free its memory, wait for it, as those of many vendors do.
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
  const bool reads_early_;  // host memory that is not pinned
  const uint64_t latency_ns_;
  const std::unique_ptr<SimMemory> memory_;
  SimBus to_device_;
  SimBus to_host_;
  SimBus inside_{0};  // and to other devices

  std::mutex mutex_;
  std::deque<SimEvent> events_;  // stable addresses
  std::vector<SimEvent*> free_events_;
  std::map<const std::byte*, Pin> pins_;  // by start
  std::vector<SimStream*> user_streams_;
  // Last, so that their threads end before anything above is gone.
  std::vector<std::unique_ptr<SimStream>> streams_;
};

}  // namespace hetcomm
