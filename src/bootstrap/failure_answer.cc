#include "src/bootstrap/failure_answer.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <deque>
#include <optional>
#include <set>
#include <vector>

#include "src/net/handshake.h"
#include "src/system/clock.h"

namespace hetcomm {
namespace {

constexpr size_t kMaxVisitors = 64;
// A visitor can be dropped after this time if other peers are waiting.
constexpr uint64_t kVisitNs = 250'000'000;
constexpr int kPauseMs = 10;

// A connection from one peer. The peer is sent the reason for the failure once it has sent
// anything. The connection then stays open until the peer closes it or its slot is needed.
class Visitor {
 public:
  Visitor(UniqueFd socket, uint64_t now) : socket_(std::move(socket)), begun_ns_(now) {}

  int fd() const { return socket_.get(); }
  uint64_t begun_ns() const { return begun_ns_; }
  // Returns the rank that the peer claims. Returns nothing until the peer has been sent the reason.
  std::optional<int32_t> told() const { return told_; }

  // Reads what has arrived and answers it. Returns false if the peer has disconnected or accepts no
  // data.
  bool serve(const std::vector<std::byte>& answer, const Identity& identity) {
    while (true) {
      std::array<std::byte, 1024> chunk;
      const ssize_t got = ::recv(fd(), chunk.data(), chunk.size(), MSG_DONTWAIT);
      if (got < 0) return errno == EAGAIN || errno == EINTR;
      if (got == 0) return false;
      if (heard_.size() < kMaxHelloBytes) {
        heard_.insert(heard_.end(), chunk.begin(), chunk.begin() + got);
      }
      if (!answered_) {
        answered_ = true;
        const ssize_t sent =
            ::send(fd(), answer.data(), answer.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent != static_cast<ssize_t>(answer.size())) return false;
        ::shutdown(fd(), SHUT_WR);
      }
      told_ = claimed_rank(heard_, identity);
    }
  }

 private:
  UniqueFd socket_;
  uint64_t begun_ns_;
  std::vector<std::byte> heard_;
  bool answered_ = false;
  std::optional<int32_t> told_;
};

void accept_some(const StoreListeners& listeners, std::deque<Visitor>* visitors) {
  for (const UniqueFd& listener : listeners.sockets) {
    while (true) {
      if (visitors->size() >= kMaxVisitors) {
        if (now_ns() < visitors->front().begun_ns() + kVisitNs) return;
        visitors->pop_front();
      }
      UniqueFd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket.valid()) {
        const bool short_of_descriptors = errno == EMFILE || errno == ENFILE;
        if (!short_of_descriptors || visitors->empty()) break;
        if (now_ns() < visitors->front().begun_ns() + kVisitNs) return;
        visitors->pop_front();
        continue;
      }
      visitors->emplace_back(std::move(socket), now_ns());
    }
  }
}

void wait_for_events(const StoreListeners& listeners, const std::deque<Visitor>& visitors,
                     uint64_t until_ns) {
  std::vector<pollfd> polled;
  // When the table of visitors is full, the listeners are not polled, because a pending connection
  // would end each wait immediately.
  if (visitors.size() < kMaxVisitors) {
    for (const UniqueFd& listener : listeners.sockets) {
      polled.push_back({.fd = listener.get(), .events = POLLIN, .revents = 0});
    }
  }
  for (const Visitor& visitor : visitors) {
    polled.push_back({.fd = visitor.fd(), .events = POLLIN, .revents = 0});
  }
  const uint64_t now = now_ns();
  const uint64_t left_ms = until_ns > now ? (until_ns - now) / 1'000'000 + 1 : 0;
  const int timeout_ms = visitors.empty() ? static_cast<int>(left_ms) : kPauseMs;
  ::poll(polled.data(), polled.size(), timeout_ms);
}

}  // namespace

void answer_with_failure(const StoreListeners& listeners, const Identity& identity,
                         const Status& why, int ranks, uint64_t time_ns) {
  const std::vector<std::byte> answer = encode_end(identity, why);
  const uint64_t end_ns = deadline_after(now_ns(), time_ns);
  std::deque<Visitor> visitors;
  std::set<int32_t> told;
  while (now_ns() < end_ns && told.size() < static_cast<size_t>(std::max(ranks, 0))) {
    const size_t before = visitors.size();
    accept_some(listeners, &visitors);
    const bool is_short = before == 0 && visitors.empty();
    for (auto visitor = visitors.begin(); visitor != visitors.end();) {
      const bool stays = visitor->serve(answer, identity);
      if (const std::optional<int32_t> rank = visitor->told()) told.insert(*rank);
      visitor = stays ? visitor + 1 : visitors.erase(visitor);
    }
    wait_for_events(listeners, visitors, end_ns);
    // Without a free descriptor the listeners stay readable, so the wait above returns immediately.
    if (is_short) ::poll(nullptr, 0, kPauseMs);
  }
}

}  // namespace hetcomm
