#include "src/core/job/context.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/base/baton_role.h"
#include "src/base/text.h"
#include "src/core/progress/communicator_base.h"
#include "topology/rank_nics.h"

namespace hetcomm {
namespace {

constexpr size_t kMostListed = 32;
constexpr size_t kMostSubnets = 8;  // of one NIC, that peers are told

// The NUMA node on which this process may run; kNone: several, or not known.
int own_numa_node(const topology::Machine& machine) {
  if (machine.numa_nodes.size() < 2) return topology::kNone;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return topology::kNone;
  int found = topology::kNone;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (!CPU_ISSET(static_cast<size_t>(processor), &allowed)) continue;
    const int node = topology::numa_node_of_processor(machine, processor);
    if (found != topology::kNone && node != found) return topology::kNone;
    found = node;
  }
  return found;
}

// Subnets by which hosts tell what joins them: not single addresses, and not those that every host
// has for itself.
std::vector<std::string> telling_subnets(const topology::Nic& nic) {
  std::vector<std::string> telling;
  for (const std::string& subnet : nic.subnets) {
    if (subnet.ends_with("/32") || subnet.ends_with("/128") || subnet.starts_with("169.254.") ||
        subnet.starts_with("fe80:")) {
      continue;
    }
    if (telling.size() < kMostSubnets) telling.push_back(subnet);
  }
  return telling;
}

}  // namespace

Context::Context(ContextParts parts)
    : config_(std::move(parts.config)),
      log_(std::move(parts.log)),
      factories_(std::move(parts.factories)),
      stall_ns_(config_.number(Variable::kStallTime)),
      engine_(*this) {}

Result<std::unique_ptr<Context>> Context::create(ContextParts parts) {
  const std::vector<Device> devices = std::move(parts.devices);
  const bool thread = parts.thread;
  std::unique_ptr<Context> context(new Context(std::move(parts)));
  HETCOMM_RETURN_IF_ERROR(context->start(devices, thread));
  return context;
}

Status Context::start(const std::vector<Device>& devices, bool thread) {
  for (const Device& device : devices) {
    HETCOMM_RETURN_IF_ERROR(devices_.add(device));
    place_device(device);
  }
  HETCOMM_RETURN_IF_ERROR(apply_nic_rules());
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* memory = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return status_from_errno(errno, "mmap");
  alive_ = static_cast<uint32_t*>(memory);
  *alive_ = 1;
  if (madvise(memory, page, MADV_WIPEONFORK) != 0) {
    log_->debug(
        "forked children cannot be told from their parent: the kernel lacks MADV_WIPEONFORK");
  }
  EngineOptions options;
  options.alive_word = alive_;
  options.thread = thread;
  options.spin_ns = config_.number(Variable::kSpinTime);
  options.adapts_spin = !config_.is_set(Variable::kSpinTime);
  options.yield = config_.text(Variable::kYield) == "on";
  return engine_.start(options);
}

// Tells the topology where |device| is, if it knows.
void Context::place_device(const Device& device) {
  const DeviceTable& table = *device.table;
  const char* const text = table.pci_address ? table.pci_address(device.instance) : nullptr;
  if (text == nullptr) return;
  if (const auto address = topology::parse_pci_address(text)) {
    topology_.add_device(*address, table.name(device.instance));
  } else {
    log_->warn("device {}: '{}' is no PCI address", table.name(device.instance), printable(text));
  }
}

// Refuses HETCOMM_NIC and HETCOMM_FABRIC if they name what this host lacks. Makes HETCOMM_NIC count
// for transports, which choose by the names of RDMA devices and interfaces.
Status Context::apply_nic_rules() {
  if (config_.text(Variable::kNic).empty() && config_.text(Variable::kFabric).empty()) return {};
  Result<const topology::HostView*> view = topology_.view();
  if (!view.ok()) return view.status();
  const topology::Machine& machine = (*view)->machine;
  if (!(*view)->rules.has_general()) return {};
  std::vector<std::string> devices;
  std::vector<std::string> interfaces;
  for (const int index : (*view)->rules.general(machine)) {
    const topology::Nic& nic = machine.nics[static_cast<size_t>(index)];
    if (!nic.rdma_device.empty()) devices.push_back(nic.name());
    if (!nic.interface.empty() && !nic.subnets.empty()) interfaces.push_back(nic.interface);
  }
  // Without a device rdma is not used at all: no device has this name.
  if (devices.empty()) devices.emplace_back("none");
  HETCOMM_RETURN_IF_ERROR(
      config_.derive(Variable::kRdmaNic, fmt::format("{}", fmt::join(devices, ","))));
  if (interfaces.empty()) return {};  // they have no addresses: sockets use what they find
  return config_.derive(Variable::kInterface, fmt::format("{}", fmt::join(interfaces, ",")));
}

Result<std::span<const RankNic>> Context::nics() {
  std::call_once(nics_once_, [this] { nics_failure_ = choose_nics(); });
  if (!nics_failure_.ok()) return nics_failure_;
  return std::span<const RankNic>(nics_);
}

topology::NicOrder Context::nic_order(const topology::HostView& view, const Device& device) {
  const DeviceTable& table = *device.table;
  const char* const text = table.pci_address ? table.pci_address(device.instance) : nullptr;
  const auto address = text != nullptr ? topology::parse_pci_address(text) : std::nullopt;
  const int accelerator = address ? view.machine.find_accelerator(*address) : topology::kNone;
  if (accelerator != topology::kNone) {
    return view.affinity.accelerators[static_cast<size_t>(accelerator)];
  }
  const auto node = static_cast<size_t>(std::max(own_numa_node(view.machine), 0));
  return node < view.affinity.numa_nodes.size() ? view.affinity.numa_nodes[node]
                                                : topology::NicOrder{};
}

