#include "src/core/context/context.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/base/baton_role.h"
#include "src/base/text.h"
#include "src/core/device/user_stream.h"
#include "src/core/job/job.h"
#include "src/core/memory/variables.h"
#include "src/core/peer/matching/completer.h"
#include "src/core/peer/matching/messaging_communicator.h"
#include "src/core/progress/variables.h"
#include "src/net/variables.h"
#include "topology/machine/distance.h"
#include "topology/machine/rank_nodes.h"
#include "topology/read/variables.h"
#include "transports/variables.h"

namespace hetcomm {
namespace {

// Returns the kernel's number of the NUMA node that |device| reports; -1 if it reports none.
int told_numa_node(const Device& device) {
  return device.table->numa_node != nullptr ? device.table->numa_node(device.instance) : -1;
}

constexpr size_t kMaxListed = 32;
constexpr size_t kMaxSubnets = 8;  // subnets of one NIC that are sent to peers

// Returns the subnets by which hosts detect their common networks. Excludes single addresses and
// link-local subnets.
std::vector<std::string> telling_subnets(const topology::Nic& nic) {
  std::vector<std::string> telling;
  for (const std::string& subnet : nic.subnets) {
    if (subnet.ends_with("/32") || subnet.ends_with("/128") || subnet.starts_with("169.254.") ||
        subnet.starts_with("fe80:")) {
      continue;
    }
    if (telling.size() < kMaxSubnets) telling.push_back(subnet);
  }
  return telling;
}

// Describes the NIC at |index|. |others| are the NICs that transports can use, which may include
// this one.
RankNic rank_nic(const topology::Machine& machine, int index, const std::vector<int>& others) {
  const topology::Nic& nic = machine.nics[static_cast<size_t>(index)];
  const bool shares = std::any_of(others.begin(), others.end(), [&](int other) {
    return other != index &&
           topology::share_a_subnet(nic.subnets, machine.nics[static_cast<size_t>(other)].subnets);
  });
  return {.name = {.interface = nic.interface,
                   .rdma_port = nic.rdma_device.empty() ? std::string() : nic.name(),
                   .has_address = !nic.interface.empty() && !nic.subnets.empty(),
                   .shares_subnet = shares},
          .port = {
              .mbit_per_s = nic.mbit_per_s, .subnets = telling_subnets(nic), .fabric = nic.fabric}};
}

}  // namespace

Context::Context(ContextParts parts)
    : config_(std::move(parts.config)),
      log_(std::move(parts.log)),
      factories_(std::move(parts.factories)),
      stall_ns_(config_.number(variable::kStallTime)),
      inherited_(processors_of(pthread_self())),
      engine_(*this) {}

Result<std::unique_ptr<Context>> Context::create(ContextParts parts) {
  const std::vector<Device> devices = std::move(parts.devices);
  const bool thread = parts.thread;
  std::unique_ptr<Context> context(new Context(std::move(parts)));
  HETCOMM_RETURN_IF_ERROR(context->start(devices, thread));
  return context;
}

Status Context::start(const std::vector<Device>& devices, bool thread) {
  for (size_t i = 0; i < devices.size(); ++i) {
    Result<size_t> added = devices_.add(devices[i]);
    if (!added.ok()) {
      for (; i < devices.size(); ++i) devices[i].table->destroy(devices[i].instance);
      return added.status();
    }
    static_cast<void>(place_device(*added));
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
  options.spin_ns = config_.number(variable::kSpinTime);
  options.adapts_spin = !config_.is_set(variable::kSpinTime);
  options.yield = config_.text(variable::kYield) == "on";
  HETCOMM_RETURN_IF_ERROR(engine_.start(options));
  devices_.notice().set_poller(engine_.poller());
  devices_.watch_copies(*this, config_.number(variable::kDeviceTimeout));
  return name_processors();
}

// Includes device |index| in the choice of NICs and NUMA nodes. Returns false if its location is
// unknown.
bool Context::place_device(size_t index) {
  const Device& device = devices_.device(index);
  const DeviceTable& table = *device.table;
  const char* const text = table.pci_address ? table.pci_address(device.instance) : nullptr;
  const auto address = text != nullptr ? topology::parse_pci_address(text) : std::nullopt;
  if (text != nullptr && !address) {
    log_->warn("device {}: '{}' is no PCI address", name_of(device), printable(text));
  }
  if (!address && told_numa_node(device) < 0) return false;
  const std::lock_guard<std::mutex> lock(chosen_mutex_);
  if (address) {
    topology_.add_device(*address, name_of(device));
    placed_devices_.push_back(index);
  }
  is_chosen_ = false;
  return true;
}

// Notifies the existing jobs of the location of the new device |index|. Does not throw, because the
// device has already been accepted: if out of memory, jobs keep their resources.
void Context::tell_jobs(size_t index) {
  try {
    place_in_jobs(index);
  } catch (const std::bad_alloc&) {
    log_->warn("device {}: no memory to choose network interfaces near it", index);
  }
}

void Context::place_in_jobs(size_t index) {
  const std::vector<std::shared_ptr<Job>> known = jobs();
  if (!place_device(index) || known.empty()) return;
  Result<const HostResources*> resources = host_resources(false);
  if (!resources.ok()) return;  // jobs keep their resources
  for (const std::shared_ptr<Job>& job : known) {
    const Engine::Baton baton(engine_);
    job->meet_device(index, **resources);
  }
}

// Fails if HETCOMM_NIC or HETCOMM_FABRIC names something that this host lacks. Passes HETCOMM_NIC
// on to transports, which choose by the names of RDMA devices and interfaces.
Status Context::apply_nic_rules() {
  if (config_.text(variable::kNic).empty() && config_.text(variable::kFabric).empty()) return {};
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
  // If no RDMA device is allowed, rdma must not be used at all: no device has the name "none".
  if (devices.empty()) devices.emplace_back("none");
  HETCOMM_RETURN_IF_ERROR(
      config_.derive(variable::kRdmaNic, fmt::format("{}", fmt::join(devices, ","))));
  if (interfaces.empty()) return {};  // no NIC has an address: sockets may use any interface
  return config_.derive(variable::kInterface, fmt::format("{}", fmt::join(interfaces, ",")));
}

Result<const HostResources*> Context::host_resources(bool stays_on_host) {
  if (stays_on_host && !topology_.matters_within_host()) return &plain_;
  const std::lock_guard<std::mutex> lock(chosen_mutex_);
  if (!is_chosen_) {
    chosen_.emplace_back();
    chosen_failure_ = choose_nics();
    is_chosen_ = true;
  }
  if (!chosen_failure_.ok()) return chosen_failure_;
  return &chosen_.back();
}

void Context::learn_devices(const std::vector<topology::PciAddress>& addresses) {
  if (!topology_.learn(addresses)) return;
  log_->info(
      "NICs are chosen anew: ranks of this host have devices that the PCIe tree does not show");
  const std::lock_guard<std::mutex> lock(chosen_mutex_);
  is_chosen_ = false;
}

topology::NicOrder Context::nic_order(const topology::HostView& view, const Device& device) const {
  const DeviceTable& table = *device.table;
  const char* const text = table.pci_address ? table.pci_address(device.instance) : nullptr;
  const auto address = text != nullptr ? topology::parse_pci_address(text) : std::nullopt;
  const int accelerator = address ? view.machine.find_accelerator(*address) : topology::kNone;
  if (accelerator != topology::kNone) {
    return view.affinity.accelerators[static_cast<size_t>(accelerator)];
  }
  const std::vector<int> nodes = topology::numa_nodes_of_processors(view.machine, inherited_);
  auto node = nodes.empty() ? size_t{0} : static_cast<size_t>(nodes.front());
  if (const int told = told_numa_node(device); told >= 0) {
    const auto& known = view.machine.numa_nodes;
    const auto at = std::find_if(known.begin(), known.end(), [&](const topology::NumaNode& each) {
      return each.number == static_cast<uint32_t>(told);
    });
    if (at != known.end()) node = static_cast<size_t>(at - known.begin());
  }
  return node < view.affinity.numa_nodes.size() ? view.affinity.numa_nodes[node]
                                                : topology::NicOrder{};
}

Status Context::choose_nics() {
  Result<const topology::HostView*> view = topology_.own_view();
  if (!view.ok()) {
    const auto is_set = [&](const Variable& each) { return !config_.text(each).empty(); };
    if (is_set(variable::kTopology) || is_set(variable::kNic) || is_set(variable::kFabric)) {
      return view.status();
    }
    log_->warn("the NICs of this host are not known: {}", view.status().text());
    return {};
  }
  const topology::Machine& machine = (*view)->machine;
  const topology::RankLocation location{
      .accelerators = (*view)->own_accelerators,
      .numa_nodes = topology::numa_nodes_of_processors(machine, inherited_)};
  const topology::RankNics nics = topology::nics_of_rank(machine, (*view)->affinity, location,
                                                         config_.number(variable::kRails));
  const std::vector<int>& chosen = nics.used;
  for (const topology::Nic& nic : machine.nics) {
    if (nic.kind != topology::NicKind::kBridge && nic.state == topology::NicState::kDown) {
      log_->info("NIC {} is not used: it is down", nic.name());
    }
  }
  for (const int index : chosen) chosen_.back().nics.push_back(rank_nic(machine, index, chosen));
  if (!location.accelerators.empty()) share_out_nics(**view, location, chosen);
  choose_nodes(**view, location, chosen);
  describe_links(**view, chosen);
  std::vector<int> all = chosen;
  all.insert(all.end(), nics.slower.begin(), nics.slower.end());
  for (const int index : nics.slower) {
    RankNic& nic = chosen_.back().nics.emplace_back(rank_nic(machine, index, all));
    nic.port.last_resort = true;
  }
  return {};
}

// Describes the host's NICs, and records which of |chosen|, the rank's NICs, each device uses.
void Context::describe_links(const topology::HostView& view, const std::vector<int>& chosen) {
  std::vector<std::vector<int>> devices;
  for (size_t device = 0; device < devices_.size(); ++device) {
    const auto uses = [&](int nic) {
      const auto at =
          static_cast<size_t>(std::find(chosen.begin(), chosen.end(), nic) - chosen.begin());
      if (at == chosen.size()) return false;
      return device >= RankNic::kMaxDevices || (chosen_.back().nics[at].devices >> device & 1) != 0;
    };
    std::vector<int>& used = devices.emplace_back();
    for (const topology::NicChoice& choice : nic_order(view, devices_.device(device))) {
      if (uses(choice.nic)) used.push_back(choice.nic);
    }
    if (used.empty()) used = chosen;
  }
  std::vector<int> others;
  for (const topology::NicOrder& order : view.affinity.numa_nodes) {
    for (const topology::NicChoice& choice : order) others.push_back(choice.nic);
  }
  topology::HostLinks& links = chosen_.back().links;
  links = topology::host_links(view.machine, devices, others);
  links.keeps_all_nics = config_.is_set(variable::kRails);
  for (const size_t device : placed_devices_) {
    if (device < topology::HostLinks::kMaxLocated) links.located_devices |= uint64_t{1} << device;
  }
}

// Chooses the NUMA nodes of the rank's memory and of the library's threads.
void Context::choose_nodes(const topology::HostView& view, const topology::RankLocation& location,
                           const std::vector<int>& nics) {
  const topology::RankNodes nodes =
      topology::nodes_of_rank(view.machine, view.affinity, location, nics);
  for (size_t i = 0; i < chosen_.back().nics.size(); ++i)
    chosen_.back().nics[i].name.numa_node = usable_node(nodes.nics[i]);
  chosen_.back().memory.inside = usable_node(nodes.inside);
  chosen_.back().memory.devices.assign(devices_.size(), usable_node(nodes.staging));
  for (size_t i = 0; i < placed_devices_.size(); ++i) {
    chosen_.back().memory.devices[placed_devices_[i]] = usable_node(nodes.accelerators[i]);
  }
  for (size_t device = 0; device < devices_.size(); ++device) {
    const int told = told_numa_node(devices_.device(device));
    const bool is_placed =
        std::find(placed_devices_.begin(), placed_devices_.end(), device) != placed_devices_.end();
    const int node = told >= 0 && !is_placed ? usable_node(told) : kAnyNumaNode;
    if (node != kAnyNumaNode) chosen_.back().memory.devices[device] = node;
  }
  if (!threads_follow_nics()) return;
  place_threads(
      nodes.processors,
      chosen_.back().nics.empty()
          ? "near the devices, or where the process runs"
          : fmt::format("near {}", view.machine.nics[static_cast<size_t>(nics[0])].name()));
}

// Returns |node|, or kAnyNumaNode if the kernel provides no memory on |node|, because it is offline
// or a container forbids the query.
int Context::usable_node(int node) {
  const auto known = std::find(refused_nodes_.begin(), refused_nodes_.end(), node);
  if (known != refused_nodes_.end()) return kAnyNumaNode;
  const int refusal = try_numa_node(node);
  if (refusal == 0) return node;
  log_->debug("memory may lie far from NUMA node {}: {}", node, strerrordesc_np(refusal));
  refused_nodes_.push_back(node);
  return kAnyNumaNode;
}

bool Context::threads_follow_nics() const {
  const std::string_view text = config_.text(variable::kProgressCpus);
  return text.empty() || text == "auto";
}

// Restricts the library's threads to the processors that HETCOMM_PROGRESS_CPUS names.
Status Context::name_processors() {
  const std::string_view text = config_.text(variable::kProgressCpus);
  if (threads_follow_nics() || text == "none") return {};
  const std::optional<ProcessorSet> named = ProcessorSet::parse(text);
  if (!named || named->empty()) {
    return Status(Code::kInvalidArgument,
                  fmt::format("HETCOMM_PROGRESS_CPUS='{}' is not understood: name processors, such "
                              "as '0-3,8', or 'auto', or 'none'",
                              printable(text)));
  }
  ProcessorSet usable = *named;
  usable.keep(inherited_);
  if (usable.empty()) {
    log_->warn("HETCOMM_PROGRESS_CPUS={} does not count: this process may use processors {} only",
               text, inherited_.text());
    return {};
  }
  place_threads(usable, "HETCOMM_PROGRESS_CPUS");
  return {};
}

// Restricts the library's own threads to those of the |wanted| processors that they may use.
void Context::place_threads(ProcessorSet wanted, std::string_view why) {
  wanted.keep(inherited_);
  if (wanted.empty() || wanted == inherited_) return;
  log_->info("the library's threads run on processors {} of {} ({})", wanted.text(),
             inherited_.text(), why);
  thread_processors_ = std::move(wanted);
  const Engine::Baton baton(engine_);
  engine_.place_background(thread_processors_);
}

// Assigns the rank's NICs to devices. If this process runs on one NUMA node only, the host's memory
// uses the NICs of that node. A device without a NIC of its own, or at an unknown location, uses
// all NICs. Also records the NICs that are far from each device.
void Context::share_out_nics(const topology::HostView& view, const topology::RankLocation& location,
                             const std::vector<int>& chosen) {
  const auto take = [&](size_t device, const topology::NicOrder& order) {
    if (device >= RankNic::kMaxDevices) return;
    const std::vector<size_t> taken =
        topology::nics_of_user(order, chosen, config_.number(variable::kRails));
    if (taken.empty()) return;
    const uint64_t bit = uint64_t{1} << device;
    for (RankNic& nic : chosen_.back().nics) nic.devices &= ~bit;
    for (const size_t index : taken) chosen_.back().nics[index].devices |= bit;
  };
  for (size_t i = 0; i < placed_devices_.size(); ++i) {
    const auto accelerator = static_cast<size_t>(location.accelerators[i]);
    take(placed_devices_[i], view.affinity.accelerators[accelerator]);
    if (placed_devices_[i] >= RankNic::kMaxDevices) continue;
    const topology::Location at = location_of(view.machine.accelerators[accelerator]);
    if (at.function == topology::kNone) continue;
    for (size_t nic = 0; nic < chosen.size(); ++nic) {
      const auto index = static_cast<size_t>(chosen[nic]);
      if (view.machine.nics[index].functions.empty()) continue;
      if (topology::distance(view.machine, at, view.machine.nics[index]) >
          topology::Distance::kSameRootComplex) {
        chosen_.back().nics[nic].far_devices |= uint64_t{1} << placed_devices_[i];
      }
    }
  }
  if (location.numa_nodes.size() == 1) {
    take(0, view.affinity.numa_nodes[static_cast<size_t>(location.numa_nodes.front())]);
  }
}

Result<liveness::ControlThread*> Context::control_thread() {
  const std::lock_guard<std::mutex> lock(control_mutex_);
  if (control_thread_ == nullptr) {
    Result<std::unique_ptr<liveness::ControlThread>> made =
        liveness::ControlThread::create(thread_processors_);
    if (!made.ok()) return made.status();
    control_thread_ = std::move(made).value();
  }
  return control_thread_.get();
}

Result<size_t> Context::find_or_add_device(std::string_view kind, void* native,
                                           const std::function<Result<Device>()>& make) {
  const std::lock_guard<std::mutex> lock(native_mutex_);
  for (const NativeDevice& known : native_devices_) {
    if (known.native == native && known.kind == kind) return known.index;
  }
  // Memory is reserved first, because a device cannot be removed once it has been added.
  NativeDevice added{std::string(kind), native, 0};
  native_devices_.reserve(native_devices_.size() + 1);
  Result<Device> device = make();
  if (!device.ok()) return device.status();
  Result<size_t> index = devices_.add(*device);
  if (!index.ok()) {
    device->table->destroy(device->instance);
    return index.status();
  }
  added.index = *index;
  native_devices_.push_back(std::move(added));
  tell_jobs(*index);
  return index;
}

Result<size_t> Context::add_device(const Device& device) {
  const std::lock_guard<std::mutex> lock(native_mutex_);
  Result<size_t> index = devices_.add(device);
  if (index.ok()) tell_jobs(*index);
  return index;
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
  control_thread_.reset();  // the thread sends pending goodbyes before it ends
  if (alive_ != nullptr) munmap(alive_, static_cast<size_t>(sysconf(_SC_PAGESIZE)));
}

uint64_t Context::sweep(uint64_t now_ns) {
  bool stalled = false;
  const uint64_t next =
      engine_.pool().sweep(now_ns, [&](Operation& operation) HETCOMM_UNDER_BATON -> uint64_t {
        // Operations not yet started are skipped; their times are recorded once they have started.
        if (operation.state() != OperationState::kPending ||
            operation.phase == OperationPhase::kSubmitted) {
          return kForever;
        }
        note_times(operation, now_ns);
        if (now_ns >= operation.run.deadline_ns) {
          operation.run.deadline_ns = kForever;  // end only once; copies may delay the end
          operation.communicator->end(operation, Code::kTimedOut,
                                      operation.phase == OperationPhase::kBehind
                                          ? "the deadline passed before a stream had come to it"
                                          : "the deadline passed");
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
  return std::min(next, check_copies(now_ns));
}

// Reports devices whose copies do not end. Returns the time of the next check, or kForever if none
// is needed.
uint64_t Context::check_copies(uint64_t now_ns) {
  const uint64_t limit_ns = devices_.copy_limit_ns();
  uint64_t next = kForever;
  for (size_t index = 1; index < devices_.size(); ++index) {
    CopyWatch& watch = devices_.watch(index);
    if (watch.overdue_at(limit_ns) <= now_ns) {
      std::string text;
      uint64_t started_ns = kForever;
      for (DeviceUser* const user : devices_.device_users()) {
        user->describe_oldest_copy(index, now_ns, &started_ns, &text);
      }
      if (watch.under_way() > 1) text += fmt::format("; {} are under way", watch.under_way());
      const uint64_t for_ns = now_ns - watch.since_ns();
      watch.report();
      report_hang(index, text, for_ns);
    }
    next = std::min(next, watch.overdue_at(limit_ns));
  }
  devices_.set_next_look(next == kForever ? 0 : next);
  return next;
}

void Context::on_hang(size_t index, std::string_view what, uint64_t started_ns) {
  const Engine::Baton baton(engine_);
  report_hang(index, fmt::format("{}", what), now_ns() - started_ns);
}

void Context::report_hang(size_t index, std::string_view what, uint64_t for_ns) {
  const double seconds = static_cast<double>(for_ns) / 1e9;
  const bool abandons = config_.is_on(variable::kDeviceTimeoutAbandon);
  log_->warn("device {} ({}): no copy has ended for {:.1f} s: {}{}", index,
             name_of(devices_.device(index)), seconds, what,
             abandons ? "" : "; hetcomm_device_abandon ends what waits for the device");
  if (abandons) abandon(index, fmt::format("no copy of it had ended for {:.1f} s", seconds));
}

void Context::abandon_device(size_t index, std::string_view why) {
  {
    const Engine::Baton baton(engine_);
    abandon(index, why);
  }
  engine_.poke();
}

void Context::abandon(size_t index, std::string_view why) {
  if (!devices_.abandon(index, why)) return;
  engine_.drain();
  for (DeviceUser* const user : devices_.device_users()) user->on_abandoned(index);
  const std::string text =
      text_or_none([&] { return fmt::format("{}; {}", devices_.check(index).text(), kNotQuiet); });
  log_->warn("{}", text);
  const auto is_on_device = [&](const BufferPiece& piece) {
    return piece.memory != nullptr && piece.length > 0 && piece.memory->device_index() == index;
  };
  engine_.pool().for_each([&](Operation& operation) HETCOMM_UNDER_BATON {
    if (operation.state() != OperationState::kPending ||
        operation.phase == OperationPhase::kSubmitted ||
        operation.phase == OperationPhase::kCollected) {
      return;  // once these start, their copies are refused and other ranks are notified
    }
    const bool is_behind = operation.phase == OperationPhase::kBehind &&
                           operation.options.on_stream &&
                           operation.order.stream->device_index() == index;
    if (is_behind || std::any_of(operation.buffers.pieces.begin(), operation.buffers.pieces.end(),
                                 is_on_device)) {
      operation.communicator->end(operation, Code::kDeviceLost, text);
    }
  });
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
        operation.phase == OperationPhase::kSubmitted) {
      return;
    }
    operation.run.stall_reported = true;
    if (++count > kMaxListed) return;
    text += fmt::format("\n  {}{}, for {:.1f} s{}", describe(operation),
                        operation.phase == OperationPhase::kBehind ? ", behind a stream" : "",
                        static_cast<double>(now_ns - operation.run.submitted_ns) / 1e9,
                        operation.communicator->awaited_text(operation));
  });
  if (count > kMaxListed) text += fmt::format("\n  and {} more", count - kMaxListed);
  log_->warn("no progress for {:.1f} s; pending:{}", static_cast<double>(stall_ns_) / 1e9, text);
}

}  // namespace hetcomm
