// A Context holds the configuration, log, devices, transport factories and engine for one user of
// the library.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/device/memory.h"
#include "src/core/job/paths/job_environment.h"
#include "src/core/memory/overlap_guard.h"
#include "src/core/progress/engine.h"
#include "src/liveness/control_thread.h"
#include "src/system/config.h"
#include "src/system/log.h"
#include "src/system/processors.h"
#include "topology/machine/host_links.h"
#include "topology/machine/rank_nics.h"
#include "topology/read/host_topology.h"
#include "transports/transport.h"

namespace hetcomm {

class Job;

// The parts of a context. src/capi assembles them, since core does not depend on particular
// transports and devices.
struct ContextParts {
  Config config;
  std::unique_ptr<Log> log;
  std::vector<std::unique_ptr<TransportFactory>> factories;
  std::vector<Device> devices;  // the host first
  bool thread = false;
};

class Context final : private Sweeper, private CopyWarden {
 public:
  static Result<std::unique_ptr<Context>> create(ContextParts parts);
  ~Context();

  // Returns false in a forked child of the process that created the context.
  bool alive() const { return *static_cast<volatile const uint32_t*>(alive_) != 0; }
  const Config& config() const { return config_; }
  Log& log() { return *log_; }
  Engine& engine() { return engine_; }
  DeviceSet& devices() { return devices_; }
  // Returns the number of the device of |kind| for |native|. If there is none yet, creates it by
  // calling |make|. Jobs that are created from now on take it into account when they choose NICs.
  // Existing jobs keep their NICs, and the device uses those near it. [any-thread]
  Result<size_t> find_or_add_device(std::string_view kind, void* native,
                                    const std::function<Result<Device>()>& make);
  // Takes ownership of |device| and returns its number; does neither on failure. The device gets
  // NICs as described at find_or_add_device(). [any-thread]
  Result<size_t> add_device(const Device& device);
  // Abandons device |index|, which is not the host: its operations end with DEVICE_LOST and |why|,
  // and nothing is started on it any longer. Copies in flight may continue (see
  // DeviceSet::abandoned()). [any-thread]
  void abandon_device(size_t index, std::string_view why) HETCOMM_EXCLUDES(baton_role);
  const std::vector<std::unique_ptr<TransportFactory>>& factories() const { return factories_; }

  // Returns the machine and its NICs, which are read on first use. [any-thread]
  topology::HostTopology& topology() { return topology_; }
  // Returns the resources that a job uses. NICs and NUMA nodes are chosen on first use, and again
  // after learn_devices() or a new device. If |stays_on_host| is true, the resources name no NIC
  // unless the topology matters within a host. Fails if the user has specified a topology, NICs or
  // fabrics that cannot be used. [any-thread]
  Result<const HostResources*> host_resources(bool stays_on_host);
  // Returns the devices on this host that other ranks of the host cannot see. [any-thread]
  std::vector<topology::PciAddress> hidden_devices() { return topology_.hidden_devices(); }
  // Records that ranks of this host have devices at |addresses|. host_resources() takes them into
  // account from now on. [any-thread]
  void learn_devices(const std::vector<topology::PciAddress>& addresses);
  // Returns the resources for a job with no other rank.
  const HostResources& plain_resources() const { return plain_; }
  // Returns the NICs of |view|, which belongs to this context, in the order in which |device|'s
  // data uses them. A device of unknown location is treated as memory of this process's NUMA node.
  // [any-thread]
  topology::NicOrder nic_order(const topology::HostView& view, const Device& device) const;
  // Returns the thread that runs the control planes. The first call starts it. [any-thread]
  Result<liveness::ControlThread*> control_thread();
  // Add a job that the context's communicators use, and return all existing jobs, oldest first.
  void add_job(const std::shared_ptr<Job>& job);
  std::vector<std::shared_ptr<Job>> jobs();
  OverlapGuard& overlaps() { return overlaps_; }
  // Count the objects that exist in this context.
  void add_object() { objects_.fetch_add(1, std::memory_order_relaxed); }
  void drop_object() { objects_.fetch_sub(1, std::memory_order_release); }
  // Records |now_ns| as the start of a pending operation, and the resulting deadline, unless they
  // are already recorded. Returns when the operation must be checked: at its deadline, or earlier,
  // when it counts as stalled.
  uint64_t note_times(Operation& operation, uint64_t now_ns) const;
  bool in_use() const { return objects_.load(std::memory_order_acquire) != 0; }

 private:
  explicit Context(ContextParts parts);
  Status start(const std::vector<Device>& devices, bool thread);
  bool place_device(size_t index);
  void place_in_jobs(size_t index) HETCOMM_EXCLUDES(baton_role);
  void tell_jobs(size_t index);
  Status apply_nic_rules();
  Status choose_nics();
  void share_out_nics(const topology::HostView& view, const topology::RankLocation& location,
                      const std::vector<int>& chosen);
  void choose_nodes(const topology::HostView& view, const topology::RankLocation& location,
                    const std::vector<int>& nics);
  void describe_links(const topology::HostView& view, const std::vector<int>& chosen);
  int usable_node(int node);
  bool threads_follow_nics() const;
  Status name_processors();
  void place_threads(ProcessorSet wanted, std::string_view why);
  uint64_t sweep(uint64_t now_ns) override HETCOMM_UNDER_BATON;
  void report_stall(uint64_t now_ns) HETCOMM_UNDER_BATON;
  void look_at_copies(uint64_t at_ns) override HETCOMM_UNDER_BATON { engine_.timer_changed(at_ns); }
  void on_hang(size_t index, std::string_view what, uint64_t started_ns) override
      HETCOMM_EXCLUDES(baton_role);
  uint64_t check_copies(uint64_t now_ns) HETCOMM_UNDER_BATON;
  void report_hang(size_t index, std::string_view what, uint64_t for_ns) HETCOMM_UNDER_BATON;
  void abandon(size_t index, std::string_view why) HETCOMM_UNDER_BATON;

  Config config_;
  std::unique_ptr<Log> log_;
  topology::HostTopology topology_{config_, *log_};
  std::vector<std::unique_ptr<TransportFactory>> factories_;
  DeviceSet devices_;
  uint32_t* alive_ = nullptr;  // a page that the kernel clears in forked children
  uint64_t stall_ns_;
  std::atomic<int64_t> objects_{0};
  OverlapGuard overlaps_;
  struct NativeDevice {
    std::string kind;
    void* native;
    size_t index;
  };
  std::mutex native_mutex_;
  std::vector<NativeDevice> native_devices_;  // under |native_mutex_|
  std::mutex job_mutex_;
  std::vector<std::weak_ptr<Job>> jobs_;  // under |job_mutex_|
  std::mutex control_mutex_;
  std::unique_ptr<liveness::ControlThread> control_thread_;  // under |control_mutex_|
  HostResources plain_;                                      // has no NIC and no NUMA node
  // |chosen_mutex_| guards the members from |is_chosen_| to |placed_devices_|.
  std::mutex chosen_mutex_;
  bool is_chosen_ = false;
  Status chosen_failure_;
  std::deque<HostResources> chosen_;    // the last one is current; jobs may use the others
  std::vector<int> refused_nodes_;      // NUMA nodes on which the kernel provides no memory
  std::vector<size_t> placed_devices_;  // indices of the devices that |topology_| knows
  ProcessorSet inherited_;              // processors of the thread that created the context
  ProcessorSet thread_processors_;      // for the library's own threads; empty: all
  Engine engine_;
};

}  // namespace hetcomm
