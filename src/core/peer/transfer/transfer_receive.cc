#include <algorithm>
#include <array>
#include <memory>

#include "src/base/baton_role.h"
#include "src/base/text.h"
#include "src/core/peer/matching/track_base.h"
#include "src/core/peer/transfer/track.h"
#include "src/core/peer/transfer/transfer.h"
#include "src/core/peer/transfer/transfers.h"

namespace hetcomm {
namespace {

// Returns how many of the |length| bytes starting at |offset| are in the first |most| extents,
// counted from |offset|.
uint64_t length_of_extents(Extents extents, uint64_t offset, uint64_t length, uint32_t most) {
  uint64_t covered = 0;
  uint32_t count = 0;
  for_each_piece(extents, offset, length, [&](const std::byte*, size_t size) {
    if (count++ < most) covered += size;
  });
  return covered;
}

}  // namespace

// A Chunk is a range of the message in flight. It is granted to the sender or read by this rank,
// and then copied to the device if necessary. Parts that the sender offers are copied directly from
// the sender's memory.
class ReceiveTransfer::Chunk final : public BulkOwner,
                                     public CopyHandler,
                                     public PutTarget,
                                     public Mortal {
 public:
  Chunk(ReceiveTransfer& transfer, uint64_t offset, uint64_t length, std::byte* staging_chunk)
      : transfer_(transfer),
        offset_(offset),
        length_(length),
        staging_chunk_(staging_chunk),
        into_device_(staging_chunk == nullptr && !transfer.receive_->buffers.on_host) {
    bulk_.owner = this;
    bulk_.is_get = true;
    if (staging_chunk_ != nullptr) {
      one_extent_ = {staging_chunk_, length};
      return;
    }
    for_each_piece(transfer.receive_->extents(), offset, length,
                   [this](std::byte* piece, size_t size) {
                     if (one_extent_.iov_len == 0) {
                       one_extent_ = {piece, size};
                       return;
                     }
                     if (extents_.empty()) extents_.push_back(one_extent_);
                     extents_.push_back({piece, size});
                   });
  }
  ~Chunk() {
    set_state(State::kWaiting);
    let_go();
  }
  // Releases the staging chunk. Requires that nothing accesses its memory any longer.
  void let_go() HETCOMM_UNDER_BATON {
    if (staging_chunk_ != nullptr) {
      transfer_.staging_.give(std::exchange(staging_chunk_, nullptr));
    }
  }

  uint64_t offset() const { return offset_; }
  uint64_t length() const { return length_; }
  bool waiting() const { return state_ == State::kWaiting; }
  bool is_on(const Rail& rail) const {
    return state_ == State::kGranted ? rail_ == &rail
                                     : state_ == State::kReading && bulk_.rail == &rail;
  }
  bool copying() const HETCOMM_UNDER_BATON { return copy_.running() || is_taking(); }
  // Returns whether all bytes have arrived and are being copied.
  bool has_landed() const { return state_ == State::kCopying; }
  // Returns whether any bytes have arrived or are offered.
  bool has_arrived() const { return arrived_ > 0 || !takings_.empty(); }

  // Starts the chunk on |rail|. Returns kPeerLost if it has to start on the next rail instead,
  // kUnsupported if its range must be divided again, and kCancelled if the transfer has failed.
  Code start(Rail& rail) HETCOMM_UNDER_BATON {
    if (into_device_ && !transfer_.data().reaches(*transfer_.receive_, rail.ends.own)) {
      return Code::kUnsupported;
    }
    if (transfer_.by_get_) {
      bulk_.rail = &rail;
      bulk_.local = ExtentView{extents(), 0, length_};
      bulk_.key = transfer_.source_.key;
      bulk_.remote_offset = offset_;
      bulk_.high_priority = transfer_.receive_->options.high_priority;
      set_state(State::kReading);
      count(rail);
      association().bulks().submit(bulk_);
      return Code::kOk;
    }
    cookie_ = transfer_.table_.targets().insert(this);
    Result<RemoteKey> key = expose(rail);
    if (!key.ok()) {
      transfer_.table_.targets().erase(cookie_);
      // The connection is breaking: the chunk starts again on the next one.
      if (key.status().code() == Code::kPeerLost) return Code::kPeerLost;
      if (into_device_) {
        transfer_.data().device_access.give_up(*transfer_.receive_, rail.ends.own, key.status());
        return Code::kUnsupported;
      }
      transfer_.chunk_failed(key.status().code(), key.status().text());
      return Code::kCancelled;
    }
    count(rail);
    key_ = key.value();
    rail_ = &rail;
    // The data of a run may arrive much later, so it is counted only when its first bytes arrive.
    if (!transfer_.of_track()) count_awaited();
    arrived_ = 0;
    taken_.clear();
    set_state(State::kGranted);
    if (!rail.capabilities().lossless) transfer_.sender_knows_ = false;
    const GrantBody grant{transfer_.sender_id_, rail.id, offset_, length_,
                          transfer_.accepted_,  key_};
    takes_offers_ = transfer_.table_.offers().may_take_on(rail) && !into_device_ &&
                    (transfer_.receive_->buffers.on_host ||
                     staging().takes_any_memory(transfer_.receive_->buffers.pieces));
    association().send_protocol(MessageKind::kGrant, takes_offers_ ? cookie_ : 0,
                                staging_chunk_ != nullptr ? 1 : 0, &grant, sizeof(grant));
    return Code::kOk;
  }

  // Shortens the chunk to |length| bytes. Returns false if more have already arrived, or if bytes
  // are being read or copied.
  bool shorten(uint64_t length) HETCOMM_UNDER_BATON {
    if (state_ == State::kCopying || state_ == State::kReading || arrived_ > length ||
        !takings_.empty()) {
      return false;
    }
    if (counted_) rail_->receiving.drop(length_ - length);
    length_ = length;
    if (state_ == State::kGranted && arrived_ == length_) arrive();
    return true;
  }

  // Ends the grant of the chunk, which the sender will never use. The key is released instead of
  // revoked, since revoking it might break the connection.
  void drop() HETCOMM_UNDER_BATON {
    if (state_ != State::kGranted) return;
    rail_->abilities().exposer->release(key_);
    if (std::exchange(counted_, false)) rail_->receiving.drop(length_);
    transfer_.table_.targets().erase(cookie_);
    set_state(State::kWaiting);
  }

  // Stops the chunk. On return the connection no longer accesses the memory, but a device copy may
  // still be running.
  void stop() HETCOMM_UNDER_BATON {
    if (state_ == State::kGranted) {
      rail_->abilities().exposer->revoke(key_);
      if (std::exchange(counted_, false)) rail_->receiving.drop(length_);
      transfer_.table_.targets().erase(cookie_);
      for (size_t i = 0; i < takings_.size();) {
        if (takings_[i].copying()) {
          ++i;
        } else {
          retire(i);
        }
      }
    } else if (state_ == State::kReading) {
      association().bulks().cancel(bulk_);
    }
    if (state_ == State::kCopying || state_ == State::kEnding) return;
    set_state(takings_.empty() ? State::kWaiting : State::kEnding);
  }

  // Continues with pending offers, whose memory may have been mapped.
  void take_offers() HETCOMM_UNDER_BATON {
    for (size_t i = 0; state_ == State::kGranted && i < takings_.size();) {
      const size_t before = takings_.size();
      if (!takings_[i].copying()) start(takings_[i]);
      if (takings_.size() == before) ++i;
    }
  }

 private:
  // kEnding: the chunk has been stopped, but copies of offered bytes are still running.
  enum class State : uint8_t { kWaiting, kGranted, kReading, kCopying, kEnding };
  static constexpr size_t kMaxTakings = ChunkPools::kMaxDepth;

  // A Taking is an offer that is being copied, or that waits until the sender's memory is mapped.
  class Taking final : public CopyHandler, public Mortal {
   public:
    Taking(Chunk& chunk, const OfferBody& offer, uint64_t sender_id)
        : chunk_(chunk), offer_(offer), sender_id_(sender_id) {}

    const OfferBody& offer() const { return offer_; }
    uint64_t sender_id() const { return sender_id_; }
    bool copying() const HETCOMM_UNDER_BATON { return copy_.running(); }
    // Keeps |region| mapped until the copy has finished.
    CopyJob& hold(const MappedRegion& region) {
      region_ = HostRange::of(region.address, offer_.region_bytes);
      hold_ = region.hold;
      return copy_;
    }
    // Lets |abandoned| keep the region mapped if an abandoned copy may still access it.
    void leave_to(AbandonedCopies& abandoned) { abandoned.keep_if_touched(region_, hold_); }

   private:
    void on_copied(const Status& status) override HETCOMM_UNDER_BATON {
      chunk_.copied(*this, status);
    }
    std::string copy_purpose() const override HETCOMM_UNDER_BATON { return chunk_.copy_purpose(); }

    Chunk& chunk_;
    const OfferBody offer_;
    const uint64_t sender_id_;
    CopyJob copy_;
    HostRange region_;
    std::shared_ptr<const void> hold_;
  };

  void set_state(State state) HETCOMM_UNDER_BATON {
    if (state_ == State::kGranted && !transfer_.of_track()) {
      transfer_.data().engine.expect_less();
    }
    state_ = state;
    if (state_ == State::kGranted && !transfer_.of_track()) {
      transfer_.data().engine.expect_more();
    }
  }
  void count_awaited() HETCOMM_UNDER_BATON {
    rail_->receiving.start(length_, transfer_.data().now_ns());
    counted_ = true;
  }

  Result<RemoteKey> expose(Rail& rail) HETCOMM_UNDER_BATON {
    MemoryExposer* const exposer = rail.abilities().exposer;
    if (exposer == nullptr) return Code::kUnsupported;
    try {
      return exposer->expose(extents(), Access::kPutTarget, cookie_);
    } catch (const std::bad_alloc&) {
      return Code::kOutOfMemory;
    }
  }
  void count(Rail& rail) HETCOMM_UNDER_BATON {
    as_chosen_ = transfer_.table_.is_as_chosen(*transfer_.receive_, rail, staging_chunk_ != nullptr,
                                               transfer_.far_);
    if (into_device_) {
      transfer_.wrote_to_device_ = true;
      rail.counters().device_bytes_direct += length_;
    } else if (staging_chunk_ != nullptr) {
      ++rail.counters().staged_chunks;
      rail.counters().device_bytes_staged += length_;
    }
  }
  Extents extents() const {
    return extents_.empty() ? Extents(&one_extent_, 1) : Extents(extents_);
  }

  bool is_taking() const HETCOMM_UNDER_BATON {
    for (size_t i = 0; i < takings_.size(); ++i) {
      if (takings_[i].copying()) return true;
    }
    return false;
  }
  void retire(size_t taking) HETCOMM_UNDER_BATON { transfer_.data().retire(takings_.take(taking)); }

  void on_arrived(uint64_t length) override HETCOMM_UNDER_BATON {
    if (!counted_ && transfer_.origin_ != Origin::kRunWithRate) count_awaited();
    arrived_ += length;
    if (arrived_ < length_) return;
    if (!takings_.empty()) {
      transfer_.chunk_failed(Code::kPeerLost, "the sender has put what it offered");
      return;
    }
    arrive();
  }
  void on_offered(const OfferBody& offer, uint64_t sender_id) override HETCOMM_UNDER_BATON {
    uint64_t offered = arrived_;
    for (size_t i = 0; i < takings_.size(); ++i) offered += takings_[i].offer().length;
    if (state_ != State::kGranted || !takes_offers_ || takings_.full() || offer.length == 0 ||
        offered > length_ || offer.length > length_ - offered || offer.offset > length_ ||
        offer.length > length_ - offer.offset || offer.region_offset > offer.region_bytes ||
        offer.length > offer.region_bytes - offer.region_offset) {
      association().violated("an offer that does not fit what was granted");
      return;
    }
    taken_.reserve(taken_.size() + takings_.size() + 1);
    takings_.push(make_pooled<Taking>(transfer_.data().blocks, *this, offer, sender_id));
    start(takings_.back());
  }
  void start(Taking& taking) HETCOMM_UNDER_BATON {
    const OfferBody& offer = taking.offer();
    Result<MappedRegion> region =
        transfer_.table_.offers().find(*rail_, offer.region, offer.region_bytes);
    if (region.status().code() == Code::kPending) return;
    if (!region.ok()) {
      answer(taking, true);
      transfer_.data().retire(takings_.take(taking));
      return;
    }
    std::byte* const from = region->address + offer.region_offset;
    if (!transfer_.receive_->buffers.on_host) {
      staging().start(taking.hold(*region), StreamDirection::kFromHost,
                      transfer_.receive_->buffers.pieces, offset_ + offer.offset, from,
                      offer.length, taking);
      return;
    }
    scatter(transfer_.receive_->extents(), offset_ + offer.offset, {from, offer.length});
    took(taking);
  }
  void copied(Taking& taking, const Status& status) HETCOMM_UNDER_BATON {
    if (state_ == State::kGranted && status.ok()) {
      took(taking);
      return;
    }
    if (!status.ok()) taking.leave_to(staging().abandoned());
    transfer_.data().retire(takings_.take(taking));
    if (!status.ok()) transfer_.chunk_failed(status.code(), status.text());
    if (state_ != State::kEnding || !takings_.empty()) return;
    set_state(State::kWaiting);
    transfer_.chunk_is_quiet();
  }
  // Records that the bytes of |taking| are in place.
  void took(Taking& taking) HETCOMM_UNDER_BATON {
    const OfferBody offer = taking.offer();
    answer(taking, false);
    ++rail_->counters().mapped_chunks;
    rail_->counters().bulk_bytes += taking.offer().length;
    if (staging_chunk_ != nullptr) taken_.push_back({offer.offset, offer.length});
    transfer_.data().retire(takings_.take(taking));
    on_arrived(offer.length);
  }
  void answer(const Taking& taking, bool refused) HETCOMM_UNDER_BATON {
    association().send_protocol(MessageKind::kTaken, taking.sender_id(),
                                taken_value(taking.offer().number, refused));
  }
  void arrive() HETCOMM_UNDER_BATON {
    rail_->abilities().exposer->release(key_);
    if (std::exchange(counted_, false)) {
      rail_->receiving.finish(length_, transfer_.data().now_ns());
    }
    transfer_.table_.targets().erase(cookie_);
    landed();
  }
  void on_bulk(Bulk& /*bulk*/, Code code) override HETCOMM_UNDER_BATON {
    set_state(State::kWaiting);
    if (code == Code::kOk) {
      landed();
    } else if (code == Code::kCancelled) {
      // The sender has ended the message. A withdrawal or an abort will give the reason.
      transfer_.source_gone_ = true;
    } else {
      // Reading failed, but the sender can still write.
      if (std::exchange(transfer_.chosen_, false))
        transfer_.table_.chooser().get_failed(transfer_.accepted_);
      transfer_.by_get_ = false;
      transfer_.sender_knows_ = false;
      transfer_.start_chunks();
    }
  }
  void landed() HETCOMM_UNDER_BATON {
    if (as_chosen_) transfer_.far_.moved_bytes += length_;
    if (staging_chunk_ == nullptr) {
      set_state(State::kWaiting);
      transfer_.chunk_finished(*this);
      return;
    }
    std::sort(taken_.begin(), taken_.end(),
              [](const Range& a, const Range& b) { return a.offset < b.offset; });
    copied_ = next_taken_ = 0;
    if (!copy_next()) {
      set_state(State::kWaiting);
      transfer_.chunk_finished(*this);
    }
  }
  // Starts to copy the next range after |copied_| that was put into the staging chunk. Returns
  // false if there is none.
  bool copy_next() HETCOMM_UNDER_BATON {
    for (; next_taken_ < taken_.size() && taken_[next_taken_].offset <= copied_; ++next_taken_) {
      copied_ = std::max(copied_, taken_[next_taken_].offset + taken_[next_taken_].length);
    }
    if (copied_ >= length_) return false;
    const uint64_t begin = copied_;
    copied_ = next_taken_ < taken_.size() ? taken_[next_taken_].offset : length_;
    set_state(State::kCopying);
    staging().start(copy_, StreamDirection::kFromHost, transfer_.receive_->buffers.pieces,
                    offset_ + begin, staging_chunk_ + begin, copied_ - begin, *this);
    return true;
  }
  std::string copy_purpose() const override HETCOMM_UNDER_BATON {
    return transfer_.receive_ != nullptr ? hetcomm::describe(*transfer_.receive_) : "a message";
  }
  void on_copied(const Status& status) override HETCOMM_UNDER_BATON {
    if (status.ok() && !transfer_.ending_ && copy_next()) return;
    set_state(State::kWaiting);
    if (status.ok()) {
      transfer_.chunk_finished(*this);
    } else {
      transfer_.chunk_failed(status.code(), status.text());
      transfer_.maybe_finish();
    }
  }
  Association& association() { return transfer_.association_; }
  Staging& staging() HETCOMM_UNDER_BATON { return transfer_.data().staging; }

  ReceiveTransfer& transfer_;
  uint64_t offset_;
  uint64_t length_;
  std::byte* staging_chunk_;
  const bool into_device_;  // the connection itself writes to the device
  bool as_chosen_ = false;  // uses a far network interface in the way that |far_| says
  State state_ = State::kWaiting;
  iovec one_extent_{};
  std::vector<iovec> extents_;  // used instead of |one_extent_| if there are several
  OwnedBulk bulk_;
  CopyJob copy_;
  RemoteKey key_;
  Rail* rail_ = nullptr;  // set while the chunk is granted
  uint64_t cookie_ = 0;
  uint64_t arrived_ = 0;
  bool counted_ = false;  // counted in |rail_->receiving|
  bool takes_offers_ = false;
  FewPooled<Taking, kMaxTakings> takings_;
  std::vector<Range> taken_;  // ranges copied from offers, not put into the staging chunk
  uint64_t copied_ = 0;       // end of what was copied from the staging chunk so far
  size_t next_taken_ = 0;     // index of the first range in |taken_| after |copied_|
};

ReceiveTransfer* TransferTable::find_receive(uint64_t sender_id) const {
  return by_sender_.find(sender_id);
}

ReceiveTransfer::Origin ReceiveTransfer::origin_of(const Operation& receive) {
  if (!receive.options.on_track) return Origin::kMessage;
  return track_of(receive).peer_has_rate() ? Origin::kRunWithRate : Origin::kRun;
}

ReceiveTransfer::ReceiveTransfer(TransferTable& table, Operation& receive, const Incoming& message)
    : table_(table),
      association_(table.association()),
      receive_(&receive),
      id_(table.add(*this, message.sender_id)),
      sender_id_(message.sender_id),
      source_{message.rail, message.source_key},
      near_{.own = data().near.of(receive), .peer = message.transports},
      tag_(message.tag),
      length_(message.length),
      accepted_(std::min(message.length, receive.length)),
      origin_(origin_of(receive)),
      wrote_to_device_(receive.kind != OperationKind::kReceive && receive.target.ahead > 0 &&
                       !receive.buffers.on_host),
      sender_knows_(receive.kind == OperationKind::kReceive),
      started_ns_(now_ns()),
      staging_(data().staging.chunks(), ChunkPools::Pool::kReceive) {}

ReceiveTransfer::~ReceiveTransfer() { table_.remove(*this, id_); }

void ReceiveTransfer::start() {
  by_get_ = want_get();
  start_chunks();
  maybe_finish();
}

bool ReceiveTransfer::want_get() {
  const Rail* rail = association_.rail();
  if (rail == nullptr || source_.key == RemoteKey{} || rail->id != source_.rail || !rail->known ||
      !rail->capabilities().get) {
    return false;
  }
  if (!rail->capabilities().put) return true;
  association_.need_rails(near_);
  if (!association_.choose_rails(near_).admit(rail->ends)) return false;
  // A get uses one connection. Puts use all of them.
  const bool has_several = association_.count_bulk_rails(near_) > 1 || association_.expects_rails();
  if (accepted_ > kMinShare && has_several) return false;
  if (rail->capabilities().prefers_get) return true;
  chosen_ = receive_->buffers.on_host;
  // Device copies take additional time, so transfers of device memory are not part of a trial.
  return table_.chooser().prefer_get(accepted_, chosen_);
}

// Returns the length of the next chunk, which begins at the beginning of |rest| and goes over
// |rail|.
uint64_t ReceiveTransfer::next_length(const Range& rest, bool staged, const Rail& rail) const {
  if (staged) return std::min(rest.length, staging_.shape().chunk_bytes);
  const Capabilities& capabilities = association_.rail()->capabilities();
  uint64_t length = capabilities.lossless ? rest.length : std::min(rest.length, kRegrantBytes);
  if (association_.expects_rails()) {
    length = std::min(length, kMinShare);
  } else if (association_.count_bulk_rails(near_) > 1) {
    length = std::min(length, share_of(rail, sum_of_rates(), rest.length));
    if (is_untried(rail)) length = std::min(length, kMinShare);
  }
  return capabilities.max_exposed_extents == UINT32_MAX
             ? length
             : length_of_extents(receive_->extents(), rest.offset, length,
                                 capabilities.max_exposed_extents);
}

void ReceiveTransfer::start_chunks() {
  if (ending_ || source_gone_ || association_.rail() == nullptr) return;
  association_.need_rails(near_);
  if (!start_waiting_chunks()) return;
  while (!ending_ && (cut_ < accepted_ || !uncut_.empty()) && add_chunk()) {
  }
}

// Starts the waiting chunks. Returns false if some cannot start now, or if the transfer has ended.
bool ReceiveTransfer::start_waiting_chunks() {
  for (size_t i = 0; i < chunks_.size();) {
    if (!chunks_[i].waiting()) {
      ++i;
      continue;
    }
    Rail* rail = pick_rail();
    const Code code = rail == nullptr ? Code::kPeerLost : chunks_[i].start(*rail);
    if (code == Code::kUnsupported) {
      cut_again(i);
    } else if (code != Code::kOk) {
      return false;
    }
  }
  return !ending_;
}

// Removes a chunk, and records that its range must be divided again. Called because its next
// connection cannot access its memory directly.
void ReceiveTransfer::cut_again(size_t index) {
  uncut_.push_back({chunks_[index].offset(), chunks_[index].length()});
  data().retire(chunks_.take(index));
}

// Returns the connection that would finish the next chunk first, or null if that connection cannot
// take another chunk now or the transfer waits for connections. Another connection would finish the
// chunk later even if this one has to finish a chunk first.
Rail* ReceiveTransfer::pick_rail() const {
  // The source can be read only over the connection on which it was exposed.
  if (by_get_) return association_.rails().find(source_.rail);
  if (association_.waits_for_rails(near_)) return nullptr;
  struct Choice {
    Rail* rail = nullptr;
    double done = 0;  // when the chunk would have arrived, in s from now
  };
  Choice best;
  Choice best_full;  // the best of those that already have enough in flight
  size_t count = 0;
  const double sum = sum_of_rates();
  const bool expects_rails = association_.expects_rails();
  association_.for_each_bulk_rail(near_, [&](Rail& rail) HETCOMM_UNDER_BATON {
    ++count;
    // Chunks of runs are not counted as outstanding when they are granted.
    const uint64_t pending = std::max(rail.receiving.outstanding(), bytes_on(rail));
    const double done =
        static_cast<double>(pending + share_of(rail, sum, accepted_ - cut_)) / rate_of(rail);
    const bool is_full = (expects_rails || is_untried(rail)) && pending >= kMaxEarlyBytes;
    Choice& choice = is_full ? best_full : best;
    if (choice.rail == nullptr || done < choice.done) choice = {&rail, done};
  });
  if (count == 0) return association_.rail();
  if (count == 1 && !expects_rails) return best.rail != nullptr ? best.rail : best_full.rail;
  // A transfer without a chunk in flight has nothing that would let it continue.
  if (best.rail == nullptr) return is_any_under_way() ? nullptr : best_full.rail;
  // The chunks of a short message are all granted at once. Those of a longer one are granted as
  // others end, when it is clearer which connection is free.
  const bool is_short = accepted_ <= kMaxGranted * kMinShare;
  return is_short || chunks_on(*best.rail) < kChunksPerRail ? best.rail : nullptr;
}

// Returns the length of a chunk for |rail| of |rest| bytes, which connections with rates of |sum|
// in total share. Chunks get smaller towards the end, so all connections finish at about the same
// time, and a slow connection does not delay the rest.
uint64_t ReceiveTransfer::share_of(const Rail& rail, double sum, uint64_t rest) const {
  constexpr double kParts = 2 * kChunksPerRail;
  const double part = static_cast<double>(rest) * rate_of(rail) / sum / kParts;
  const auto fair = std::max<uint64_t>(static_cast<uint64_t>(part), 1);
  return (fair + kMinShare - 1) / kMinShare * kMinShare;
}

// Returns whether the rate of |rail| is known. An idle connection whose rate was last measured long
// ago counts as unknown for one chunk: it may have been slow then, and nothing else would show that
// it has recovered.
bool ReceiveTransfer::knows_rate(const Rail& rail) const {
  constexpr uint64_t kStaleNs = 3'000'000'000;
  const Throughput& load = rail.receiving;
  const bool is_stale = now_ns() >= load.measured_ns() + kStaleNs;
  return load.rate() > 0 && !(is_stale && load.outstanding() == 0 && bytes_on(rail) == 0);
}

// Returns whether the rate of |rail| is unknown, but will be measured. Runs with a rate of their
// own measure nothing.
bool ReceiveTransfer::is_untried(const Rail& rail) const {
  return origin_ != Origin::kRunWithRate && !knows_rate(rail);
}

double ReceiveTransfer::rate_of(const Rail& rail) const {
  return knows_rate(rail) ? rail.rate_of(rail.receiving) : rail.estimate();
}

double ReceiveTransfer::sum_of_rates() const {
  double sum = 0;
  association_.for_each_bulk_rail(
      near_, [&](const Rail& rail) HETCOMM_UNDER_BATON { sum += rate_of(rail); });
  return sum;
}

bool ReceiveTransfer::is_any_under_way() const {
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (!chunks_[i].waiting()) return true;
  }
  return false;
}

