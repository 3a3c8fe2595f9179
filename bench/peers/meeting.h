// Connects the two processes of a runner by a Unix socket. hetcomm_bench chooses its name in the
// abstract namespace. Rank 0 listens, and rank 1 retries until it connects or about 10 s have
// passed.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "bench/peers/runner.h"

namespace bench {

class Meeting {
 public:
  Meeting() = default;
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
  ~Meeting() {
    if (fd_ >= 0) close(fd_);
  }

  void open(const std::string& name, int rank) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
    const socklen_t length =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    const sockaddr* generic = reinterpret_cast<const sockaddr*>(&address);
    fd_ = rank == 0 ? accept_one(generic, length) : connect_to(generic, length);
  }

  void send(const void* data, size_t size) {
    const uint64_t length = size;
    write_all(&length, sizeof length);
    write_all(data, size);
  }
  std::vector<char> receive() {
    uint64_t length = 0;
    read_all(&length, sizeof length);
    std::vector<char> data(length);
    read_all(data.data(), data.size());
    return data;
  }

  void leave() { shutdown(fd_, SHUT_WR); }
  bool peer_has_left() const {
    char byte = 0;
    return recv(fd_, &byte, 1, MSG_DONTWAIT) == 0;
  }

 private:
  static constexpr int kTries = 1000;
  static constexpr useconds_t kPauseUs = 10000;

  static int accept_one(const sockaddr* address, socklen_t length) {
    const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, address, length) != 0 || listen(listener, 1) != 0) die("cannot listen");
    const int fd = accept(listener, nullptr, nullptr);
    if (fd < 0) die("the peer did not come");
    close(listener);
    return fd;
  }

  static int connect_to(const sockaddr* address, socklen_t length) {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    for (int attempt = 0; attempt < kTries; ++attempt) {
      if (connect(fd, address, length) == 0) return fd;
      usleep(kPauseUs);
    }
    die("the peer did not come");
  }

  void write_all(const void* data, size_t size) const {
    const char* at = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t count = ::send(fd_, at, size, MSG_NOSIGNAL);
      if (count <= 0) die("the peer is gone");
      at += count;
      size -= static_cast<size_t>(count);
    }
  }
  void read_all(void* data, size_t size) const {
    char* at = static_cast<char*>(data);
    while (size > 0) {
      const ssize_t count = read(fd_, at, size);
      if (count <= 0) die("the peer is gone");
      at += count;
      size -= static_cast<size_t>(count);
    }
  }

  int fd_ = -1;
};

}  // namespace bench
