#include "transports/rdma/endpoint.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/core.h>

#include "src/base/text.h"
#include "src/system/clock.h"
#include "transports/rdma/endpoint_table.h"

namespace hetcomm::rdma {
namespace {

// Time for receiving data that arrived before the TCP connection ended.
constexpr uint64_t kLingerNs = 2'000'000;
// Time for receiving data after rdma_cm has reported a disconnect. It is longer, since the peer's
// last data may arrive after that report.
constexpr uint64_t kCmLingerNs = 20'000'000;
// Time for which a connection is suspect after the source of a get was revoked.
constexpr uint64_t kSuspectNs = 2'000'000'000;
constexpr const char* kRefuses = "the device refuses work requests";

}  // namespace

RdmaEndpoint::RdmaEndpoint(Port& port, EndpointTable& table, Connected connected)
    : port_(port),
      table_(table),
      number_(connected.pair->number()),
      peer_number_(connected.peer.queue_pair),
      path_(fmt::format("{} to {}", port.nic().name(), gid_text(connected.peer.gid))),
      socket_(std::move(connected.socket)),
      cm_(std::move(connected.cm)),
      pair_(std::move(connected.pair)),
      credits_(connected.peer.credits, port.settings().credits),
      messages_(*pair_, credits_, connected.peer.slot_bytes, port.settings().slot_bytes),
      bulks_(port, *pair_, credits_, connected.peer.slot_bytes),
      exposures_(port.memory_regions()) {
  if (cm_) cm_->set_handler(*this);
  // Reserves memory first, so a lack of memory is detected before the endpoint is registered.
  port_.completions().make_room_for(number_);
  table_.add(*this);
  port_.completions().bring_back(number_);
}

RdmaEndpoint::~RdmaEndpoint() {
  handler_ = nullptr;
  break_off("closed");
  table_.remove(*this);
}

void RdmaEndpoint::set_handler(EndpointHandler* handler) {
  handler_ = handler;
  if (handler != nullptr && !watched_ && socket_.valid()) {
    const Status status = port_.poller().add(socket_.get(), EPOLLIN, *this);
    watched_ = status.ok();
    if (!status.ok()) break_off(status.text());
  }
  activate();
}

void RdmaEndpoint::activate() { table_.activate(*this); }

Code RdmaEndpoint::send(const MessageHeader& header, const ExtentView& payload) {
  if (state_ != State::kOpen) return Code::kPeerLost;
  if (payload.length > capabilities().max_payload_bytes || !messages_.fits(payload.length)) {
    return Code::kInvalidArgument;
  }
  if (!messages_.can_send(payload.length)) {
    want_writable_ = true;
    activate();
    return Code::kWouldBlock;
  }
  if (!messages_.send(header, payload)) break_off(kRefuses);
  if (opening_end_ == 0 && state_ == State::kOpen) [[unlikely]]
    opening_end_ = pair_->posted();
  activate();
  return Code::kOk;
}

Code RdmaEndpoint::put(Bulk& bulk) { return start(bulk, false); }
Code RdmaEndpoint::get(Bulk& bulk) { return start(bulk, true); }

Code RdmaEndpoint::start(Bulk& bulk, bool get) {
  if (state_ != State::kOpen) return Code::kPeerLost;
  const Code code = bulks_.start(bulk, get);
  if (code != Code::kOk) return code;
  flush_posts();
  activate();
  return Code::kOk;
}

Result<RemoteKey> RdmaEndpoint::expose(Extents extents, Access access, uint64_t cookie) {
  if (state_ != State::kOpen) return Code::kPeerLost;
  if (extents.size() > 1) {
    return Status(Code::kUnsupported, "rdma: memory in several pieces cannot be exposed at once");
  }
  const iovec piece = extents.empty() ? iovec{} : extents[0];
  return exposures_.add(piece, access, cookie);
}

void RdmaEndpoint::revoke(const RemoteKey& key) {
  Exposure* exposure = exposures_.find(key);
  if (exposure == nullptr) return;
  if (exposure->access == Access::kGetSource) {
    // Once its memory region is destroyed, the peer cannot read the memory, and an attempted read
    // breaks the connection. Soft-RoCE then puts this side's queue pair into the error state
    // without informing either side.
    if (exposures_.revoke(*exposure)) {
      suspect_until_ns_ = deadline_after(now_ns(), kSuspectNs);
      table_.note_suspect();
      return;
    }
  } else if (exposure->copied_to != nullptr || exposure->arrived >= exposure->length) {
    exposures_.remove(*exposure);
    return;
  }
  // A write may be in flight, or the device does not release the source of a get. Destroying the
  // queue pair ends the access on any device, even on Soft-RoCE, which holds a memory region from a
  // write's first packet to its last.
  break_off("memory that the peer could still reach was revoked");
}

void RdmaEndpoint::release(const RemoteKey& key) {
  if (Exposure* exposure = exposures_.find(key); exposure != nullptr) exposures_.remove(*exposure);
}

bool RdmaEndpoint::cancel(Bulk& bulk) {
  // A broken connection has released all work in flight, and on_failed follows.
  if (state_ == State::kFailed) return true;
  if (bulks_.cancel(bulk)) return false;
  break_off("a transfer under way was cancelled");
  return true;
}

bool RdmaEndpoint::flushed() const {
  if (state_ != State::kOpen) return true;
  return pair_->idle() && bulks_.idle();
}

Passage RdmaEndpoint::passage() const {
  if (pair_ == nullptr) return passage_;
  // Unless the device reports an error, nothing shows that the network has lost data.
  return some_passed() ? Passage::kPassed : Passage::kNothing;
}

bool RdmaEndpoint::some_passed() const {
  if (bulks_.some_passed()) return true;
  return bulks_.idle() && pair_->posted() > opening_end_ && pair_->has_completed(opening_end_ + 1);
}

std::string RdmaEndpoint::describe() const {
  return fmt::format("rdma {}, queue pair {} to {}, MTU {}{}", path_, number_, peer_number_,
                     mtu_bytes(port_.nic().mtu), cm_ ? ", by rdma_cm" : "");
}

void RdmaEndpoint::flush_posts() {
  if (state_ != State::kFailed && !pair_->flush()) break_off(kRefuses);
}

void RdmaEndpoint::on_sent(uint64_t id) {
  bulks_.retire(id);
  activate();
}

// --- receiving -------------------------------------------------------------------------------

void RdmaEndpoint::on_received(const ibv_wc& completion, const std::byte* slot) {
  credits_.note_used();
  activate();
  if (state_ == State::kFailed || handler_ == nullptr) return;
  if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
    on_fragment(completion);
  } else if (completion.opcode == IBV_WC_RECV) {
    on_message(completion, slot);
  } else {
    break_off(text_or_none([&] {
      return fmt::format("protocol error: completion of kind {}",
                         static_cast<unsigned>(completion.opcode));
    }));
  }
}

