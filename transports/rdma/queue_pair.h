// QueuePair is one RC queue pair with its send queue: the ring of records of posted work, and the
// send slots. It also decides which work requests are signalled, so that they cause a completion.
//
// A request is signalled if the caller requires a completion (large fragments, the end of a bulk).
// In addition, every kSignalEvery-th request after a signalled one is signalled. There are more
// than kSignalEvery send slots and work requests, so waiting for a free one always ends with a
// completion. When nothing more is sent, nudge() adds an empty signalled write. Its completion
// confirms the unsignalled requests before it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "transports/rdma/device.h"
#include "transports/rdma/receive_pool.h"
#include "transports/rdma/settings.h"
#include "transports/rdma/wire.h"
#include "transports/transport.h"

namespace hetcomm::rdma {

struct Transfer;

// The purpose of one work request.
struct SendRecord {
  Transfer* transfer = nullptr;
  uint64_t offset = 0;  // offset of the fragment within its bulk
  uint32_t length = 0;
  bool slot = false;       // completion frees the oldest send slot
  bool signalled = false;  // the request causes a completion; set by the queue pair
  uint32_t slot_index = 0;
};

// One work request, without the fields that the queue pair fills in.
struct WorkRequest {
  ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE;
  unsigned flags = 0;
  uint32_t immediate = 0;  // in wire byte order
  uint32_t rkey = 0;
  uint64_t address = 0;  // in the peer's memory
};

// The network path to the peer's queue pair.
struct Path {
  ibv_ah_attr address{};
  ibv_mtu mtu = IBV_MTU_1024;
  uint16_t partition = 0;  // index in the port's partition table
  uint32_t queue_pair = 0;
  uint32_t send_sequence = 0;     // first packet sequence number that this side sends
  uint32_t receive_sequence = 0;  // first packet sequence number that the peer sends
};

class QueuePair {
 public:
  static constexpr uint32_t kSendSlots = 32;
  static constexpr uint32_t kSignalEvery = 16;
  static constexpr size_t kMaxInline = 256;
  static constexpr size_t kMaxPieces = 8;
  static constexpr uint8_t kMaxReads = 16;

  // Creates a queue pair in the state INIT. Each send slot has |slot_bytes| and is allocated near
  // NUMA node |node|.
  static Result<std::unique_ptr<QueuePair>> create(Device& device, uint32_t slot_bytes,
                                                   int node = kAnyNumaNode);
  // Destroys the queue pair. The device then no longer accesses memory for it.
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  uint32_t number() const { return qp_->qp_num; }
  uint32_t packet_sequence() const { return packet_sequence_; }
  uint8_t read_depth() const;
  // Returns false if the port has lost this connection's address, or the LID that the peer uses.
  bool has_address() const;
  size_t max_inline() const { return max_inline_; }
  size_t max_pieces() const { return max_pieces_; }

  // Returns the path to |peer| according to the parameters that both sides have exchanged.
  Path path_to(const Parameters& peer, const Gid& mine) const;
  // Connects the queue pair to |peer| over |path|, so that it can send and receive.
  Status connect(const Path& path, const Parameters& peer, const ConnectionSettings& settings);
  // Puts the queue pair into the error state: no new work begins, and all posted work is flushed.
  void stop();
  // Returns whether the queue pair is in the error state or cannot be queried.
  bool is_in_error() const;

