#include "transports/tcp/stream.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <fmt/core.h>

#include "transports/tcp/endpoint.h"
#include "transports/tcp/transport.h"

namespace hetcomm::tcp {
namespace {

// One progress() moves about this many bytes on one stream, so that other streams are served too.
constexpr size_t kReadBudget = 2u << 20;
constexpr uint64_t kWriteBudget = 2u << 20;
// No frame is added to a sendmsg that already has this many bytes. More bytes would make the call
// longer but not more efficient.
constexpr uint64_t kSendBytes = 1u << 20;
constexpr size_t kReadPieces = 64;
// A message up to this size is copied next to its head, which costs less than a second piece costs
// the kernel.
constexpr size_t kSmallBytes = 512;
// A full socket is tried this many times before it is left to the poller.
constexpr uint8_t kMaxFull = 64;

bool means_full(int error) { return error == EAGAIN || error == ENOBUFS || error == EINTR; }

}  // namespace

TcpStream::TcpStream(TcpTransport& transport, TcpEndpoint& endpoint, StreamSocket socket,
                     size_t index)
    : transport_(transport),
      endpoint_(endpoint),
      socket_(std::move(socket)),
      index_(static_cast<uint8_t>(index)),
      reader_(endpoint, endpoint.exposures(), transport.buffers(), index > 0),
      writer_(transport.buffers()) {
  if (socket_.tls() != nullptr) socket_.tls()->read_ahead();
  if (!socket_.valid()) return;
  bound_probes(socket_.get(), PathWatch::interval_ns(transport.detection_ns()));
  opening_bytes_ = accepted_bytes();
  transport.open_streams().add(endpoint.name().peer, id(), socket_.get());
}

TcpStream::~TcpStream() { close(); }

Status TcpStream::watch() {
  if (watched_ || !socket_.valid()) return {};
  HETCOMM_RETURN_IF_ERROR(transport_.poller().add(socket_.get(), EPOLLIN, *this));
  watched_ = true;
  return {};
}

void TcpStream::unwatch() {
  transport_.hot().remove(*this);
  if (!watched_) return;
  transport_.poller().remove(socket_.get(), *this);
  watched_ = false;
  parked_ = false;
}

void TcpStream::close() {
  keep_passage();
  unwatch();
  // The shutdown lets the peer see the end of the stream even if a forked child holds the
  // descriptor.
  if (socket_.valid()) {
    transport_.open_streams().remove(socket_.get());
    if (writer_.idle()) socket_.say_goodbye();
    ::shutdown(socket_.get(), SHUT_RDWR);
  }
  socket_.reset();
  read_ended_ = true;
  write_ended_ = true;
  writer_.drop();
}

void TcpStream::abort() {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  // This does not fail for an open socket. If it did, the kernel would still send the unsent data.
  if (socket_.valid() &&
      setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)) != 0) {
    transport_.log().debug("tcp: a connection cannot be reset");
  }
  close();
}

StreamId TcpStream::id() const { return {endpoint_.name().id, index_}; }

uint64_t TcpStream::accepted_bytes() const {
  // Bytes that are acknowledged between the two queries are counted by neither of them, so both are
  // repeated until the count of acknowledged bytes is stable.
  for (uint64_t acknowledged = acknowledged_bytes(fd());;) {
    const uint64_t waiting = unacknowledged_bytes();
    const uint64_t again = acknowledged_bytes(fd());
    if (again == acknowledged) return acknowledged + waiting;
    acknowledged = again;
  }
}

void TcpStream::end_opening() {
  opened_ = true;
  opening_bytes_ = accepted_bytes();
}

Passage TcpStream::passage() const {
  if (last_passage_) return *last_passage_;
  if (acknowledged_bytes(fd()) > opening_bytes_) return Passage::kPassed;
  const bool waits = !writer_.idle() || accepted_bytes() > opening_bytes_;
  return waits ? Passage::kBlocked : Passage::kNothing;
}

std::string TcpStream::trouble() const {
  PathAccount account;
  if (!read_path(fd(), account)) return {};
  if (account.in_flight && account.timeouts > 0) {
    return fmt::format(
        "{} bytes are not acknowledged, though sent again {} times; the peer's kernel "
        "has answered nothing for {:.1f} s",
        unacknowledged_bytes(), account.timeouts, static_cast<double>(account.heard_ns) / 1e9);
  }
  if (account.held_back && account.window_closed) {
    return fmt::format("the peer does not read: its kernel has no room for {} bytes",
                       unacknowledged_bytes());
  }
  return {};
}

PathVerdict TcpStream::look(uint64_t now_ns, uint64_t detection_ns) {
  PathAccount account;
  if (!watched_ || !read_path(socket_.get(), account)) {
    path_.reset();
    return PathVerdict::kAlive;
  }
  const PathVerdict verdict = path_.look(account, now_ns, detection_ns);
  if (!path_.waiting() && !probes_when_idle_) {
    probe_when_idle(socket_.get(), detection_ns);
    probes_when_idle_ = true;
  }
  return verdict;
}

void TcpStream::on_events(uint32_t events) {
  if ((events & EPOLLOUT) != 0 && parked_) {
    unpark();
    endpoint_.activate();
  }
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) != 0 && receive() > 0 && !read_ended_) {
    transport_.hot().touch(*this);
  }
}