uint64_t ReceiveTransfer::bytes_on(const Rail& rail) const {
  uint64_t bytes = 0;
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (chunks_[i].is_on(rail)) bytes += chunks_[i].length();
  }
  return bytes;
}

size_t ReceiveTransfer::chunks_on(const Rail& rail) const {
  size_t count = 0;
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (chunks_[i].is_on(rail)) ++count;
  }
  return count;
}

bool ReceiveTransfer::add_chunk() {
  Rail* rail = pick_rail();
  if (rail == nullptr) return false;
  std::byte* staging_chunk = nullptr;
  const bool reaches = data().reaches(*receive_, rail->ends.own);
  bool staged = !reaches || table_.prefers_staging(*receive_, *rail, StreamDirection::kFromHost,
                                                   accepted_, far_);
  if (!staged) {
    if (chunks_.size() >= kMaxGranted) return false;
  } else {
    if (DeviceAccess& access = data().device_access; access.insists()) {
      chunk_failed(Code::kUnsupported, access.refusal(*receive_, rail->ends.own));
      return false;
    }
    data().staging.choose_shape(staging_, accepted_, StreamDirection::kFromHost,
                                receive_->buffers.pieces);
    if (chunks_.size() >= staging_.shape().depth) return false;
    bool exhausted = false;
    staging_chunk = staging_.take(!chunks_.empty(), &exhausted);
    if (staging_chunk == nullptr && exhausted && reaches && chunks_.size() < kMaxGranted) {
      // Staging was optional.
      staged = false;
      far_.give_up_staging();
    } else if (staging_chunk == nullptr) {
      if (exhausted && chunks_.empty())
        chunk_failed(Code::kOutOfMemory, "no memory to stage through");
      return false;
    }
  }
  const Range rest = uncut_.empty() ? Range{cut_, accepted_ - cut_} : uncut_.back();
  const uint64_t length = next_length(rest, staged, *rail);
  try {
    chunks_.push(make_pooled<Chunk>(data().blocks, *this, rest.offset, length, staging_chunk));
  } catch (const std::bad_alloc&) {
    if (staging_chunk != nullptr) staging_.give(staging_chunk);
    throw;
  }
  if (uncut_.empty()) {
    cut_ += length;
  } else if (length == rest.length) {
    uncut_.pop_back();
  } else {
    uncut_.back() = {rest.offset + length, rest.length - length};
  }
  const Code code = chunks_.back().start(*rail);
  if (code == Code::kUnsupported) cut_again(chunks_.size() - 1);
  return code == Code::kOk || code == Code::kUnsupported;
}

