#include "transports/tcp/endpoint.h"

#include <algorithm>
#include <new>

#include <fmt/core.h>

#include "src/base/text.h"
#include "transports/tcp/transport.h"

namespace hetcomm::tcp {
namespace {

// If one of several streams has ended, the endpoint waits at most this long for data that the peer
// sent before the end.
constexpr uint64_t kLingerNs = 1'000'000'000;

using NameOf = int (*)(int, sockaddr*, socklen_t*);

Address address_of(int fd, NameOf name) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (name(fd, address, &length) != 0) return {};
  return Address::from_sockaddr(address, length);
}

// Returns whether the connection leaves this host, unlike one over loopback or from an address to
// itself.
bool leaves_host(int fd) {
  const Address local = address_of(fd, getsockname).with_port(0);
  const Address peer = address_of(fd, getpeername).with_port(0);
  return !peer.is_loopback() && local.to_string() != peer.to_string();
}

}  // namespace

TcpEndpoint::TcpEndpoint(TcpTransport& transport, const ConnectionName& name, StreamSocket socket)
    : transport_(transport),
      name_(name),
      peer_address_(address_of(socket.get(), getpeername)),
      opening_(name.initiator, transport.settings().streams,
               transport.settings().auto_streams && leaves_host(socket.get())),
      streams_(transport, *this, std::move(socket), size_t{0}) {
  transport_.add_endpoint(*this);
}

TcpEndpoint::~TcpEndpoint() {
  transport_.remove_endpoint(*this);
  // Closes the message stream first, since the peer watches it most closely.
  streams_.messages().close();
}

void TcpEndpoint::set_handler(EndpointHandler* handler) {
  handler_ = handler;
  if (state_ != State::kOpen) return;
  if (handler == nullptr) {
    streams_.unwatch();
  } else if (const Status status = streams_.watch(); !status.ok()) {
    break_off(status.text());
  }
  activate();
}

const Capabilities& TcpEndpoint::capabilities() const { return transport_.capabilities(); }

