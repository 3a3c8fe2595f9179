#include "transports/tcp/path.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

namespace hetcomm::tcp {
namespace {

constexpr uint64_t kNsPerMs = 1'000'000;
constexpr uint64_t kNsPerSecond = 1'000'000'000;
// The granularity of the times that the kernel reports.
constexpr uint64_t kClockTickNs = 20 * kNsPerMs;
// This many unanswered tries count as evidence of a broken path. A single probe may have been lost,
// and the peer's kernel does not answer two probes within half a second.
constexpr uint32_t kEnoughTries = 2;

// A field of the kernel's struct tcp_info, identified by its offset. The kernel only appends
// fields, and returns those that it has. The headers of the build machine may lack the newer ones.
template <typename T>
struct TcpField {
  size_t offset;
};
constexpr TcpField<uint8_t> kRetransmits{2};
constexpr TcpField<uint8_t> kProbes{3};
constexpr TcpField<uint32_t> kUnacknowledged{24};
constexpr TcpField<uint32_t> kLastDataReceivedMs{52};
constexpr TcpField<uint32_t> kLastAckReceivedMs{56};
constexpr TcpField<uint32_t> kTotalRetransmitted{100};
constexpr TcpField<uint64_t> kBytesAcknowledged{120};
constexpr TcpField<uint64_t> kBytesReceived{128};
constexpr TcpField<uint32_t> kBytesNotSent{144};
constexpr TcpField<uint32_t> kSendWindow{228};     // since Linux 5.4
constexpr TcpField<uint32_t> kReceiveWindow{232};  // since Linux 6.2
static_assert(offsetof(tcp_info, tcpi_retransmits) == kRetransmits.offset);
static_assert(offsetof(tcp_info, tcpi_probes) == kProbes.offset);
static_assert(offsetof(tcp_info, tcpi_last_data_recv) == kLastDataReceivedMs.offset);
static_assert(offsetof(tcp_info, tcpi_unacked) == kUnacknowledged.offset);
static_assert(offsetof(tcp_info, tcpi_last_ack_recv) == kLastAckReceivedMs.offset);
static_assert(offsetof(tcp_info, tcpi_total_retrans) == kTotalRetransmitted.offset);

// The kernel's statistics for a socket (TCP_INFO).
class TcpInfo {
 public:
  explicit TcpInfo(int fd) {
    socklen_t length = sizeof(bytes_);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, bytes_.data(), &length) == 0) size_ = length;
  }
  template <typename T>
  bool has(TcpField<T> field) const {
    return field.offset + sizeof(T) <= size_;
  }
  // Returns the field, or 0 if the kernel has not reported it.
  template <typename T>
  T operator[](TcpField<T> field) const {
    T value{};
    std::memcpy(&value, bytes_.data() + field.offset, sizeof(T));
    return value;
  }

 private:
  std::array<std::byte, 240> bytes_{};
  size_t size_ = 0;
};

void set_option(int fd, int level, int name, int value) {
  // Ignores a failure: older kernels may lack the option, and the connection works without it.
  if (setsockopt(fd, level, name, &value, sizeof(value)) != 0) return;
}

int in_seconds(uint64_t ns) {
  constexpr uint64_t kMax = 32'767;
  return static_cast<int>(std::clamp<uint64_t>(ns / kNsPerSecond, 1, kMax));
}

}  // namespace

PathVerdict judge(const PathSample& sample, uint64_t detection_ns) {
  using Waiting = PathSample::Waiting;
  using Answer = PathSample::Answer;
  const bool closed = sample.waiting == Waiting::kWindowClosed;
  if (sample.waiting == Waiting::kNothing) return PathVerdict::kAlive;
  if (sample.silent_ns < detection_ns / 2) {
    return closed ? PathVerdict::kNotReading : PathVerdict::kAlive;
  }
  if (sample.answer == Answer::kFull) return PathVerdict::kNotReading;
  if (sample.silent_ns < detection_ns / 4 * 3) return PathVerdict::kUnsure;
  if (sample.tries >= kEnoughTries) return PathVerdict::kGone;
  // The peer's control plane reports that its window is open, but the packet that announces this
  // has not arrived.
  const bool contradicted = sample.answer == Answer::kRoom && (closed || sample.tries > 0);
  return contradicted ? PathVerdict::kGone : PathVerdict::kUnsure;
}