void ReceiveTransfer::chunk_finished(Chunk& chunk) {
  finished_ += chunk.length();
  chunk.let_go();
  data().retire(chunks_.take(chunk));
  start_chunks();
  maybe_finish();
}

// Called when the remaining copies of a stopped chunk have finished.
void ReceiveTransfer::chunk_is_quiet() {
  if (ending_) {
    maybe_finish();
  } else {
    start_chunks();
  }
}

void ReceiveTransfer::take_offers() {
  // Chunks can end during this loop, and others can begin. Ended chunks are still valid, and ignore
  // offers.
  std::array<Chunk*, kMaxGranted> all{};
  const size_t count = chunks_.size();
  for (size_t i = 0; i < count; ++i) all[i] = &chunks_[i];
  for (size_t i = 0; i < count; ++i) all[i]->take_offers();
}

void ReceiveTransfer::chunk_failed(Code code, std::string_view why) {
  end(code, text_or_none([&]() HETCOMM_UNDER_BATON {
        return fmt::format("receive from rank {}: {}", association_.rank(), why);
      }));
}

bool ReceiveTransfer::shorten(uint64_t length) {
  if (ending_) return true;
  if (length >= accepted_ || finished_ > length) return false;
  length_ = accepted_ = length;
  cut_ = std::min(cut_, length);
  std::erase_if(uncut_, [&](const Range& range) { return range.offset >= length; });
  for (Range& range : uncut_) range.length = std::min(range.length, length - range.offset);
  for (size_t i = 0; i < chunks_.size();) {
    Chunk& chunk = chunks_[i];
    const uint64_t rest = length > chunk.offset() ? length - chunk.offset() : 0;
    if (rest == 0 && !chunk.copying()) {
      if (chunk.has_arrived()) return false;
      chunk.drop();
      data().retire(chunks_.take(i));
      continue;
    }
    const size_t before = chunks_.size();
    if (rest < chunk.length() && !chunk.shorten(rest)) return false;
    if (ending_) return true;
    if (chunks_.size() == before) ++i;
  }
  maybe_finish();
  return true;
}

