#include "transports/rdma/receive_pool.h"

#include <array>
#include <cerrno>
#include <utility>

#include "transports/rdma/memory_region_cache.h"

namespace hetcomm::rdma {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kBatch = 16;

}  // namespace

Result<Slab> Slab::create(Device& device, size_t bytes, int node) {
  bytes = (bytes + kPage - 1) / kPage * kPage;
  Slab slab;
  slab.verbs_ = &device.verbs();
  slab.memory_ = allocate_near(bytes, node);
  if (!slab.memory_) return Status(Code::kOutOfMemory, "rdma: out of memory for message buffers");
  Result<ibv_mr*> mr = register_memory(device.verbs(), device.pd(), slab.memory_.get(), bytes,
                                       IBV_ACCESS_LOCAL_WRITE);
  if (!mr.ok()) return mr.status();
  slab.mr_ = mr.value();
  return slab;
}

Slab::Slab(Slab&& other) noexcept
    : verbs_(other.verbs_),
      memory_(std::move(other.memory_)),
      mr_(std::exchange(other.mr_, nullptr)) {}

Slab& Slab::operator=(Slab&& other) noexcept {
  std::swap(verbs_, other.verbs_);
  std::swap(memory_, other.memory_);
  std::swap(mr_, other.mr_);
  return *this;
}

Slab::~Slab() {
  if (mr_ != nullptr) (void)verbs_->dereg_mr(mr_);
}

Status ReceivePool::ensure(uint32_t count) {
  while (total_ < count) HETCOMM_RETURN_IF_ERROR(add_slab());
  return {};
}

Status ReceivePool::add_slab() {
  if (total_ + kSlabSlots > device_.max_receives()) {
    return {Code::kOutOfResources, "rdma: the shared receive queue is full"};
  }
  Result<Slab> slab = Slab::create(device_, size_t{kSlabSlots} * slot_bytes_, node_);
  if (!slab.ok()) return slab.status();
  // Reserves space for all slots, so that recycle() never grows the list.
  recycled_.reserve(total_ + kSlabSlots);
  slabs_.push_back(std::move(slab).value());
  for (uint32_t i = 0; i < kSlabSlots; ++i) recycled_.push_back(total_ + i);
  total_ += kSlabSlots;
  if (!post()) return {Code::kOutOfResources, "rdma: receives cannot be posted"};
  warn_when_low();
  return {};
}

bool ReceivePool::replace_lost() { return add_slab().ok(); }

// Arms one warning: the device reports once that fewer than kFew slots are left. A device without
// this feature never warns.
void ReceivePool::warn_when_low() {
  ibv_srq_attr attributes{};
  attributes.srq_limit = kFew;
  (void)device_.verbs().modify_srq(device_.srq(), &attributes, IBV_SRQ_LIMIT);
}

bool ReceivePool::post() {
  size_t done = 0;
  while (done < recycled_.size()) {
    std::array<ibv_recv_wr, kBatch> requests;
    std::array<ibv_sge, kBatch> pieces;
    size_t count = 0;
    for (; count < kBatch && done < recycled_.size(); ++count, ++done) {
      const uint32_t index = recycled_[done];
      pieces[count] = {.addr = reinterpret_cast<uint64_t>(slot(index)),
                       .length = slot_bytes_,
                       .lkey = slabs_[index / kSlabSlots].lkey()};
      requests[count] = {
          .wr_id = kReceiveBit | index, .next = nullptr, .sg_list = &pieces[count], .num_sge = 1};
      if (count > 0) requests[count - 1].next = &requests[count];
    }
    ibv_recv_wr* bad = nullptr;
    if (device_.verbs().post_srq_recv(device_.srq(), requests.data(), &bad) != 0) {
      recycled_.clear();
      return false;
    }
  }
  recycled_.clear();
  return true;
}

}  // namespace hetcomm::rdma
