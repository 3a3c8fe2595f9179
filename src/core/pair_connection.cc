// How a pair gets its connection, loses it, and goes on over the next one.
#include <algorithm>

#include "src/base/clock.h"
#include "src/core/mesh.h"
#include "src/core/pair.h"
#include "src/core/transfer.h"

namespace hetcomm {
namespace {

// Pause before the n-th attempt to connect again; the attempts end with the detection time at the
// latest.
uint64_t backoff_ns(uint64_t attempts) {
  constexpr uint64_t kFirst = 10'000'000;
  constexpr uint64_t kMost = 1'000'000'000;
  return std::min(kMost, kFirst << std::min<uint64_t>(attempts, 7));
}
constexpr uint64_t kMaxAttempts = 8;
constexpr uint64_t kVerdictNs = 1'000'000'000;

}  // namespace

void Pair::ensure_connected() {
  if (state_ != State::kIdle) return;
  state_ = State::kConnecting;
  mesh_.control().watch(rank_);
  if (mesh_.rank() <= rank_) {
    mesh_.connect(*this);
  } else {
    mesh_.control().knock(rank_);
  }
}

void Pair::knocked() {
  if (mesh_.rank() < rank_) ensure_connected();
}

void Pair::adopt(std::unique_ptr<Endpoint> endpoint, std::string_view transport, size_t index) {
  if (state_ == State::kLost) return;
  if (rail_ != nullptr) {
    // The peer noticed a break before we did.
    rail_failed(*rail_, Status(Code::kPeerLost, "replaced by a new connection"));
    if (state_ == State::kLost) return;
  }
  mesh_.control().watch(rank_);
  state_ = State::kConnecting;
  retry_at_ns_ = kForever;
  hetcomm_counters_t* counters = counters_of(transport);
  counters->connected = 1;
  mesh_.log().info("rank {}: connected over {}: {}", rank_, transport, endpoint->describe());
  rail_ = std::make_unique<Rail>(*this, std::move(endpoint), ++rails_made_, index, counters);
  rail_->endpoint().set_handler(rail_.get());
  send_open();
}

// The first message of the connection. Without room on_writable comes back to it.
void Pair::send_open() {
  const WireHeader header{.kind = MessageKind::kOpen, .tag = rail_->id, .value = received_};
  const Code code = rail_->endpoint().send(encode_header(header), SegmentView{});
  if (code == Code::kOk) {
    rail_->open_sent = true;
  } else if (code != Code::kWouldBlock) {
    rail_failed(*rail_, Status(Code::kPeerLost, "connection broke while it was opened"));
  }
}

void Pair::opened(const WireHeader& header) {
  if (rail_->open) {
    violated("second open");
    return;
  }
  rail_->open = true;
  // The lower rank counts connections; both name the rail by its number.
  if (mesh_.rank() > rank_) rail_->id = rails_made_ = header.tag;
  const auto peer_received = static_cast<uint32_t>(header.value);
  retention_.acknowledge(peer_received);
  if (sent_ - peer_received != retention_.count()) {
    give_up(Status(Code::kPeerLost,
                   fmt::format("rank {}: messages were lost with the last connection", rank_)));
    return;
  }
  attempts_ = 0;
  replayed_ = 0;
  if (rail_->open_sent) resume();
}

// Sends again what the last connection may have lost, then goes on.
void Pair::resume() {
  if (replayed_ != SIZE_MAX) {
    Code code = Code::kOk;
    replayed_ += retention_.replay(replayed_, [&](WireHeader header, ConstByteSpan payload) {
      header.acknowledged = received_;
      header.credit = credit_returned_;
      iovec storage{const_cast<std::byte*>(payload.data()), payload.size()};
      code = rail_->endpoint().send(encode_header(header),
                                    SegmentView{Segments(&storage, 1), 0, payload.size()});
      return code == Code::kOk;
    });
    if (code != Code::kOk && code != Code::kWouldBlock && code != Code::kPeerLost) {
      give_up(
          Status(Code::kPeerLost,
                 fmt::format("rank {}: the new connection cannot carry what the last one lost: {}",
                             rank_, code_text(code))));
      return;
    }
    if (replayed_ < retention_.count()) return;  // on_writable comes back
    replayed_ = SIZE_MAX;
  }
  state_ = State::kReady;
  receives_.for_each([](ReceiveTransfer& transfer) { transfer.rail_ready(); });
  pump();
  access_.credit_came();
  if (state_ == State::kReady) mesh_.update_due(*this);
}

void Pair::writable() {
  if (state_ == State::kConnecting && rail_ != nullptr) {
    if (!rail_->open_sent) send_open();
    if (rail_ != nullptr && rail_->open && rail_->open_sent) resume();
  } else {
    pump();
  }
  send_update();
}

// Makes everything quiet on the connection (which may be quiet already), then lets it go.
void Pair::rail_failed(Rail& rail, const Status& why) {
  if (&rail != rail_.get()) return;
  const bool lossless = rail.capabilities().lossless;
  drop_rail();
  ++rail.counters().failures;
  if (state_ == State::kLost) return;
  state_ = State::kConnecting;
  if (left_) {
    lose(Status(Code::kPeerLost, fmt::format("rank {} left", rank_)));
    return;
  }
  const uint64_t now = mesh_.engine().refresh_now();
  if (lossless) {
    // Such a connection ends only with the peer. Whether it died or left, the control plane says at
    // once; if it says nothing the peer lives but will not talk.
    verdict_ = why;
    retry_at_ns_ = now + kVerdictNs;
    mesh_.note_pair_timer(retry_at_ns_);
    return;
  }
  mesh_.log().info("rank {}: connection failed: {}", rank_, why.text());
  // The lower rank connects, counts and decides; the other waits for that.
  if (mesh_.rank() > rank_) return;
  if (++attempts_ > kMaxAttempts) {
    give_up(why.annotate(fmt::format("rank {}: connections keep breaking", rank_)));
  } else {
    retry_at_ns_ = now + backoff_ns(attempts_);
    mesh_.note_pair_timer(retry_at_ns_);
  }
}

void Pair::drop_rail() {
  sends_.for_each([](SendTransfer& transfer) { transfer.rail_failed(); });
  receives_.for_each([](ReceiveTransfer& transfer) { transfer.rail_failed(); });
  access_.rail_failed();
  waiting_bulks_.clear();
  refused_bulks_.clear();
  replayed_ = SIZE_MAX;
  rail_->counters().connected = 0;
  mesh_.retire(std::move(rail_));
}

void Pair::tick(uint64_t now_ns) {
  if (now_ns < retry_at_ns_) return;
  retry_at_ns_ = kForever;
  if (state_ != State::kConnecting || rail_ != nullptr) return;
  if (!verdict_.ok()) {
    lose(verdict_.annotate(fmt::format("rank {}", rank_)));
    return;
  }
  mesh_.connect(*this);
}

// A loss that this side alone has decided.
void Pair::give_up(const Status& why) {
  mesh_.control().give_up(rank_, why.text());
  lose(why);
}

void Pair::refused_by_peer(const Status& why) {
  // Once they were connected the lower rank tries again, or says that it has given up.
  if (rails_made_ == 0) connect_failed(why);
}

void Pair::connect_failed(const Status& why) {
  if (state_ == State::kLost) return;
  if (attempts_ > 0 && attempts_ <= kMaxAttempts) {
    // It was connected before: the network may come back within the detection time.
    ++attempts_;
    retry_at_ns_ = mesh_.engine().refresh_now() + backoff_ns(attempts_);
    mesh_.note_pair_timer(retry_at_ns_);
    return;
  }
  if (rails_made_ > 0) {
    give_up(why);
  } else {
    lose(why);
  }
}

void Pair::peer_left() {
  left_ = true;
  if (state_ == State::kLost || rail_ != nullptr) return;  // the end of the connection follows
  lose(Status(Code::kPeerLost, fmt::format("rank {} left", rank_)));
}

void Pair::lose(const Status& why) {
  if (state_ == State::kLost) return;
  state_ = State::kLost;
  lost_ = why;
  retry_at_ns_ = kForever;
  fail_everything(why);
  if (rail_ != nullptr) drop_rail();
  mesh_.pair_lost(*this, why);
}

// Ends every operation of this pair that is queued or under way. Posted receives are the mesh's.
void Pair::fail_everything(const Status& why) {
  control_.clear();
  control_sent_ = 0;
  sends_.for_each(
      [&](SendTransfer& transfer) { transfer.end(why.code(), std::string(why.text())); });
  receives_.for_each(
      [&](ReceiveTransfer& transfer) { transfer.end(why.code(), std::string(why.text())); });
  access_.fail_everything(why);
  while (outbox_first_ != nullptr) {
    Operation& send = *outbox_first_;
    dequeue(send);
    mesh_.complete(send, why.code(), fmt::format("{}: {}", describe(send), why.text()));
  }
  if (arriving_ == nullptr) return;
  Incoming* message = arriving_;
  arriving_ = nullptr;
  if (message->queued) message->table->remove_unexpected(message);
  if (message->operation != nullptr) {
    mesh_.complete(*message->operation, why.code(),
                   fmt::format("receive from rank {}: {}", rank_, why.text()));
  }
  mesh_.free_incoming(message);
}

}  // namespace hetcomm
