#include "src/liveness/control_connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <fmt/core.h>

#include "src/net/socket_options.h"
#include "src/net/socket_peer.h"

namespace hetcomm::liveness {
namespace {

Address address_of_peer(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (getpeername(fd, address, &length) != 0) return {};
  return Address::from_sockaddr(address, length);
}

}  // namespace

ControlConnection::~ControlConnection() { shut_down(); }

Status ControlConnection::start(StreamSocket socket, int own_process) {
  socket_ = std::move(socket);
  set_no_delay(socket_.get());
  peer_address_ = address_of_peer(socket_.get());
  local_ = peer_address_.family() == AF_UNIX;
  awaits_process_ = local_ && socket_.tls() == nullptr;
  if (awaits_process_) HETCOMM_RETURN_IF_ERROR(hand_over(own_process));
  // There may be no event for data that arrived with the end of a TLS handshake, but the socket is
  // writable immediately.
  wants_write_ = !socket_.flushed() || socket_.buffered();
  return poller_.add(socket_.get(), wants_write_ ? EPOLLIN | EPOLLOUT : EPOLLIN, *this);
}

bool ControlConnection::is_of_this_process() const {
  if (!local_) return false;
  const Result<LocalPeer> peer = local_peer(socket_.get());
  return peer.ok() && peer.value().process == getpid();
}

// Sends the descriptor with the first byte. A new local socket always has room for that byte.
Status ControlConnection::hand_over(int own_process) {
  char byte = own_process >= 0 ? 'p' : '-';
  iovec piece{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (own_process >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &own_process, sizeof(int));
  }
  if (::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) != 1) {
    // The kernel refuses when too many descriptors are in flight on this host.
    if (own_process >= 0 && errno == ETOOMANYREFS) return hand_over(-1);
    return status_from_errno(errno, "control connection: handing over the process");
  }
  return {};
}

// Reads bytes, and the peer's descriptor with the first of them.
ssize_t ControlConnection::receive(void* data, size_t size) {
  if (!awaits_process_) return socket_.receive(data, size);
  char byte = 0;
  iovec piece{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got <= 0) return got;
  awaits_process_ = false;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS ||
        header->cmsg_len != CMSG_LEN(sizeof(int))) {
      continue;
    }
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof(int));
    handler_.on_process(*this, UniqueFd(fd));
  }
  return socket_.receive(data, size);
}

bool ControlConnection::send(const Frame& frame) {
  if (ended_ || closing_) return true;  // discards the frame, which nobody would read
  if (out_.size() > kMaxWaiting) {
    wants_room_ = true;
    return false;
  }
  encode(frame, out_);
  write_out();
  return true;
}

void ControlConnection::write_out() {
  while (!out_.empty() && broken_.empty()) {
    const ssize_t put = socket_.send(out_.data(), out_.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      if (errno != EAGAIN) broken_ = socket_.describe(errno);
      break;
    }
    out_.erase(out_.begin(), out_.begin() + put);
  }
  (void)socket_.flush();
  // A broken connection waits for EPOLLOUT, so that on_events() reports it.
  const bool want = !out_.empty() || !socket_.flushed() || !broken_.empty();
  if (want == wants_write_) return;
  wants_write_ = want;
  const Status status = poller_.modify(socket_.get(), want ? EPOLLIN | EPOLLOUT : EPOLLIN, *this);
  if (!status.ok()) broken_ = status.text();
}

void ControlConnection::on_events(uint32_t events) {
  if ((events & EPOLLOUT) != 0) {
    write_out();
    if (wants_room_ && out_.size() <= kMaxWaiting / 2) {
      wants_room_ = false;
      handler_.on_room(*this);
    }
  }
  if (!ended_ && ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 || socket_.buffered())) {
    // Remaining bytes raise another event, so other connections are served first.
    constexpr size_t kMaxPasses = 16;
    read_in(kMaxPasses);
  }
  if (!ended_ && !broken_.empty()) end(broken_);
  if (closing_ && !ended_) finish_closing();
}

void ControlConnection::read_out() {
  if (!ended_) read_in(SIZE_MAX);
}

void ControlConnection::read_in(size_t most) {
  std::array<std::byte, 4096> buffer;
  for (size_t pass = 0; !ended_ && (pass < most || socket_.buffered()); ++pass) {
    const ssize_t got = receive(buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
      end(got == 0 ? "it exited or crashed without closing its communicator; read its log"
                   : fmt::format("control connection: {}", socket_.describe(errno)));
      return;
    }
    if (closing_) continue;
    in_.insert(in_.end(), buffer.begin(), buffer.begin() + got);
    parse();
  }
}

void ControlConnection::parse() {
  size_t begin = 0;
  while (!ended_ && !closing_) {
    Frame frame;
    size_t used = 0;
    const Decoded decoded = decode(ConstByteSpan(in_).subspan(begin), size_, &frame, &used);
    if (decoded == Decoded::kMore) break;
    if (decoded == Decoded::kGarbage) {
      end("its control connection sent something that is no frame: use the same release of hetcomm "
          "on all ranks");
      return;
    }
    begin += used;
    handler_.on_frame(*this, frame);
  }
  in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(begin));
}

// Shuts down this side and waits until the peer has closed its side. If a socket is closed with
// unread data, the kernel resets the connection, and sent frames may be lost.
void ControlConnection::close() {
  if (ended_ || closing_) return;
  closing_ = true;
  finish_closing();
}

void ControlConnection::finish_closing() {
  if (!out_.empty() || !socket_.flushed()) return;
  if (!socket_.valid()) return;
  socket_.say_goodbye();
  ::shutdown(socket_.get(), SHUT_WR);
}

// Shuts the socket down, so that the peer sees the end even if a forked child holds the descriptor.
void ControlConnection::shut_down() {
  if (!socket_.valid()) return;
  poller_.remove(socket_.get(), *this);
  ::shutdown(socket_.get(), SHUT_RDWR);
  socket_.reset();
}

void ControlConnection::end(std::string why) {
  ended_ = true;
  shut_down();
  if (closing_) {
    handler_.on_closed(*this);
  } else {
    handler_.on_ended(*this, why);
  }
}

uint64_t ControlConnection::last_acknowledged_ns(uint64_t now) const {
  if (ended_ || !socket_.valid()) return 0;
  // A local socket is closed when its process exits, so the process is alive.
  if (local_) return now;
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (getsockopt(socket_.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return 0;
  const uint64_t age_ns = uint64_t{info.tcpi_last_ack_recv} * 1'000'000;
  return now - std::min(now, age_ns);
}

}  // namespace hetcomm::liveness
