#include "transports/tcp/endpoint.h"

#include <algorithm>
#include <new>

#include <fmt/format.h>

#include "src/base/text.h"
#include "transports/tcp/transport.h"

namespace hetcomm::tcp {
namespace {

// When one of several streams has ended, the endpoint waits this long for data that the peer sent
// before the end.
constexpr uint64_t kLingerNs = 1'000'000'000;

using NameOf = int (*)(int, sockaddr*, socklen_t*);

Address address_of(int fd, NameOf name) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (name(fd, address, &length) != 0) return {};
  return Address::from_sockaddr(address, length);
}

// Whether the connection leaves the host. A connection from an address to itself does not.
bool leaves_host(int fd) {
  const Address local = address_of(fd, getsockname).with_port(0);
  const Address peer = address_of(fd, getpeername).with_port(0);
  return !peer.is_loopback() && local.to_string() != peer.to_string();
}

}  // namespace

TcpEndpoint::TcpEndpoint(TcpTransport& transport, const ConnectionName& name, StreamSocket socket)
    : transport_(transport),
      name_(name),
      crosses_link_(leaves_host(socket.get())),
      peer_address_(address_of(socket.get(), getpeername)),
      messages_(transport, *this, std::move(socket), 0) {
  transport_.add_endpoint(*this);
}

TcpEndpoint::~TcpEndpoint() {
  transport_.remove_endpoint(*this);
  // The message stream is closed first, since the peer watches it most closely.
  messages_.close();
}

template <typename Use>
void TcpEndpoint::for_each_stream(Use&& use) {
  use(messages_);
  for (auto& stream : bulk_) {
    if (stream) use(*stream);
  }
}

void TcpEndpoint::set_handler(EndpointHandler* handler) {
  handler_ = handler;
  if (state_ != State::kOpen) return;
  Status status;
  for_each_stream([&](TcpStream& stream) {
    if (handler == nullptr) {
      stream.unwatch();
    } else if (status.ok()) {
      status = stream.watch();
    }
  });
  if (!status.ok()) break_off(status.text());
  activate();
}

const Capabilities& TcpEndpoint::capabilities() const { return transport_.capabilities(); }

Code TcpEndpoint::send(const MessageHeader& header, const ExtentView& payload) {
  if (state_ != State::kOpen) return Code::kPeerLost;
  if (payload.length > kMaxMessageBytes) return Code::kInvalidArgument;
  const Code code = messages_.send_message(header, payload);
  if (code == Code::kOk) {
    transport_.hot().touch(messages_);
    note_sent();
    messages_.note_message();
  } else if (code == Code::kWouldBlock) {
    want_writable_ = true;
    activate();
  }
  return code;
}

Code TcpEndpoint::put(Bulk& bulk) {
  if (state_ != State::kOpen) return Code::kPeerLost;
  queue_.push(bulk);
  activate();
  if (!streams_requested_ && bulk_count_ == 0) {
    request_streams(transport_.settings().streams);
  } else if (crosses_link_ && transport_.settings().auto_streams &&
             stream_count_.due(bulk.local.length)) {
    review_stream_count();
  }
  return Code::kOk;
}

Result<RemoteKey> TcpEndpoint::expose(Extents extents, Access access, uint64_t cookie) {
  if (access != Access::kPutTarget) return Code::kUnsupported;
  if (state_ != State::kOpen) return Code::kPeerLost;
  return exposures_.add(extents, cookie, transport_.nonces());
}

void TcpEndpoint::revoke(const RemoteKey& key) {
  const uint32_t slot = exposures_.remove(key);
  if (slot == ExposureTable::kNone) return;
  for_each_stream([&](TcpStream& stream) { stream.reader().revoke(slot); });
}

bool TcpEndpoint::cancel(Bulk& bulk) {
  queue_.remove(bulk);
  try {
    for_each_stream([&](TcpStream& stream) { stream.detach(bulk); });
  } catch (const std::bad_alloc&) {
    // The rest of a partly sent frame cannot be stored, so the peer receives no more.
    break_off("out of memory");
  }
  return false;  // puts access only exposed memory, which the peer revokes
}