Status Context::choose_nics() {
  Result<const topology::HostView*> view = topology_.view();
  if (!view.ok()) {
    const auto is_set = [&](Variable variable) { return !config_.text(variable).empty(); };
    if (is_set(Variable::kTopology) || is_set(Variable::kNic) || is_set(Variable::kFabric)) {
      return view.status();
    }
    log_->warn("the NICs of this host are not known: {}", view.status().text());
    return {};
  }
  const topology::Machine& machine = (*view)->machine;
  const topology::RankPlace place{.accelerators = (*view)->own_accelerators,
                                  .numa_node = own_numa_node(machine)};
  const std::vector<int> chosen =
      topology::nics_of_rank(machine, (*view)->affinity, place, config_.number(Variable::kRails));
  for (const topology::Nic& nic : machine.nics) {
    if (nic.kind != topology::NicKind::kBridge && nic.state == topology::NicState::kDown) {
      log_->info("NIC {} is not used: it is down", nic.name());
    }
  }
  for (const int index : chosen) {
    const topology::Nic& nic = machine.nics[static_cast<size_t>(index)];
    const bool shares = std::any_of(chosen.begin(), chosen.end(), [&](int other) {
      return other != index && topology::share_a_subnet(
                                   nic.subnets, machine.nics[static_cast<size_t>(other)].subnets);
    });
    nics_.push_back(
        {.name = {.interface = nic.interface,
                  .rdma_port = nic.rdma_device.empty() ? std::string() : nic.name(),
                  .has_address = !nic.interface.empty() && !nic.subnets.empty(),
                  .shares_subnet = shares},
         .port = {
             .mbit_per_s = nic.mbit_per_s, .subnets = telling_subnets(nic), .fabric = nic.fabric}});
  }
  return {};
}

Result<liveness::ControlThread*> Context::control_thread() {
  const std::lock_guard<std::mutex> lock(control_mutex_);
  if (control_thread_ == nullptr) {
    Result<std::unique_ptr<liveness::ControlThread>> made = liveness::ControlThread::create();
    if (!made.ok()) return made.status();
    control_thread_ = std::move(made).value();
  }
  return control_thread_.get();
}

void Context::add_job(const std::shared_ptr<Job>& job) {
  const std::lock_guard<std::mutex> lock(job_mutex_);
  std::erase_if(jobs_, [](const std::weak_ptr<Job>& each) { return each.expired(); });
  jobs_.push_back(job);
}

std::vector<std::shared_ptr<Job>> Context::jobs() {
  const std::lock_guard<std::mutex> lock(job_mutex_);
  std::vector<std::shared_ptr<Job>> found;
  for (const std::weak_ptr<Job>& each : jobs_) {
    if (std::shared_ptr<Job> job = each.lock()) found.push_back(std::move(job));
  }
  return found;
}

Context::~Context() {
  engine_.stop();
  control_thread_.reset();  // goodbyes leave first
  if (alive_ != nullptr) munmap(alive_, static_cast<size_t>(sysconf(_SC_PAGESIZE)));
}

void Context::start(Operation& operation) { operation.communicator->start(operation); }

uint64_t Context::sweep(uint64_t now_ns) {
  bool stalled = false;
  const uint64_t next =
      engine_.pool().sweep(now_ns, [&](Operation& operation) HETCOMM_UNDER_BATON -> uint64_t {
        // One that is about to be started is noted then.
        if (operation.state() != OperationState::kPending ||
            operation.stage == OperationStage::kSubmitted) {
          return kForever;
        }
        note_times(operation, now_ns);
        if (now_ns >= operation.run.deadline_ns) {
          operation.run.deadline_ns = kForever;  // once: it may have to wait for device copies
          operation.communicator->end(operation, Code::kTimedOut, "the deadline passed");
          if (operation.state() != OperationState::kPending) return kForever;
        }
        const uint64_t stall_at = deadline_after(operation.run.submitted_ns, stall_ns_);
        if (operation.run.stall_reported || now_ns >= stall_at) {
          stalled = stalled || !operation.run.stall_reported;
          return operation.run.deadline_ns;
        }
        return std::min(operation.run.deadline_ns, stall_at);
      });
  if (stalled) report_stall(now_ns);
  return next;
}

uint64_t Context::note_times(Operation& operation, uint64_t now_ns) const {
  if (operation.run.submitted_ns == 0) operation.run.submitted_ns = now_ns;
  if (operation.run.deadline_ns == 0) {
    operation.run.deadline_ns = deadline_after(now_ns, operation.timeout_ns);
  }
  return std::min(operation.run.deadline_ns, deadline_after(operation.run.submitted_ns, stall_ns_));
}

void Context::report_stall(uint64_t now_ns) {
  std::string text;
  size_t count = 0;
  engine_.pool().for_each([&](Operation& operation) HETCOMM_UNDER_BATON {
    if (operation.state() != OperationState::kPending ||
        operation.stage == OperationStage::kSubmitted) {
      return;
    }
    operation.run.stall_reported = true;
    if (++count > kMostListed) return;
    text += fmt::format("\n  {}, for {:.1f} s", describe(operation),
                        static_cast<double>(now_ns - operation.run.submitted_ns) / 1e9);
  });
  if (count > kMostListed) text += fmt::format("\n  and {} more", count - kMostListed);
  log_->warn("no progress for {:.1f} s; pending:{}", static_cast<double>(stall_ns_) / 1e9, text);
}

}  // namespace hetcomm