void RdmaEndpoint::on_message(const ibv_wc& completion, const std::byte* slot) {
  const char* error = nullptr;
  const std::optional<Head> head = messages_.receive(slot, completion.byte_len, &error);
  if (!head) {
    break_off(error);
    return;
  }
  const ConstByteSpan rest{slot + head->size, completion.byte_len - head->size};
  if (head->type == HeadType::kFragment) {
    on_copied_fragment(decode_fragment_head(slot), rest);
  } else if (head->type == HeadType::kMessage) {
    const MessageHeader header = messages_.last_received();
    handler_->on_message(header, rest);
  }
}

void RdmaEndpoint::on_fragment(const ibv_wc& completion) {
  const bool has_immediate = (completion.wc_flags & IBV_WC_WITH_IMM) != 0;
  Exposure* exposure = has_immediate ? exposures_.find(ntohl(completion.imm_data)) : nullptr;
  if (exposure == nullptr || exposure->access != Access::kPutTarget ||
      exposure->copied_to != nullptr || completion.byte_len > exposure->length) {
    break_off("protocol error: a put to memory that is not exposed");
    return;
  }
  exposure->arrived += completion.byte_len;
  handler_->on_put(exposure->cookie, completion.byte_len);
}

void RdmaEndpoint::on_copied_fragment(const FragmentHead& fragment, ConstByteSpan bytes) {
  Exposure* exposure = exposures_.find(fragment.immediate);
  if (exposure == nullptr) return;  // revoked while the message was in flight
  if (exposure->copied_to == nullptr || fragment.offset > exposure->length ||
      bytes.size() > exposure->length - fragment.offset) {
    break_off("protocol error: a put to memory that is not exposed");
    return;
  }
  std::memcpy(exposure->copied_to + fragment.offset, bytes.data(), bytes.size());
  exposure->arrived += bytes.size();
  handler_->on_put(exposure->cookie, bytes.size());
}

// --- progress --------------------------------------------------------------------------------