void ReceiveTransfer::withdrawn(const PeerReason& why) {
  if (of_track() && receive_ != nullptr) track_of(*receive_).run_arrived(track_run(*receive_).run);
  // The abort itself ends the receive of a message, with the abort's reason.
  if (why.is_abort() && receive_ != nullptr && receive_->kind == OperationKind::kReceive) {
    return;
  }
  // The owner of the memory has refused the get.
  if (receive_ != nullptr && receive_->kind == OperationKind::kGet && why.is_answer()) {
    finish_as(why.code(), Completer::access_failure_text(*receive_, why.code()));
    return;
  }
  finish_told(why.status());
}

void ReceiveTransfer::closed(const Status& why) { finish_told(why); }

// Ends the transfer with a reason that another rank has sent.
void ReceiveTransfer::finish_told(const Status& why) {
  finish_as(why.code(), receive_ != nullptr ? text_of_told(*receive_, why) : std::string());
}

// Returns whether all of the message has arrived and only device copies on this rank remain.
bool ReceiveTransfer::only_copies_are_left() const {
  uint64_t arrived = finished_;
  for (size_t i = 0; i < chunks_.size(); ++i) {
    const Chunk& chunk = chunks_[i];
    if (!chunk.has_landed() || chunk.offset() + chunk.length() > accepted_) return false;
    arrived += chunk.length();
  }
  return finished_ < accepted_ && arrived == accepted_;
}