bool TcpEndpoint::flushed() const {
  if (state_ != State::kOpen) return true;
  return messages_.output_idle() && !note_pending_ && queue_.empty() &&
         std::all_of(bulk_.begin(), bulk_.end(),
                     [](const auto& stream) { return !stream || stream->output_idle(); });
}

uint64_t TcpEndpoint::unsent_bytes() const {
  if (state_ != State::kOpen) return 0;
  uint64_t bytes = messages_.unacknowledged_bytes();
  for (const auto& stream : bulk_) {
    if (stream) bytes += stream->unacknowledged_bytes();
  }
  return bytes;
}

// Puts may still wait for bulk streams that are being opened. No part of them was sent.
Passage TcpEndpoint::passage() const {
  Passage bulk = Passage::kNothing;
  for (const auto& stream : bulk_) {
    const Passage one = stream ? stream->passage() : Passage::kNothing;
    if (one == Passage::kPassed) return one;
    if (one == Passage::kBlocked) bulk = one;
  }
  return bulk == Passage::kBlocked ? bulk : messages_.passage();
}

std::string TcpEndpoint::trouble() const {
  if (state_ != State::kOpen) return {};
  std::string found = messages_.trouble();
  for (const auto& stream : bulk_) {
    if (found.empty() && stream) found = stream->trouble();
  }
  return found.empty() ? found : fmt::format("tcp {}: {}", peer_address_.to_string(), found);
}

std::string TcpEndpoint::describe() const {
  return fmt::format("tcp{} to {}, {}", transport_.has_tls() ? " (TLS)" : "",
                     peer_address_.to_string(),
                     over_messages() ? std::string("puts over the message stream")
                                     : fmt::format("{} bulk stream(s)", bulk_count_));
}

void TcpEndpoint::on_message_frame(const MessageHeader& header, ConstByteSpan payload) {
  handler_->on_message(header, payload);
}

void TcpEndpoint::on_put_frame(uint64_t cookie, uint64_t length) {
  handler_->on_put(cookie, length);
}

const char* TcpEndpoint::on_streams_frame(const StreamsNote& note) {
  if (note.kind == StreamsNote::Kind::kWanted) {
    if (!name_.initiator) return "bulk streams wanted by the side that opens them";
    if (state_ == State::kOpen) request_streams(note.count);
    return nullptr;
  }
  if (name_.initiator) return "bulk streams refused by the side that does not open them";
  bulk_unavailable_ = true;
  activate();
  return nullptr;
}

// --- bulk streams ----------------------------------------------------------------------------

bool TcpEndpoint::has_stream(size_t index) const {
  return index == 0 || index > kMaxBulkStreams || bulk_[index - 1] != nullptr;
}

// Connects the missing streams among the first |count|, or asks the connecting side to do so.
void TcpEndpoint::request_streams(size_t count) {
  streams_requested_ = true;
  count = std::min(count, kMaxBulkStreams);
  if (!name_.initiator) {
    note_ = {.kind = StreamsNote::Kind::kWanted, .count = static_cast<uint8_t>(count)};
    note_pending_ = true;
    activate();
    return;
  }
  if (bulk_unavailable_) {
    note_ = {.kind = StreamsNote::Kind::kUnavailable};
    note_pending_ = true;
    activate();
    return;
  }
  count = std::max(count, transport_.settings().streams);
  try {
    for (size_t index = 1; index <= count; ++index) {
      if (!has_stream(index)) transport_.open_stream(*this, index);
    }
  } catch (const std::bad_alloc&) {
    stream_unavailable(Code::kOutOfMemory);  // queued puts are sent without it
  }
}

void TcpEndpoint::attach(size_t index, StreamSocket socket) {
  if (state_ != State::kOpen || has_stream(index)) return;
  transport_.set_socket_buffers(socket.get());
  auto stream = std::make_unique<TcpStream>(transport_, *this, std::move(socket), index);
  if (handler_ != nullptr) {
    if (const Status status = stream->watch(); !status.ok()) {
      stream_unavailable(status);
      return;
    }
  }
  bulk_[index - 1] = std::move(stream);
  ++bulk_count_;
  activate();
}

