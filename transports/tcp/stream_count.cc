#include "transports/tcp/stream_count.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace hetcomm::tcp {
namespace {

constexpr uint32_t kSlowRecoveryUs = 1000;

}  // namespace

bool read_account(int fd, StreamAccount& out) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  out = {.busy_us = info.tcpi_busy_time,
         .limited_us = info.tcpi_rwnd_limited + info.tcpi_sndbuf_limited,
         .retransmits = info.tcpi_total_retrans,
         .round_trip_us = info.tcpi_rtt};
  return true;
}

bool StreamCount::review(const StreamAccount& account) {
  const uint64_t busy = account.busy_us - last_.busy_us;
  const uint64_t limited = account.limited_us - last_.limited_us;
  const bool lost = account.retransmits != last_.retransmits;
  last_ = account;
  const bool window_bound = busy > 0 && limited >= busy / 4;
  return window_bound || (lost && account.round_trip_us >= kSlowRecoveryUs);
}

}  // namespace hetcomm::tcp