  // --- posting
  uint32_t room() const { return kSendDepth - static_cast<uint32_t>(posted_ - done_); }
  uint32_t free_slots() const {
    return kSendSlots - static_cast<uint32_t>(slots_taken_ - slots_given_);
  }
  // Returns the next free send slot, which a record with |slot| set claims.
  std::byte* slot() const { return slot_at(next_slot()); }
  uint32_t next_slot() const { return static_cast<uint32_t>(slots_taken_ % kSendSlots); }
  std::byte* slot_at(uint32_t index) const { return slots_.data() + size_t{index} * slot_bytes_; }
  uint32_t slot_key() const { return slots_.lkey(); }
  // Adds a request to the chain that flush() posts. |pieces| are copied. The caller must have
  // checked room().
  void add(const WorkRequest& work, std::span<const ibv_sge> pieces, const SendRecord& record,
           bool signal) {
    if (chained_ == kChain) [[unlikely]]
      (void)post_chain();
    signal = signal || since_signal_ + 1 >= kSignalEvery;
    since_signal_ = signal ? 0 : since_signal_ + 1;
    SendRecord& kept = records_[posted_ % kSendDepth];
    kept = record;
    kept.signalled = signal;
    kept.slot_index = next_slot();
    if (signal) ++signalled_;
    if (record.slot) ++slots_taken_;
    // All other fields of a request remain zero.
    ibv_send_wr& request = chain_[chained_];
    request.wr_id = posted_++;
    request.next = nullptr;
    request.sg_list = pieces_[chained_].data();
    request.num_sge = static_cast<int>(pieces.size());
    request.opcode = work.opcode;
    request.send_flags = work.flags | (signal ? unsigned{IBV_SEND_SIGNALED} : 0u);
    request.imm_data = work.immediate;
    request.wr.rdma.remote_addr = work.address;
    request.wr.rdma.rkey = work.rkey;
    for (size_t i = 0; i < pieces.size(); ++i) pieces_[chained_][i] = pieces[i];
    if (chained_ > 0) chain_[chained_ - 1].next = &request;
    ++chained_;
  }
  // Posts the chain. Returns false if the device refuses it. The connection is then unusable.
  bool flush() {
    if (chained_ > 0 && !refused_) (void)post_chain();
    return !refused_;
  }
  // Posts the chain after stop(). Tries once even if the device has refused before.
  bool flush_last() {
    refused_ = false;
    return flush();
  }
  // Returns whether unsignalled work is in flight that no signalled request will confirm.
  bool has_silent_tail() const { return signalled_ == 0 && posted_ != done_; }
  void nudge();
  bool idle() const { return posted_ == done_; }
  uint64_t posted() const { return posted_; }
  // Returns whether everything posted before number |number| has completed.
  bool has_completed(uint64_t number) const { return done_ >= number; }

  // Handles the completion with |id|. Calls use(record) for its record and all earlier ones that
  // have not completed. Ignores the completion if no request with |id| is in flight.
  template <typename Use>
  void retire(uint64_t id, Use&& use) {
    if (id - done_ >= posted_ - done_) return;  // not one of this queue pair's requests
    while (done_ <= id) {
      const SendRecord record = records_[done_ % kSendDepth];
      if (record.signalled) --signalled_;
      ++done_;
      if (record.slot) ++slots_given_;
      use(record);
    }
  }

 private:
  static constexpr size_t kChain = 8;

  QueuePair(Device& device, uint32_t slot_bytes) : device_(device), slot_bytes_(slot_bytes) {}
  Status create_qp();
  Status initialize();
  bool post_chain();

  Device& device_;
  const uint32_t slot_bytes_;
  ibv_qp* qp_ = nullptr;
  uint32_t packet_sequence_ = 0;
  std::optional<uint32_t> gid_index_;  // empty if connected by LID
  GidBytes gid_{};
  uint16_t lid_ = 0;  // the port's LID, on InfiniBand
  size_t max_inline_ = 0;
  size_t max_pieces_ = 1;
  Slab slots_;
  uint64_t posted_ = 0;
  uint64_t done_ = 0;
  uint64_t slots_taken_ = 0;
  uint64_t slots_given_ = 0;
  uint32_t signalled_ = 0;  // signalled requests in flight
  uint32_t since_signal_ = 0;
  bool refused_ = false;  // the device has refused work, which makes the connection unusable
  size_t chained_ = 0;
  std::array<SendRecord, kSendDepth> records_;
  std::array<ibv_send_wr, kChain> chain_{};
  std::array<std::array<ibv_sge, kMaxPieces>, kChain> pieces_;
};

}  // namespace hetcomm::rdma