int TcpStream::receive() {
  const ByteSpan ahead = transport_.scratch();
  std::array<iovec, kReadPieces> iov;
  size_t budget = kReadBudget;
  int done = 0;
  while (watched_) {
    const Pieces pieces = reader_.next_io(ahead, iov);
    const ssize_t received = socket_.receive(iov.data(), pieces.count);
    if (received <= 0) {
      if (received < 0 && (errno == EAGAIN || errno == EINTR)) return done;
      end_reading(received < 0 ? errno : 0);
      return done + 1;
    }
    ++done;
    const size_t size = static_cast<size_t>(received);
    if (const char* error = reader_.accept(ahead, size); error != nullptr) {
      endpoint_.fail_protocol(error);
      return done;
    }
    // A short read has emptied the socket, and another read would only confirm that.
    if (size >= budget || (size < pieces.bytes && !socket_.buffered())) break;
    budget -= size;
  }
  if (socket_.buffered()) endpoint_.activate();
  return done;
}

Code TcpStream::send_message(const MessageHeader& header, const ExtentView& payload) {
  if (!output_idle()) return Code::kWouldBlock;
  if (payload.length <= kSmallBytes) return send_small(header, payload);
  return send_pieces(header, payload);
}

Code TcpStream::send_small(const MessageHeader& header, const ExtentView& payload) {
  struct {
    HeadBytes head;
    std::array<std::byte, kSmallBytes> data;
  } frame;
  const size_t length = static_cast<size_t>(payload.length);
  encode_message_head(frame.head, header, static_cast<uint32_t>(length));
  gather(payload.extents, payload.offset, std::span(frame.data).first(length));
  return finish_send(socket_.send(&frame, kHeadBytes + length), frame.head, payload);
}

Code TcpStream::send_pieces(const MessageHeader& header, const ExtentView& payload) {
  HeadBytes head;
  encode_message_head(head, header, static_cast<uint32_t>(payload.length));
  std::array<iovec, FrameWriter::kMaxPieces> iov;
  iov[0] = {head.data(), kHeadBytes};
  ExtentCursor cursor;
  cursor.seek(payload.extents, payload.offset);
  const Pieces data = collect(payload.extents, cursor, payload.length, std::span(iov).subspan(1));
  // If a message has more pieces than fit into |iov|, its rest is stored and sent later.
  return finish_send(socket_.send(iov.data(), 1 + data.count), head, payload);
}

Code TcpStream::finish_send(ssize_t sent, const HeadBytes& head, const ExtentView& payload) {
  if (sent < 0) {
    if (!means_full(errno)) {
      end_writing(errno);
      return Code::kPeerLost;
    }
    sent = 0;
  }
  const size_t size = static_cast<size_t>(sent);
  if (size < kHeadBytes + payload.length) {
    writer_.keep_rest(head, payload, size);
    endpoint_.activate();
  } else if (!socket_.flushed()) {
    endpoint_.activate();
  }
  return Code::kOk;
}

void TcpStream::send_head(const HeadBytes& head) {
  if (finish_send(socket_.send(head.data(), kHeadBytes), head, {}) != Code::kOk) {
    return;  // end_writing() has recorded the end of the stream
  }
}

int TcpStream::write(BulkQueue& queue, bool new_frames, uint32_t max_frame) {
  if (parked_ || write_ended_) return 0;
  uint64_t budget = kWriteBudget;
  int done = 0;
  if (!socket_.flushed()) {
    done = flush();
    if (!socket_.flushed()) return done;
  }
  FrameWriter::NextIo io;
  while (!writer_.idle() || (new_frames && !queue.empty())) {
    writer_.next_io(new_frames ? &queue : nullptr, max_frame, kSendBytes, io);
    const ssize_t result = socket_.send(io.iov.data(), io.pieces.count);
    if (result < 0) {
      if (means_full(errno)) {
        note_full();
        return done;
      }
      end_writing(errno);
      return done + 1;
    }
    const size_t sent = static_cast<size_t>(result);
    writer_.commit(io, sent, queue);
    full_count_ = 0;
    ++done;
    if (sent < io.pieces.bytes || !socket_.flushed()) {
      full_ = true;
      return done;
    }
    if (sent >= budget) break;
    budget -= sent;
  }
  full_ = false;
  return done;
}

// Sends data that the TLS session has kept. Returns the number of actions.
int TcpStream::flush() {
  if (socket_.flush()) {
    full_ = false;
    full_count_ = 0;
    return 1;
  }
  note_full();
  return 0;
}

void TcpStream::note_full() {
  full_ = true;
  if (++full_count_ >= kMaxFull) park();
}

void TcpStream::park() {
  if (parked_ || !watched_) return;
  parked_ = transport_.poller().modify(socket_.get(), EPOLLIN | EPOLLOUT, *this).ok();
}

void TcpStream::unpark() {
  parked_ = false;
  full_ = false;
  full_count_ = 0;
  // This cannot fail, since the descriptor is registered. A failure would only cause more events.
  if (!transport_.poller().modify(socket_.get(), EPOLLIN, *this).ok()) return;
}

uint64_t TcpStream::unacknowledged_bytes() const {
  int bytes = 0;
  return ioctl(fd(), SIOCOUTQ, &bytes) == 0 && bytes > 0 ? static_cast<uint64_t>(bytes) : 0;
}

void TcpStream::drop_output() {
  keep_passage();
  writer_.drop();
  full_ = false;
  if (parked_) unpark();
}

void TcpStream::end_reading(int error) {
  const bool cut = !reader_.between_frames();
  read_ended_ = true;
  unwatch();
  endpoint_.stream_ended(error == 0 ? std::string() : socket_.describe(error), cut);
}

void TcpStream::end_writing(int error) {
  write_ended_ = true;
  endpoint_.stream_ended(socket_.describe(error), false);
}

}  // namespace hetcomm::tcp
