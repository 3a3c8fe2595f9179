#include "transports/rdma/port.h"

#include <sched.h>

#include <algorithm>
#include <new>
#include <utility>

#include <fmt/core.h>

#include "src/base/text.h"
#include "src/system/clock.h"

namespace hetcomm::rdma {
namespace {

constexpr uint32_t kMinConnections = 16;
// Time limit for flushing the work of a stopped queue pair. Destroying the queue pair ends the work
// in any case.
constexpr uint64_t kDrainNs = 200'000'000;
// Minimum time between attempts to open a device that could not be opened. Each attempt takes
// milliseconds.
constexpr uint64_t kBetweenOpensNs = 100'000'000;

}  // namespace

Status Port::find(const Verbs& verbs) {
  // Before Linux 5.12 this call protects registered memory across fork(), and must come before the
  // first registration. Newer kernels do not need it.
  (void)verbs.fork_init();
  const BoundNic* const bound = environment_.nic;
  Result<FoundNic> nic = bound != nullptr
                             ? find_named_nic(verbs, environment_.config, bound->rdma_port)
                             : find_nic(verbs, environment_.config, environment_.instance);
  if (!nic.ok()) return nic.status();
  if (environment_.instance == 0 && !nic->others.empty()) {
    environment_.log.info("rdma: ports that are not used: {}", nic->others);
  }
  verbs_ = &verbs;
  found_ = std::move(nic->nic);
  return {};
}

Status Port::open() {
  if (is_open()) return {};
  if (!open_failure_.ok() && now_ns() < next_open_ns_) return open_failure_;
  Status status;
  try {
    status = try_open();
  } catch (const std::bad_alloc&) {
    close();  // memory may be available at the next attempt
    return Code::kOutOfMemory;
  }
  if (!status.ok()) close();
  next_open_ns_ = now_ns() + kBetweenOpensNs;
  open_failure_ = status;
  if (!status.ok()) {
    environment_.log.warn_once(
        fmt::format("{} ({} is not used until it opens)", status.text(), found_.name()));
  }
  return status;
}

void Port::close() noexcept {
  if (is_open()) handler_.on_port_closing();
  memory_regions_.reset();
  receives_.reset();
  device_.reset();
}

Status Port::try_open() {
  const auto peers = static_cast<uint32_t>(std::max(environment_.size - 1, 1));
  const uint32_t connections = std::min(settings_.connections, std::max(peers, kMinConnections));
  Result<std::unique_ptr<Device>> device =
      Device::create(*verbs_, environment_.config, found_.name(), connections, settings_.credits);
  if (!device.ok()) return device.status();
  device_ = std::move(device).value();
  fit_to(nic(), settings_);
  receives_ =
      std::make_unique<ReceivePool>(*device_, settings_.slot_bytes, environment_.buffer_node);
  memory_regions_ = std::make_unique<MemoryRegionCache>(
      *verbs_, device_->pd(), settings_.cache_bytes, settings_.strict_keys, environment_.log);
  HETCOMM_RETURN_IF_ERROR(handler_.on_port_opened());
  environment_.log.info("rdma: {} is open", nic().describe());
  return {};
}

void Port::break_down(std::string_view reason) noexcept {
  if (broken_.ok()) {
    broken_ = status_or_code(Code::kDeviceLost,
                             [&] { return fmt::format("rdma: {}: {}", nic().name(), reason); });
    environment_.log.error("{}", broken_.text());
  }
  handler_.on_port_broken(reason);
}

Result<std::unique_ptr<QueuePair>> Port::make_queue_pair(size_t count) {
  if (!broken_.ok()) return broken_;
  HETCOMM_RETURN_IF_ERROR(open());
  if (count > device_->max_connections()) {
    return Status(Code::kOutOfResources,
                  fmt::format("rdma: {}: all {} queue pairs are in use (HETCOMM_RDMA_QUEUE_PAIRS, "
                              "and what the device allows)",
                              nic().name(), device_->max_connections()));
  }
  HETCOMM_RETURN_IF_ERROR(receives_->ensure(static_cast<uint32_t>(count) * settings_.credits));
  return QueuePair::create(*device_, settings_.slot_bytes, environment_.buffer_node);
}

Parameters Port::parameters_of(const QueuePair& pair, const Gid& mine, const GidBytes& peer) const {
  return {.queue_pair = pair.number(),
          .packet_sequence = pair.packet_sequence(),
          .lid = nic().lid,
          .mtu = nic().mtu,
          .read_depth = pair.read_depth(),
          .credits = static_cast<uint16_t>(settings_.credits),
          .slot_bytes = settings_.slot_bytes,
          .kind = mine.kind,
          .gid = mine.bytes,
          .peer_gid = peer};
}

void Port::recycle(const ibv_wc& receive) {
  receives_->recycle(static_cast<uint32_t>(receive.wr_id & ~kReceiveBit));
}

void Port::quiesce(QueuePair& pair) {
  pair.stop();
  // Requests without IBV_SEND_SIGNALED cause no completion, so a final signalled request shows when
  // all have completed. If the device refuses that request, |tells| becomes false.
  bool tells = true;
  if (!pair.idle()) {
    pair.nudge();
    tells = pair.flush_last();
  }
  const uint64_t deadline = now_ns() + kDrainNs;
  size_t position = completions_.begin();
  while (true) {
    position = completions_.take_all_of(pair.number(), position, [&](const ibv_wc& completion) {
      if ((completion.wr_id & kReceiveBit) != 0) {
        recycle(completion);
      } else {
        pair.retire(completion.wr_id, [](const SendRecord&) {});
      }
    });
    if (!broken_.ok() || now_ns() >= deadline) break;
    // The completion queue is emptied in any case: many devices discard the completions of a
    // destroyed queue pair, including the receives that they represent.
    if (fetch() > 0) continue;
    if (pair.idle() || !tells) break;
    sched_yield();
  }
}

void Port::discard_arrived(uint32_t number) {
  while (fetch() > 0) {
  }
  const auto give_back = [this](const ibv_wc& completion) { recycle(completion); };
  completions_.take_all_of(number, completions_.begin(), give_back);
  completions_.drop_aside(number, give_back);
}

bool Port::arm() {
  if (armed_ || !broken_.ok()) return true;
  if (device_->verbs().req_notify_cq(device_->cq(), 0) != 0) {
    break_down("completions cannot be waited for");
    return false;
  }
  armed_ = true;
  return true;
}

void Port::take_completion_events() {
  ibv_cq* cq = nullptr;
  void* user = nullptr;
  while (device_->verbs().get_cq_event(device_->channel(), &cq, &user) == 0) {
    device_->count_event();
    armed_ = false;
  }
}

}  // namespace hetcomm::rdma
