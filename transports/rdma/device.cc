#include "transports/rdma/device.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/core.h>

namespace hetcomm::rdma {
namespace {

// Receives in addition to those that the peers' credits cover.
constexpr uint32_t kSpareReceives = 64;
// Additional capacity for connections that are still closing while new ones are established.
constexpr uint32_t kSpareConnections = 8;
// A device that supports moderation delays a completion event until this many completions have
// arrived or this time has passed.
constexpr uint16_t kModerationCount = 8;
constexpr uint16_t kModerationUs = 4;

Status failed(const Nic& nic, const char* what) {
  const int error = errno;
  return {error == ENOMEM || error == EAGAIN ? Code::kOutOfResources : Code::kUnsupported,
          fmt::format("rdma: {}: {} cannot be made: {}{}", nic.name(), what, std::strerror(error),
                      error == ENOMEM ? "; check RLIMIT_MEMLOCK ('ulimit -l')" : "")};
}

bool set_nonblocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

}  // namespace

Device::Device(const Verbs& verbs, OpenNic nic)
    : verbs_(verbs), context_(std::move(nic.context)), nic_(std::move(nic.nic)) {}

Device::~Device() {
  if (srq_ != nullptr) (void)verbs_.destroy_srq(srq_);
  if (cq_ != nullptr) {
    if (events_ > 0) verbs_.ack_cq_events(cq_, events_);
    (void)verbs_.destroy_cq(cq_);
  }
  if (channel_ != nullptr) (void)verbs_.destroy_comp_channel(channel_);
  if (pd_ != nullptr) (void)verbs_.dealloc_pd(pd_);
}

Result<std::unique_ptr<Device>> Device::create(const Verbs& verbs, const Config& config,
                                               const std::string& name, uint32_t connections,
                                               uint32_t credits) {
  Result<OpenNic> nic = open_named_nic(verbs, config, name);
  if (!nic.ok()) return nic.status();
  std::unique_ptr<Device> device(new Device(verbs, std::move(nic).value()));
  HETCOMM_RETURN_IF_ERROR(device->set_up(connections, credits));
  return device;
}

void Device::refresh_addresses(const Config& config) {
  rdma::refresh_addresses(verbs_, context_.get(), config, nic_);
}

GidBytes Device::gid_at(uint32_t index) const {
  GidBytes bytes{};
  ibv_gid_entry entry{};
  if (verbs_.query_gid(context_.get(), nic_.port, index, &entry) != 0) return bytes;
  std::memcpy(bytes.data(), entry.gid.raw, bytes.size());
  return bytes;
}

uint16_t Device::lid_now() const {
  ibv_port_attr port{};
  return verbs_.query_port(context_.get(), nic_.port, &port) == 0 ? port.lid : uint16_t{0};
}

Status Device::set_up(uint32_t connections, uint32_t credits) {
  const ibv_device_attr& limits = nic_.limits;
  const auto at_most = [](uint64_t wanted, int limit) {
    return static_cast<uint32_t>(std::min<uint64_t>(wanted, static_cast<uint64_t>(limit)));
  };
  connections += kSpareConnections;
  const uint64_t each = kSendDepth + credits;
  const uint32_t entries = at_most(connections * each + kSpareReceives, limits.max_cqe);
  max_receives_ = at_most(uint64_t{connections} * credits + kSpareReceives, limits.max_srq_wr);
  max_connections_ = std::min(
      {connections, static_cast<uint32_t>((entries - std::min(entries, kSpareReceives)) / each),
       (max_receives_ - std::min(max_receives_, kSpareReceives)) / credits,
       static_cast<uint32_t>(limits.max_qp)});
  if (max_connections_ == 0) {
    return {Code::kUnsupported,
            fmt::format("rdma: {} has too short queues: {} completions, {} receives", nic_.name(),
                        limits.max_cqe, limits.max_srq_wr)};
  }
  pd_ = verbs_.alloc_pd(context());
  if (pd_ == nullptr) return failed(nic_, "a protection domain");
  channel_ = verbs_.create_comp_channel(context());
  if (channel_ == nullptr) return failed(nic_, "a completion channel");
  if (!set_nonblocking(channel_->fd) || !set_nonblocking(context_->async_fd)) {
    return status_from_errno(errno, "rdma: event descriptors");
  }
  cq_ = verbs_.create_cq(context_.get(), static_cast<int>(entries), nullptr, channel_, 0);
  if (cq_ == nullptr) return failed(nic_, "a completion queue");
  (void)verbs_.moderate_cq(cq_, kModerationCount, kModerationUs);
  ibv_srq_init_attr attributes{};
  attributes.attr.max_wr = max_receives_;
  attributes.attr.max_sge = 1;
  srq_ = verbs_.create_srq(pd_, &attributes);
  if (srq_ == nullptr) return failed(nic_, "a shared receive queue");
  return {};
}

}  // namespace hetcomm::rdma