bool read_path(int fd, PathAccount& out) {
  const TcpInfo info(fd);
  if (!info.has(kBytesNotSent)) return false;
  const bool in_flight = info[kUnacknowledged] > 0;
  const bool held_back = info[kBytesNotSent] > 0;
  // Older kernels do not report the window. On every kernel it counts as closed if bytes are held
  // back while none are in flight.
  const bool closed = info.has(kSendWindow) ? info[kSendWindow] == 0 : !in_flight && held_back;
  const uint32_t heard_ms = std::min(info[kLastAckReceivedMs], info[kLastDataReceivedMs]);
  out = {.in_flight = in_flight,
         .held_back = held_back,
         .window_closed = closed || (!in_flight && held_back),
         .timeouts = info[kRetransmits],
         .probes = info[kProbes],
         .retransmitted = info[kTotalRetransmitted],
         .heard_ns = heard_ms * kNsPerMs};
  return true;
}

uint64_t acknowledged_bytes(int fd) { return TcpInfo(fd)[kBytesAcknowledged]; }

bool read_receipt(int fd, PathReceipt& out) {
  const TcpInfo info(fd);
  if (!info.has(kBytesNotSent)) return false;
  int unread = 0;
  if (ioctl(fd, SIOCINQ, &unread) != 0) return false;
  // The first word of SO_MEMINFO is the number of bytes held for receiving, the second their limit.
  constexpr int kMemoryInfo = 55;
  std::array<uint32_t, 9> memory{};
  socklen_t length = sizeof(memory);
  const bool overfull = getsockopt(fd, SOL_SOCKET, kMemoryInfo, memory.data(), &length) == 0 &&
                        length >= 2 * sizeof(uint32_t) && memory[0] >= memory[1];
  const bool closed = info.has(kReceiveWindow) ? info[kReceiveWindow] == 0 : unread > 0;
  out = {.received_bytes = info[kBytesReceived], .full = unread > 0 && (closed || overfull)};
  return true;
}

void bound_probes(int fd, uint64_t limit_ns) {
  constexpr int kRtoMaxMs = 44;  // TCP_RTO_MAX_MS, 1 s to 120 s
  constexpr uint64_t kMax = 120'000;
  const uint64_t limit_ms = std::clamp<uint64_t>(limit_ns / kNsPerMs, 1000, kMax);
  set_option(fd, IPPROTO_TCP, kRtoMaxMs, static_cast<int>(limit_ms));
}

void probe_when_idle(int fd, uint64_t detection_ns) {
  constexpr int kLostProbes = 3;
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, in_seconds(3 * detection_ns));
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, in_seconds(detection_ns / (kLostProbes + 1)));
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, kLostProbes);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
}

PathVerdict PathWatch::look(const PathAccount& account, uint64_t now_ns, uint64_t detection_ns) {
  if (!account.in_flight && !account.held_back) {
    reset();
    return PathVerdict::kAlive;
  }
  const bool first = last_look_ns_ == 0;
  const uint64_t elapsed_ns = first ? 0 : now_ns - last_look_ns_;
  last_look_ns_ = now_ns;
  silent_ns_ = (first ? 0 : silent_ns_) + std::min(elapsed_ns, 2 * interval_ns(detection_ns));
  if (first || account.heard_ns + kClockTickNs < silent_ns_) {
    // Something has arrived, or this is the first look. At most one timeout can have followed, so
    // one retransmission counts as new. Others cannot be distinguished from older ones.
    retransmitted_ = account.retransmitted - std::min<uint8_t>(account.timeouts, 1);
  }
  silent_ns_ = std::min(silent_ns_, account.heard_ns);
  PathSample sample;
  sample.silent_ns = silent_ns_;
  const uint32_t since = account.retransmitted - retransmitted_;
  if (account.window_closed) {
    sample.waiting = PathSample::Waiting::kWindowClosed;
    // If a segment was in flight when the window closed, it is retransmitted in place of a probe.
    sample.tries = account.in_flight ? since : account.probes;
  } else {
    sample.waiting = PathSample::Waiting::kInFlight;
    // One timeout can retransmit several segments, so the count is limited to the number of
    // timeouts.
    sample.tries = std::min<uint32_t>(account.timeouts, since);
  }
  const uint64_t age_ns = asked_ns_ == 0 ? UINT64_MAX : now_ns - std::min(now_ns, asked_ns_);
  if (asked_ns_ != 0 && full_ && age_ns < detection_ns / 2) {
    sample.answer = PathSample::Answer::kFull;
  } else if (asked_ns_ != 0 && !full_ && account.heard_ns >= age_ns) {
    sample.answer = PathSample::Answer::kRoom;
  }
  in_doubt_ = silent_ns_ >= detection_ns / 2 && age_ns >= detection_ns / 4;
  return judge(sample, detection_ns);
}

}  // namespace hetcomm::tcp
