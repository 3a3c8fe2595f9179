#include "src/bootstrap/store_session.h"

#include <array>
#include <cerrno>
#include <utility>

#include "src/base/bytes.h"
#include "src/net/socket_peer.h"

namespace hetcomm {
namespace {

constexpr size_t kReadBytes = 64 * 1024;

}  // namespace

StoreSession::StoreSession(Owner& owner, Poller& poller, ClientId id, StreamSocket socket)
    : owner_(owner),
      poller_(poller),
      id_(id),
      socket_(std::move(socket)),
      name_(peer_name(socket_.get())),
      quiet_since_ns_(now_ns()) {}

Status StoreSession::watch() {
  // There may be no EPOLLIN for data that arrived with the end of a TLS handshake. The session
  // therefore waits for EPOLLOUT, which comes immediately, and then reads.
  writing_ = !socket_.flushed() || socket_.buffered();
  return poller_.add(socket_.get(), wanted_events(), *this);
}

void StoreSession::send(const Frame& frame) {
  waits_ = false;
  quiet_since_ns_ = now_ns();
  out_.push_back(frame);
  flush();
}

void StoreSession::on_events(uint32_t events) {
  if ((events & EPOLLOUT) != 0) flush();
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) read_some();
  while (!closed_ && socket_.buffered()) read_some();
}

void StoreSession::close(std::string_view why) {
  if (closed_) return;
  closed_ = true;
  owner_.on_closed(id_, why);
}

void StoreSession::read_some() {
  if (closed_) return;
  std::array<std::byte, kReadBytes> chunk;
  const ssize_t got = socket_.receive(chunk.data(), chunk.size());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    close("the client closed the connection");
    return;
  }
  in_.insert(in_.end(), chunk.begin(), chunk.begin() + got);
  size_t used = 0;
  while (!closed_ && in_.size() - used >= kFrameHeaderBytes) {
    const ConstByteSpan rest = ConstByteSpan(in_).subspan(used);
    const auto length = ByteReader(rest).read<uint32_t>();
    // A client must read the reply to one request before it sends the next. Clients that do not are
    // dropped.
    if (length > kMaxRequestBytes || !out_.empty()) {
      close("the client broke the protocol");
      return;
    }
    if (rest.size() - kFrameHeaderBytes < length) break;
    used += kFrameHeaderBytes + length;
    waits_ = true;
    if (!owner_.on_request(id_, name_, rest.subspan(kFrameHeaderBytes, length))) {
      close("the client broke the protocol");
    }
  }
  in_.erase(in_.begin(), in_.begin() + static_cast<ptrdiff_t>(used));
  if (in_.empty()) in_.shrink_to_fit();
}

void StoreSession::flush() {
  while (!out_.empty() && !closed_) {
    const std::vector<std::byte>& bytes = *out_.front();
    const ssize_t sent = socket_.send(bytes.data() + out_done_, bytes.size() - out_done_);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) break;
    if (sent < 0) {
      close("the connection broke");
      return;
    }
    out_done_ += static_cast<size_t>(sent);
    quiet_since_ns_ = now_ns();
    if (out_done_ < bytes.size()) continue;
    out_.pop_front();
    out_done_ = 0;
  }
  (void)socket_.flush();
  const bool writing = !flushed();
  if (writing == writing_ || closed_) return;
  writing_ = writing;
  if (!poller_.modify(socket_.get(), wanted_events(), *this).ok()) close("epoll has failed");
}

}  // namespace hetcomm