void ReceiveTransfer::end(Code code, std::string text) {
  // If only device copies remain, the receive completes with them.
  if (ending_ || only_copies_are_left()) return;
  // The sender of a message is notified of an abort separately. The peer of a one-sided operation
  // is notified here, since its operation may belong to another communicator.
  const bool message = receive_ == nullptr || receive_->kind == OperationKind::kReceive;
  const bool aborted = receive_ == nullptr ? code == Code::kAborted : is_aborted(*receive_, code);
  if (!aborted || !message) {
    const Permit permit = receive_ != nullptr ? hand_over_permit(*receive_) : Permit::kNone;
    association_.send_reason(MessageKind::kStop, sender_id_,
                             status_or_code(code, [&] { return text; }), permit);
  }
  finish_as(code, std::move(text));
}

void ReceiveTransfer::finish_as(Code code, std::string text) {
  if (ending_) return;
  ending_ = true;
  outcome_.code = code;
  outcome_.text = std::move(text);
  for (size_t i = 0; i < chunks_.size();) {
    chunks_[i].stop();
    if (chunks_[i].copying()) {
      ++i;
    } else {
      data().retire(chunks_.take(i));
    }
  }
  maybe_finish();
}

void ReceiveTransfer::rail_failed(const Rail& rail) {
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (chunks_[i].is_on(rail)) chunks_[i].stop();
  }
  // From now on the sender needs a kDone, since it tracks only its own puts on rails that still
  // exist.
  sender_knows_ = false;
  if (source_.rail != rail.id) return;
  by_get_ = false;
  chosen_ = false;
  source_.key = {};
  source_gone_ = false;  // the sender may still have the data
}

