#include "transports/rdma/queue_pair.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/core.h>

#include "src/system/random.h"

namespace hetcomm::rdma {
namespace {

constexpr uint32_t kSequenceMask = (1u << 24) - 1;
// A receiver without a posted slot answers "receiver not ready" (RNR), and the sender retries every
// 0.64 ms without limit. Credits prevent that, except for slots lost with a broken queue pair.
constexpr uint8_t kRnrTimer = 12;
constexpr uint8_t kRnrForever = 7;
constexpr uint8_t kHopLimit = 64;

ibv_ah_attr address_of(const Nic& nic, const Parameters& peer, const Gid& mine) {
  ibv_ah_attr address{};
  address.port_num = nic.port;
  // Within an InfiniBand subnet the LID is sufficient.
  const bool same_subnet =
      !nic.ethernet && std::equal(mine.bytes.begin(), mine.bytes.begin() + 8, peer.gid.begin());
  address.dlid = nic.ethernet ? uint16_t{0} : peer.lid;
  if (same_subnet) return address;
  address.is_global = 1;
  std::memcpy(address.grh.dgid.raw, peer.gid.data(), peer.gid.size());
  address.grh.sgid_index = static_cast<uint8_t>(mine.index);
  address.grh.hop_limit = kHopLimit;
  return address;
}

}  // namespace

Result<std::unique_ptr<QueuePair>> QueuePair::create(Device& device, uint32_t slot_bytes,
                                                     int node) {
  std::unique_ptr<QueuePair> pair(new QueuePair(device, slot_bytes));
  std::array<std::byte, 4> random{};
  HETCOMM_RETURN_IF_ERROR(fill_random(random));
  std::memcpy(&pair->packet_sequence_, random.data(), random.size());
  pair->packet_sequence_ &= kSequenceMask;
  Result<Slab> slots = Slab::create(device, size_t{kSendSlots} * slot_bytes, node);
  if (!slots.ok()) return slots.status();
  pair->slots_ = std::move(slots).value();
  HETCOMM_RETURN_IF_ERROR(pair->create_qp());
  HETCOMM_RETURN_IF_ERROR(pair->initialize());
  return pair;
}

QueuePair::~QueuePair() {
  if (qp_ != nullptr) (void)device_.verbs().destroy_qp(qp_);
}

Status QueuePair::create_qp() {
  int error = 0;
  for (const uint32_t inline_bytes : {256u, 128u, 64u, 0u}) {
    ibv_qp_init_attr attributes{};
    attributes.send_cq = device_.cq();
    attributes.recv_cq = device_.cq();
    attributes.srq = device_.srq();
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap.max_send_wr = kSendDepth;
    attributes.cap.max_send_sge =
        std::clamp<uint32_t>(static_cast<uint32_t>(device_.nic().limits.max_sge), 1, kMaxPieces);
    attributes.cap.max_inline_data = inline_bytes;
    qp_ = device_.verbs().create_qp(device_.pd(), &attributes);
    error = errno;
    if (qp_ == nullptr) continue;
    max_inline_ = std::min<size_t>(attributes.cap.max_inline_data, kMaxInline);
    max_pieces_ = std::clamp<size_t>(attributes.cap.max_send_sge, 1, kMaxPieces);
    return {};
  }
  return {Code::kOutOfResources,
          fmt::format("rdma: {}: a queue pair cannot be made: {}{}", device_.nic().name(),
                      std::strerror(error),
                      error == ENOMEM ? "; check RLIMIT_MEMLOCK ('ulimit -l')" : "")};
}

Status QueuePair::initialize() {
  lid_ = device_.nic().lid;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = device_.nic().port;
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  const int error = device_.verbs().modify_qp(
      qp_, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error == 0) return {};
  return {Code::kOutOfResources, fmt::format("rdma: {}: a queue pair cannot be set up: {}",
                                             device_.nic().name(), std::strerror(error))};
}

uint8_t QueuePair::read_depth() const {
  return static_cast<uint8_t>(std::clamp(device_.nic().limits.max_qp_rd_atom, 0, int{kMaxReads}));
}

Path QueuePair::path_to(const Parameters& peer, const Gid& mine) const {
  return {.address = address_of(device_.nic(), peer, mine),
          .mtu = device_.nic().mtu,
          .queue_pair = peer.queue_pair,
          .send_sequence = packet_sequence_,
          .receive_sequence = peer.packet_sequence};
}

Status QueuePair::connect(const Path& path, const Parameters& peer,
                          const ConnectionSettings& settings) {
  const Nic& nic = device_.nic();
  if (path.address.is_global != 0) {
    gid_index_ = path.address.grh.sgid_index;
    gid_ = device_.gid_at(*gid_index_);
  }
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = std::min({path.mtu, nic.mtu, peer.mtu});
  attributes.dest_qp_num = path.queue_pair;
  attributes.rq_psn = path.receive_sequence;
  attributes.max_dest_rd_atomic = read_depth();
  attributes.min_rnr_timer = kRnrTimer;
  attributes.ah_attr = path.address;
  attributes.ah_attr.grh.traffic_class = settings.traffic_class;
  attributes.pkey_index = path.partition;
  int error = device_.verbs().modify_qp(qp_, &attributes,
                                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                                            IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER |
                                            (path.partition != 0 ? IBV_QP_PKEY_INDEX : 0));
  if (error == 0) {
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = settings.timeout;
    attributes.retry_cnt = settings.retries;
    attributes.rnr_retry = kRnrForever;
    attributes.sq_psn = path.send_sequence;
    attributes.max_rd_atomic = static_cast<uint8_t>(
        std::min<int>({peer.read_depth, kMaxReads, nic.limits.max_qp_init_rd_atom}));
    error =
        device_.verbs().modify_qp(qp_, &attributes,
                                  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                      IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  }
  if (error == 0) return {};
  return {Code::kPeerLost,
          fmt::format("rdma: {}: no path from GID index {} to {}: {}; HETCOMM_RDMA_GID_INDEX "
                      "chooses another",
                      nic.name(), path.address.grh.sgid_index, gid_text(peer.gid),
                      std::strerror(error))};
}

bool QueuePair::has_address() const {
  if (gid_index_ && device_.gid_at(*gid_index_) != gid_) return false;
  return device_.nic().ethernet || device_.lid_now() == lid_;
}

void QueuePair::stop() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  (void)device_.verbs().modify_qp(qp_, &attributes, IBV_QP_STATE);
}

bool QueuePair::is_in_error() const {
  ibv_qp_attr attributes{};
  ibv_qp_init_attr initial{};
  return device_.verbs().query_qp(qp_, &attributes, IBV_QP_STATE, &initial) != 0 ||
         attributes.qp_state == IBV_QPS_ERR;
}

bool QueuePair::post_chain() {
  const size_t count = std::exchange(chained_, 0);
  ibv_send_wr* bad = nullptr;
  if (device_.verbs().post_send(qp_, chain_.data(), &bad) == 0) return true;
  // Requests that were not posted cause no completion, so they are no longer counted.
  for (size_t i = count; i > 0; --i) {
    const size_t index = --posted_ % kSendDepth;
    if (records_[index].signalled) --signalled_;
    if (records_[index].slot) --slots_taken_;
    if (&chain_[i - 1] == bad) break;
  }
  refused_ = true;
  return false;
}

void QueuePair::nudge() { add({.opcode = IBV_WR_RDMA_WRITE}, {}, {}, true); }

}  // namespace hetcomm::rdma