void TcpEndpoint::stream_unavailable(const Status& why) {
  transport_.log().warn("tcp to {}: a bulk stream cannot be opened: {}", peer_address_.to_string(),
                        why.text());
  enough_streams_ = true;
  if (bulk_count_ > 0 || transport_.is_opening_stream(*this)) return;
  bulk_unavailable_ = true;
  if (name_.initiator) {
    note_ = {.kind = StreamsNote::Kind::kUnavailable};
    note_pending_ = true;
  }
  activate();
}

void TcpEndpoint::review_stream_count() {
  if (enough_streams_ || bulk_count_ >= kMaxAutoStreams || !bulk_[0]) return;
  StreamAccount account;
  if (read_account(bulk_[0]->fd(), account) && stream_count_.review(account)) {
    request_streams(bulk_count_ + 1u);
  }
}

// --- progress --------------------------------------------------------------------------------

void TcpEndpoint::activate() { transport_.activate(*this); }

int TcpEndpoint::progress() {
  if (handler_ == nullptr) return 0;
  if (state_ == State::kClosing) return progress_closing();
  if (state_ == State::kFailed) return 0;
  int done = receive_buffered();
  if (state_ == State::kOpen) done += write_streams();
  return done + report();
}

// Receives bytes that TLS has already read from the kernel, which no event announces.
int TcpEndpoint::receive_buffered() {
  if (!transport_.has_tls()) return 0;
  int done = 0;
  for_each_stream([&](TcpStream& stream) {
    if (stream.buffered()) done += stream.receive();
  });
  return done;
}

bool TcpEndpoint::has_buffered() const {
  return transport_.has_tls() &&
         (messages_.buffered() || std::any_of(bulk_.begin(), bulk_.end(), [](const auto& stream) {
            return stream && stream->buffered();
          }));
}

int TcpEndpoint::write_streams() {
  int done = 0;
  if (!messages_.output_idle()) done += messages_.write(queue_, false, 0);
  if (note_pending_ && messages_.output_idle()) {
    HeadBytes head;
    encode_streams_head(head, note_);
    note_pending_ = false;
    messages_.send_head(head);
    ++done;
  }
  if (bulk_count_ > 0) {
    done += write_bulk();
  } else if (bulk_unavailable_ && !want_writable_ && !queue_.empty()) {
    done += messages_.write(queue_, true, std::min(kMaxFragmentBytes, transport_.settings().chunk));
  }
  if (done > 0) note_sent();
  return done;
}

int TcpEndpoint::write_bulk() {
  int done = 0;
  next_bulk_ = static_cast<uint8_t>((next_bulk_ + 1) % kMaxBulkStreams);
  for (size_t i = 0; i < kMaxBulkStreams; ++i) {
    const auto& stream = bulk_[(next_bulk_ + i) % kMaxBulkStreams];
    if (stream) done += stream->write(queue_, true, transport_.settings().chunk);
  }
  return done;
}

// Makes upcalls for data that was sent.
int TcpEndpoint::report() {
  int done = 0;
  while (Bulk* bulk = queue_.pop_completed()) {
    ++done;
    handler_->on_bulk_complete(*bulk, Code::kOk);
  }
  if (want_writable_ && state_ == State::kOpen && messages_.output_idle()) {
    want_writable_ = false;
    ++done;
    handler_->on_writable();
  }
  return done;
}

bool TcpEndpoint::has_work() const {
  if (state_ == State::kFailed || handler_ == nullptr) return false;
  if (state_ == State::kClosing || queue_.has_completed() || has_buffered()) return true;
  const bool messages_work = !messages_.output_idle() || note_pending_ || want_writable_ ||
                             (over_messages() && !queue_.empty());
  return (messages_work && !messages_.parked()) ||
         std::any_of(bulk_.begin(), bulk_.end(), [&](const auto& stream) {
           return stream && !stream->parked() && (!stream->output_idle() || !queue_.empty());
         });
}

