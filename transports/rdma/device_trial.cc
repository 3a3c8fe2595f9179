#include "transports/rdma/device_trial.h"

#include <sched.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include <fmt/core.h>

#include "src/base/text.h"
#include "src/system/clock.h"
#include "transports/rdma/device.h"
#include "transports/rdma/receive_pool.h"
#include "transports/variables.h"

namespace hetcomm::rdma {
namespace {

// A few pages, so that the trial covers more than one address translation.
constexpr uint64_t kTrialBytes = 16 << 10;
// Time limit for one write from the NIC to itself, which takes about 10 us if the NIC is idle. The
// context does nothing else during that time, so a busy NIC is tried again later.
constexpr uint64_t kTrialNs = 100'000'000;
// Time limit for a device copy, which takes about 100 us, or seconds if the vendor's library
// compiles code first. The context does nothing else during that time.
constexpr uint64_t kCopyNs = 5'000'000'000;
// Time limit for a write if staging is forbidden.
constexpr uint64_t kLongTrialNs = 500'000'000;

// Scratch allocates memory on the device, and lets the device copy to and from it.
class Scratch {
 public:
  explicit Scratch(const hetcomm::Device& device) : device_(device), table_(*device.table) {}
  ~Scratch() {
    if (hanging_.event != nullptr) {
      static_cast<void>(host_.release());  // the copy may continue
      return;
    }
    if (stream_ != nullptr) table_.stream_destroy(device_.instance, stream_);
    if (address_ != nullptr) table_.free(device_.instance, address_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  Status allocate() {
    HETCOMM_RETURN_IF_ERROR(device_refuses(
        device_, table_.allocate(device_.instance, kTrialBytes, &address_), "allocating"));
    return device_refuses(device_, table_.stream_create(device_.instance, &stream_),
                          "making a stream");
  }
  void* address() const { return address_; }
  const HangingCopy& hanging() const { return hanging_; }

  Status write(const std::byte* from) {
    std::memcpy(host_.get(), from, kTrialBytes);
    return finish(
        table_.copy_from_host(device_.instance, stream_, address_, 0, host_.get(), kTrialBytes));
  }
  Status read(std::byte* to) {
    HETCOMM_RETURN_IF_ERROR(finish(
        table_.copy_to_host(device_.instance, stream_, host_.get(), address_, 0, kTrialBytes)));
    std::memcpy(to, host_.get(), kTrialBytes);
    return {};
  }

 private:
  Status finish(hetcomm_status_t status) {
    void* event = nullptr;
    if (status == HETCOMM_OK) status = table_.event_record(device_.instance, stream_, &event);
    if (status == HETCOMM_OK) {
      const uint64_t end = now_ns() + kCopyNs;
      do {
        status = table_.event_query(device_.instance, event);
        if (status == HETCOMM_PENDING) sched_yield();
      } while (status == HETCOMM_PENDING && now_ns() < end);
      if (status == HETCOMM_PENDING) {
        hanging_ = {event, host_.get(), kTrialBytes};
        return {Code::kOutOfResources,
                fmt::format("{}: a copy of {} bytes has not ended in {}", device_.table->kind,
                            kTrialBytes, duration_text(kCopyNs))};
      }
      table_.event_release(device_.instance, event);
    }
    return device_refuses(device_, status, "copying");
  }

  const hetcomm::Device& device_;
  const DeviceTable& table_;
  void* address_ = nullptr;
  void* stream_ = nullptr;
  // Host memory for the device's copies. If a copy does not complete, the memory is never freed.
  std::unique_ptr<std::byte[]> host_{new std::byte[kTrialBytes]};
  HangingCopy hanging_{};
};

// Loopback connects two queue pairs of this process to each other. It opens the NIC separately, so
// it does not disturb the transport's work in flight.
class Loopback {
 public:
  static Result<std::unique_ptr<Loopback>> create(const Verbs& verbs, const Config& config,
                                                  const std::string& name,
                                                  ConnectionSettings settings) {
    std::unique_ptr<Loopback> loopback(new Loopback);
    if (config.text(variable::kDevicePath) == "direct") loopback->patience_ns_ = kLongTrialNs;
    Result<std::unique_ptr<Device>> nic = Device::create(verbs, config, name, 2, 1);
    if (!nic.ok()) return nic.status();
    loopback->nic_ = std::move(nic).value();
    Result<Slab> slab = Slab::create(*loopback->nic_, 2 * kTrialBytes);
    if (!slab.ok()) return slab.status();
    loopback->host_ = std::move(slab).value();
    for (std::unique_ptr<QueuePair>& pair : loopback->pairs_) {
      Result<std::unique_ptr<QueuePair>> made = QueuePair::create(*loopback->nic_, kSlotBytes);
      if (!made.ok()) return made.status();
      pair = std::move(made).value();
    }
    // A retransmission by Soft-RoCE would invalidate the trial.
    if (loopback->nic_->nic().is_soft_roce()) settings.retries = 0;
    HETCOMM_RETURN_IF_ERROR(loopback->connect(settings));
    return loopback;
  }

  const Verbs& verbs() const { return nic_->verbs(); }
  ibv_pd* pd() const { return nic_->pd(); }
  // Both return kTrialBytes of registered host memory: the pattern, and the result buffer.
  std::byte* pattern() const { return host_.data(); }
  std::byte* result() const { return host_.data() + kTrialBytes; }

  // Makes the NIC write the pattern to |target|.
  Status write_to(const Registered& target) {
    return write(reinterpret_cast<uint64_t>(pattern()), host_.lkey(), target.address,
                 target.mr->rkey);
  }
  // Makes the NIC write |source| to the result buffer. The buffer is registered for remote writes
  // only during this call.
  Status write_from(const Registered& source) {
    ibv_mr* mr = verbs().reg_mr(pd(), result(), kTrialBytes,
                                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (mr == nullptr) return status_from_errno(errno, "host memory");
    Status status =
        write(source.address, source.mr->lkey, reinterpret_cast<uint64_t>(result()), mr->rkey);
    (void)verbs().dereg_mr(mr);
    return status;
  }

 private:
  static constexpr uint32_t kSlotBytes = 64;

  Loopback() = default;

  Status connect(const ConnectionSettings& settings) {
    const Nic& nic = nic_->nic();
    const Gid& gid = nic.gids.front();
    for (size_t i = 0; i < pairs_.size(); ++i) {
      const QueuePair& peer = *pairs_[1 - i];
      const Parameters parameters{.queue_pair = peer.number(),
                                  .packet_sequence = peer.packet_sequence(),
                                  .lid = nic.lid,
                                  .mtu = nic.mtu,
                                  .read_depth = peer.read_depth(),
                                  .credits = 1,
                                  .slot_bytes = kSlotBytes,
                                  .kind = gid.kind,
                                  .gid = gid.bytes,
                                  .peer_gid = gid.bytes};
      HETCOMM_RETURN_IF_ERROR(
          pairs_[i]->connect(pairs_[i]->path_to(parameters, gid), parameters, settings));
    }
    return {};
  }

  Status write(uint64_t from, uint32_t lkey, uint64_t to, uint32_t rkey) {
    QueuePair& pair = *pairs_[0];
    const WorkRequest work{.opcode = IBV_WR_RDMA_WRITE, .rkey = rkey, .address = to};
    const ibv_sge piece{.addr = from, .length = kTrialBytes, .lkey = lkey};
    pair.add(work, {&piece, 1}, {}, true);
    if (!pair.flush()) return {Code::kUnsupported, "the NIC refuses the write"};
    const uint64_t deadline = now_ns() + patience_ns_;
    ibv_wc completion{};
    int got = 0;
    while ((got = verbs().poll_cq(nic_->cq(), 1, &completion)) == 0 && now_ns() < deadline) {
      sched_yield();
    }
    if (got < 0) return {Code::kUnsupported, "the completion queue cannot be read"};
    if (got == 0) return {Code::kOutOfResources, "the NIC does not finish the write"};
    pair.retire(completion.wr_id, [](const SendRecord&) {});
    if (completion.status == IBV_WC_SUCCESS) return {};
    return {Code::kUnsupported,
            fmt::format("the NIC's write fails: {} (vendor error {:#x})",
                        verbs().wc_status_str(completion.status), completion.vendor_err)};
  }

  uint64_t patience_ns_ = kTrialNs;
  std::unique_ptr<Device> nic_;
  Slab host_;
  std::array<std::unique_ptr<QueuePair>, 2> pairs_;
};

// Fills |bytes| with a pattern. The patterns of different seeds below 8 differ in every byte.
void fill(std::byte* bytes, uint8_t seed) {
  for (uint64_t i = 0; i < kTrialBytes; ++i) {
    bytes[i] = static_cast<std::byte>((i * 8 + (i >> 5) * 8) | seed);
  }
}

// Verifies in both directions that the NIC moved the bytes. The destination holds a different
// pattern beforehand.
Status prove(Loopback& loopback, const hetcomm::Device& device, Scratch& scratch,
             const Registered& registered) {
  std::array<std::byte, kTrialBytes> copy;
  fill(copy.data(), 1);
  HETCOMM_RETURN_IF_ERROR(scratch.write(copy.data()));
  fill(loopback.pattern(), 2);
  HETCOMM_RETURN_IF_ERROR(loopback.write_to(registered));
  if (device.table->flush_remote_writes != nullptr) {
    HETCOMM_RETURN_IF_ERROR(device_refuses(
        device, device.table->flush_remote_writes(device.instance), "flushing remote writes"));
  }
  HETCOMM_RETURN_IF_ERROR(scratch.read(copy.data()));
  if (std::memcmp(copy.data(), loopback.pattern(), kTrialBytes) != 0) {
    return {Code::kUnsupported, "what the NIC wrote is not what the device reads back"};
  }
  fill(copy.data(), 3);
  HETCOMM_RETURN_IF_ERROR(scratch.write(copy.data()));
  fill(loopback.result(), 4);
  HETCOMM_RETURN_IF_ERROR(loopback.write_from(registered));
  if (std::memcmp(copy.data(), loopback.result(), kTrialBytes) != 0) {
    return {Code::kUnsupported, "what the device wrote is not what the NIC reads"};
  }
  return {};
}

Status try_way(Loopback& loopback, DeviceWay way, const hetcomm::Device& device,
               HangingCopy* hanging) {
  Scratch scratch(device);
  HETCOMM_RETURN_IF_ERROR(scratch.allocate());
  Result<Registered> registered =
      register_device_memory(loopback.verbs(), loopback.pd(), way, device, scratch.address(), 0,
                             kTrialBytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (!registered.ok()) return registered.status();
  Status status = prove(loopback, device, scratch, registered.value());
  (void)loopback.verbs().dereg_mr(registered->mr);
  *hanging = scratch.hanging();
  return status;
}

}  // namespace

DeviceVerdict try_device(const Verbs& verbs, const Config& config, const std::string& nic,
                         const ConnectionSettings& settings, const hetcomm::Device& device) {
  DeviceVerdict verdict;
  std::unique_ptr<Loopback> loopback;
  for (const DeviceWay way : {DeviceWay::kDmaBuf, DeviceWay::kPlain}) {
    Status status = offers(verbs, way, device);
    if (status.ok() && loopback == nullptr) {
      Result<std::unique_ptr<Loopback>> made = Loopback::create(verbs, config, nic, settings);
      if (made.ok()) {
        loopback = std::move(made).value();
      } else {
        status = made.status();
      }
    }
    if (status.ok()) status = try_way(*loopback, way, device, &verdict.hanging);
    // After a failure the queue pairs may be unusable, so the next method uses a new Loopback.
    if (!status.ok()) loopback.reset();
    verdict.text += fmt::format("{}{}: {}", verdict.text.empty() ? "" : "; ", way_name(way),
                                status.ok() ? "what was written was read back" : status.text());
    verdict.may_change = !status.ok() && (verdict.may_change || may_pass(status));
    if (status.ok()) verdict.way = way;
    if (status.ok() || verdict.hanging.event != nullptr) break;
  }
  return verdict;
}

}  // namespace hetcomm::rdma