int RdmaEndpoint::progress() {
  if (handler_ == nullptr) return 0;
  int done = 0;
  if (state_ == State::kClosing && now_ns() >= deadline_ns_) {
    break_off(why_.text());
  }
  if (state_ == State::kFailed) {
    if (std::exchange(reported_, true)) return 0;
    handler_->on_failed(why_);
    return 1;
  }
  // A consumed receive counts as owed only after it has been reposted.
  if (port_.receives().unposted() == 0) credits_.note_posted();
  done += report();
  if (state_ != State::kOpen) return done + 1;
  bulks_.pump();
  flush_posts();
  if (state_ == State::kOpen && messages_.is_payment_due() && messages_.can_pay()) {
    if (!messages_.pay_credits()) break_off(kRefuses);
    ++done;
  }
  return done;
}

void RdmaEndpoint::look_at_tail() {
  if (!has_silent_tail()) return;
  if (pair_->posted() == posted_before_) {
    pair_->nudge();
    flush_posts();
    if (state_ != State::kOpen) return;
  }
  posted_before_ = pair_->posted();
}

void RdmaEndpoint::probe() {
  if (state_ != State::kOpen || handler_ == nullptr) return;
  if (pair_->posted() == posted_at_probe_ && pair_->idle()) {
    pair_->nudge();
    flush_posts();
    if (state_ != State::kOpen) return;
  }
  posted_at_probe_ = pair_->posted();
}

// Makes the upcalls for completed bulks, and on_writable() if it is due. Returns the number of
// upcalls.
int RdmaEndpoint::report() {
  int done = 0;
  while (bulks_.has_completed()) {
    const auto [bulk, code] = bulks_.pop_completed();
    ++done;
    handler_->on_bulk_complete(*bulk, code);
    if (state_ == State::kFailed) return done;
  }
  if (want_writable_ && state_ == State::kOpen && can_send_any()) {
    want_writable_ = false;
    ++done;
    handler_->on_writable();
  }
  return done;
}

bool RdmaEndpoint::has_urgent_work() const {
  if (handler_ == nullptr) return false;
  if (state_ == State::kFailed) return !reported_;
  if (state_ == State::kClosing || bulks_.has_completed() || credits_.has_used()) return true;
  return messages_.is_payment_due() || bulks_.can_pump() || (want_writable_ && can_send_any());
}

bool RdmaEndpoint::prepare_sleep() {
  if (handler_ == nullptr) return true;
  if (state_ == State::kOpen && pair_->has_silent_tail()) {
    pair_->nudge();
    flush_posts();
  }
  // A closing endpoint can sleep, since deadline_ns() limits the sleep.
  if (state_ == State::kClosing) return !bulks_.has_completed();
  return !has_urgent_work() && !has_silent_tail();
}

// --- end -------------------------------------------------------------------------------------

void RdmaEndpoint::on_events(uint32_t /*events*/) {
  std::byte byte{};
  const ssize_t got = recv(socket_.get(), &byte, 1, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  const int error = errno;
  port_.poller().remove(socket_.get(), *this);
  watched_ = false;
  if (state_ == State::kFailed) return;
  if (got > 0) {
    break_off("protocol error: the peer sent data on the TCP connection");
    return;
  }
  close(status_or_code(Code::kPeerLost,
                       [&] {
                         return std::string(got == 0 ? "connection closed by peer"
                                                     : std::strerror(error));
                       }),
        kLingerNs);
}

void RdmaEndpoint::on_ended(const Status& why) {
  if (state_ != State::kFailed) close(why, kCmLingerNs);
}

// Starts to close the connection. Data that has already arrived is still delivered for |linger_ns|.
void RdmaEndpoint::close(Status why, uint64_t linger_ns) {
  // Uses the real clock, since the coarse clock may be stale.
  const uint64_t deadline = deadline_after(now_ns(), linger_ns);
  deadline_ns_ = state_ == State::kOpen ? deadline : std::min(deadline_ns_, deadline);
  if (state_ == State::kOpen) why_ = std::move(why);
  state_ = State::kClosing;
  activate();
}

void RdmaEndpoint::break_off(std::string_view reason, bool unanswered) noexcept {
  if (state_ == State::kFailed) return;
  passage_ = passage();
  const bool had_data = !bulks_.idle() || pair_->posted() > opening_end_;
  if (unanswered && had_data && passage_ == Passage::kNothing) passage_ = Passage::kBlocked;
  state_ = State::kFailed;
  why_ = status_or_code(Code::kPeerLost, [&] { return fmt::format("rdma {}: {}", path_, reason); });
  port_.quiesce(*pair_);
  pair_.reset();
  cm_.reset();
  bulks_.drop_all();
  exposures_.clear();
  if (watched_) port_.poller().remove(socket_.get(), *this);
  watched_ = false;
  socket_.reset();
  activate();
}

}  // namespace hetcomm::rdma