bool TcpEndpoint::prepare_sleep() {
  if (handler_ == nullptr) return true;
  if (state_ == State::kClosing) {
    bool ended = true;
    for_each_stream([&](TcpStream& stream) { ended = ended && stream.read_ended(); });
    return !ended && !gone_ && !has_buffered();
  }
  for_each_stream([](TcpStream& stream) {
    if (stream.full()) stream.park();
  });
  return !has_work();
}

// --- the path --------------------------------------------------------------------------------

void TcpEndpoint::note_sent() {
  sent_ = true;
  transport_.note_sent();
}

bool TcpEndpoint::watch_path() {
  if (state_ != State::kOpen || handler_ == nullptr || !(sent_ || unsettled_)) return false;
  sent_ = false;
  unsettled_ = false;
  const uint64_t detection_ns = transport_.detection_ns();
  for_each_stream([&](TcpStream& stream) {
    if (state_ != State::kOpen) return;
    if (stream.look(transport_.now(), detection_ns) == PathVerdict::kGone) {
      path_gone(stream);
      return;
    }
    if (stream.in_doubt()) handler_->on_doubt(stream.id());
    unsettled_ = unsettled_ || stream.awaits_acknowledgement();
  });
  return unsettled_ || sent_;
}

void TcpEndpoint::resolve(const StreamId& which, const PathReceipt& receipt) {
  if (state_ != State::kOpen || which.connection != name_.id) return;
  for_each_stream([&](TcpStream& stream) {
    if (stream.id() == which) stream.resolve(receipt);
  });
}

// Receives data that arrived before the path broke, and waits for nothing more.
void TcpEndpoint::path_gone(const TcpStream& stream) {
  break_off(text_or_none([&] {
    return fmt::format("the path is gone: the peer's kernel has answered nothing for {:.1f} s",
                       static_cast<double>(stream.silent_ns()) / 1e9);
  }));
  gone_ = true;
}

// --- end -------------------------------------------------------------------------------------

void TcpEndpoint::stream_ended(std::string_view why, bool cut) {
  if (!why.empty()) {
    break_off(why);
  } else {
    break_off(cut ? "connection closed by peer in the middle of a frame"
                  : "connection closed by peer");
  }
}

// Starts to close the connection. Only the first reason counts. Nothing more is sent.
void TcpEndpoint::break_off(std::string_view reason) {
  if (state_ != State::kOpen) return;
  const uint64_t lost_bytes = passage() == Passage::kBlocked ? unsent_bytes() : 0;
  state_ = State::kClosing;
  why_ = status_or_code(Code::kPeerLost, [&] {
    return fmt::format(
        "tcp {}: {}{}", peer_address_.to_string(), reason,
        lost_bytes > 0 ? fmt::format("; {} bytes were not acknowledged", lost_bytes) : "");
  });
  deadline_ns_ = deadline_after(transport_.now(), kLingerNs);
  queue_.drop_unsent();
  for_each_stream([](TcpStream& stream) { stream.drop_output(); });
  activate();
}

void TcpEndpoint::fail_protocol(const char* error) {
  if (state_ == State::kFailed) return;
  why_ = status_or_code(Code::kPeerLost, [&] {
    return fmt::format("tcp {}: protocol error: {}", peer_address_.to_string(), error);
  });
  fail();
}

int TcpEndpoint::progress_closing() {
  int done = report();
  int received = 0;
  bool ended = true;
  for_each_stream([&](TcpStream& stream) {
    received += stream.receive();
    ended = ended && stream.read_ended();
  });
  done += received;
  ended = ended || (gone_ && received == 0);
  if (state_ == State::kClosing && (ended || transport_.now() >= deadline_ns_)) {
    fail();
    ++done;
  }
  return done;
}

void TcpEndpoint::fail() {
  state_ = State::kFailed;
  queue_.drop_unsent();
  // Bytes that a path delivers after it was abandoned would be useless.
  for_each_stream([&](TcpStream& stream) { gone_ ? stream.abort() : stream.close(); });
  transport_.cancel_streams(*this);
  report();
  handler_->on_failed(why_);
}

}  // namespace hetcomm::tcp