bool ReceiveTransfer::uses(const Rail& rail) const {
  if (by_get_ && source_.rail == rail.id) return true;
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (chunks_[i].is_on(rail)) return true;
  }
  return false;
}

void ReceiveTransfer::maybe_finish() {
  if (receive_ == nullptr) return;
  if (ending_) {
    // Frees the chunks whose device copies have finished since the last call.
    for (size_t i = 0; i < chunks_.size();) {
      if (chunks_[i].copying()) {
        ++i;
      } else {
        data().retire(chunks_.take(i));
      }
    }
    if (!chunks_.empty()) return;
  } else {
    if (!message_is_complete()) return;
    ending_ = true;
    if (wrote_to_device_) {
      const Status flushed = DeviceAccess::flush_remote_writes(*receive_);
      if (!flushed.ok()) {
        outcome_.code = flushed.code();
        outcome_.text = text_or_none([&]() HETCOMM_UNDER_BATON {
          return fmt::format("receive from rank {}: {}", association_.rank(), flushed.text());
        });
      }
    }
    const uint64_t elapsed_ns = table_.service_time(started_ns_, now_ns());
    if (chosen_) table_.chooser().measured(accepted_, by_get_, elapsed_ns);
    if (far_.made && outcome_.code == Code::kOk && !of_track())
      table_.far_ways().measured(far_, accepted_, now_ns());
    hetcomm_counters_t* counters =
        association_.rail() != nullptr ? &association_.rail()->counters() : nullptr;
    if (counters != nullptr) ++(by_get_ ? counters->bulk_by_get : counters->bulk_by_put);
    if (of_track()) {
      track_of(*receive_).run_arrived(track_run(*receive_).run);
      if (counters != nullptr) {
        ++counters->messages_received;
        counters->bytes_received += accepted_;
      }
    }
    if (by_get_ || !sender_knows_ || accepted_ == 0) {
      association_.send_protocol(MessageKind::kDone, sender_id_, 0, nullptr, 0,
                                 hand_over_permit(*receive_));
    }
  }
  Operation& receive = *std::exchange(receive_, nullptr);
  transfers_of(receive).receive = nullptr;
  table_.remove(*this, id_);
  receive.outcome.source = association_.rank();
  receive.outcome.matched_tag = tag_;
  receive.outcome.bytes_sent = length_;
  receive.outcome.bytes_received = finished_;
  if (outcome_.code == Code::kOk && length_ > receive.length) {
    data().delivery.complete_truncated(receive);
  } else {
    data().completer.complete(receive, outcome_.code, std::move(outcome_.text));
  }
  BlockPool& blocks = data().blocks;
  data().retire(PoolPtr<ReceiveTransfer>(this, {&blocks}));
}

}  // namespace hetcomm