Code TcpEndpoint::send(const MessageHeader& header, const ExtentView& payload) {
  if (state_ != State::kOpen) return Code::kPeerLost;
  if (payload.length > kMaxMessageBytes) return Code::kInvalidArgument;
  TcpStream& messages = streams_.messages();
  const Code code = messages.send_message(header, payload);
  if (code == Code::kOk) {
    transport_.hot().touch(messages);
    note_sent();
    messages.note_message();
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
  if (!opening_.requested() && streams_.bulk_count() == 0) {
    request_streams(transport_.settings().streams);
  } else if (opening_.review_due(bulk.local.length)) {
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
  streams_.for_each([&](TcpStream& stream) { stream.reader().revoke(slot); });
}

bool TcpEndpoint::cancel(Bulk& bulk) {
  queue_.remove(bulk);
  try {
    streams_.for_each([&](TcpStream& stream) { stream.detach(bulk); });
  } catch (const std::bad_alloc&) {
    // The rest of a partly sent frame cannot be stored, so the connection has to be closed.
    break_off("out of memory");
  }
  return false;  // a put reaches only exposed memory, which the peer can revoke
}

bool TcpEndpoint::flushed() const {
  if (state_ != State::kOpen) return true;
  return !opening_.has_note() && queue_.empty() && streams_.output_idle();
}

uint64_t TcpEndpoint::unsent_bytes() const {
  return state_ == State::kOpen ? streams_.unacknowledged_bytes() : 0;
}

// Puts that wait for bulk streams to be opened do not count, since no part of them has been sent.
Passage TcpEndpoint::passage() const { return streams_.passage(); }

std::string TcpEndpoint::trouble() const {
  if (state_ != State::kOpen) return {};
  const std::string found = streams_.trouble();
  return found.empty() ? found : fmt::format("tcp {}: {}", peer_address_.to_string(), found);
}

std::string TcpEndpoint::describe() const {
  return fmt::format("tcp{} to {}, {}", transport_.has_tls() ? " (TLS)" : "",
                     peer_address_.to_string(),
                     over_messages() ? std::string("puts over the message stream")
                                     : fmt::format("{} bulk stream(s)", streams_.bulk_count()));
}

void TcpEndpoint::on_message_frame(const MessageHeader& header, ConstByteSpan payload) {
  handler_->on_message(header, payload);
}

void TcpEndpoint::on_put_frame(uint64_t cookie, uint64_t length) {
  handler_->on_put(cookie, length);
}

const char* TcpEndpoint::on_streams_frame(const StreamsNote& note) {
  if (const char* error = opening_.take(note); error != nullptr) return error;
  if (note.kind != StreamsNote::Kind::kWanted) {
    activate();
  } else if (state_ == State::kOpen) {
    request_streams(note.count);
  }
  return nullptr;
}

// --- bulk streams ----------------------------------------------------------------------------

// Connects the missing streams among the first |count|, or requests them from the connecting side.
void TcpEndpoint::request_streams(size_t count) {
  const size_t connected_here = opening_.request(count);
  if (opening_.has_note()) activate();
  try {
    for (size_t index = 1; index <= connected_here; ++index) {
      if (streams_.lacks(index)) transport_.open_stream(*this, index);
    }
  } catch (const std::bad_alloc&) {
    stream_unavailable(Code::kOutOfMemory);  // puts are sent without this stream
  }
}

void TcpEndpoint::attach(size_t index, StreamSocket socket) {
  if (state_ != State::kOpen || !streams_.lacks(index)) return;
  transport_.set_socket_buffers(socket.get());
  auto stream = std::make_unique<TcpStream>(transport_, *this, std::move(socket), index);
  if (handler_ != nullptr) {
    if (const Status status = stream->watch(); !status.ok()) {
      stream_unavailable(status);
      return;
    }
  }
  streams_.add(index, std::move(stream));
  activate();
}

void TcpEndpoint::stream_unavailable(const Status& why) {
  transport_.log().warn("tcp to {}: a bulk stream cannot be opened: {}", peer_address_.to_string(),
                        why.text());
  const bool others = streams_.bulk_count() > 0 || transport_.is_opening_stream(*this);
  opening_.failed(others);
  if (!others) activate();
}

void TcpEndpoint::review_stream_count() {
  const TcpStream* const first = streams_.first_bulk();
  if (first == nullptr || !opening_.may_grow(streams_.bulk_count())) return;
  StreamAccount account;
  if (read_account(first->fd(), account) && opening_.grow(account)) {
    request_streams(streams_.bulk_count() + 1);
  }
}

// --- progress --------------------------------------------------------------------------------

void TcpEndpoint::activate() { transport_.activate(*this); }

int TcpEndpoint::progress() {
  if (handler_ == nullptr) return 0;
  if (state_ == State::kClosing) return progress_closing();
  if (state_ == State::kFailed) return 0;
  // TLS may have read bytes from the kernel that no event announces.
  int done = transport_.has_tls() ? streams_.receive_buffered() : 0;
  if (state_ == State::kOpen) done += write_streams();
  return done + report();
}

bool TcpEndpoint::has_buffered() const { return transport_.has_tls() && streams_.buffered(); }

int TcpEndpoint::write_streams() {
  int done = 0;
  TcpStream& messages = streams_.messages();
  if (!messages.output_idle()) done += messages.write(queue_, false, 0);
  if (opening_.has_note() && messages.output_idle()) {
    HeadBytes head;
    encode_streams_head(head, opening_.take_note());
    messages.send_head(head);
    ++done;
  }
  const uint32_t chunk = transport_.settings().chunk;
  if (streams_.bulk_count() > 0) {
    done += streams_.write_bulk(queue_, chunk);
  } else if (over_messages() && !want_writable_ && !queue_.empty()) {
    done += messages.write(queue_, true, std::min(kMaxFragmentBytes, chunk));
  }
  if (done > 0) note_sent();
  return done;
}

// Makes the upcalls for completed puts, and on_writable() if it is due. Returns the number of
// upcalls.
int TcpEndpoint::report() {
  int done = 0;
  while (Bulk* bulk = queue_.pop_completed()) {
    ++done;
    handler_->on_bulk_complete(*bulk, Code::kOk);
  }
  if (want_writable_ && state_ == State::kOpen && streams_.messages().output_idle()) {
    want_writable_ = false;
    ++done;
    handler_->on_writable();
  }
  return done;
}

bool TcpEndpoint::has_work() const {
  if (state_ == State::kFailed || handler_ == nullptr) return false;
  if (state_ == State::kClosing || queue_.has_completed() || has_buffered()) return true;
  const TcpStream& messages = streams_.messages();
  const bool messages_work = !messages.output_idle() || opening_.has_note() || want_writable_ ||
                             (over_messages() && !queue_.empty());
  return (messages_work && !messages.parked()) || streams_.can_write_bulk(!queue_.empty());
}

bool TcpEndpoint::prepare_sleep() {
  if (handler_ == nullptr) return true;
  if (state_ == State::kClosing) return !streams_.read_ended() && !gone_ && !has_buffered();
  streams_.park_full();
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
  streams_.for_each([&](TcpStream& stream) {
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
  streams_.for_each([&](TcpStream& stream) {
    if (stream.id() == which) stream.resolve(receipt);
  });
}

// Starts to close the connection. Data that arrived before the path broke is still received, but
// the endpoint does not wait for more.
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

// Starts to close the connection. Only the first reason is kept. Nothing more is sent.
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
  streams_.drop_output();
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
  const int received = streams_.receive();
  done += received;
  const bool ended = streams_.read_ended() || (gone_ && received == 0);
  if (state_ == State::kClosing && (ended || transport_.now() >= deadline_ns_)) {
    fail();
    ++done;
  }
  return done;
}

void TcpEndpoint::fail() {
  state_ = State::kFailed;
  queue_.drop_unsent();
  // If the path is gone, the sockets are reset, because bytes that still arrive would be useless.
  streams_.for_each([&](TcpStream& stream) { gone_ ? stream.abort() : stream.close(); });
  transport_.cancel_streams(*this);
  report();
  handler_->on_failed(why_);
}

}  // namespace hetcomm::tcp
