// StreamSocket is a connected stream socket, with or without TLS. Acceptors and Connectors create
// it.
//
// receive() and send() behave like recv() and send() in both cases: they return a count, 0 at the
// end, or -1 with errno (EAGAIN if they would block). They never raise SIGPIPE. Without TLS they
// make the system call after one branch. With TLS two conditions can occur, which are always false
// without TLS:
//
//   buffered()   bytes (or the end) were taken from the kernel and not yet received. No event
//                announces them, so receive() has to be called again before the caller sleeps.
//   !flushed()   bytes that send() has accepted have not all been sent. flush() has to be called
//                when the socket is writable.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "src/net/tls.h"
#include "src/system/unique_fd.h"

namespace hetcomm {

class StreamSocket {
 public:
  StreamSocket() = default;
  explicit StreamSocket(UniqueFd fd, std::unique_ptr<TlsSession> tls = nullptr)
      : fd_(std::move(fd)), tls_(std::move(tls)) {}

  int get() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }
  TlsSession* tls() const { return tls_.get(); }
  void reset() {
    tls_.reset();
    fd_.reset();
  }
  // Releases the descriptor of a socket without TLS.
  UniqueFd take_fd() && { return std::move(fd_); }

  ssize_t receive(const iovec* pieces, size_t count) {
    if (tls_ != nullptr) [[unlikely]]
      return tls_->receive(pieces, count);
    return count == 1 ? ::recv(fd_.get(), pieces->iov_base, pieces->iov_len, MSG_DONTWAIT)
                      : ::readv(fd_.get(), pieces, static_cast<int>(count));
  }
  ssize_t receive(void* data, size_t size) {
    const iovec piece{data, size};
    return receive(&piece, 1);
  }
  ssize_t send(const void* data, size_t size) {
    if (tls_ != nullptr) [[unlikely]] {
      const iovec piece{const_cast<void*>(data), size};
      return tls_->send(&piece, 1);
    }
    return ::send(fd_.get(), data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  ssize_t send(iovec* pieces, size_t count) {
    if (tls_ != nullptr) [[unlikely]]
      return tls_->send(pieces, count);
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = count;
    return ::sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  bool buffered() const { return tls_ != nullptr && tls_->buffered(); }
  bool flushed() const { return tls_ == nullptr || tls_->flushed(); }
  // Sends bytes that have not been sent yet. Returns false while the kernel cannot take all of
  // them. Returns true for a broken connection, because receive() reports that.
  bool flush() { return tls_ == nullptr || tls_->flush(); }
  // Tells the peer that the end of the stream that follows is intended. Best effort. Nothing can be
  // sent afterwards.
  void say_goodbye() {
    if (tls_ != nullptr) tls_->say_goodbye();
  }
  // Describes |error| from receive() or send(). The text from TLS is more specific than the errno.
  std::string describe(int error) const;

 private:
  UniqueFd fd_;
  std::unique_ptr<TlsSession> tls_;
};

}  // namespace hetcomm
