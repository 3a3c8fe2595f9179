// Latency and bandwidth of the tcp transport between two processes of this host, compared with
// plain sockets in the same run. Not a test: the figures vary between runs, so every measurement is
// repeated, plain sockets and transport take turns, and medians are printed.
//
//   tcp_speed [rounds] [settings]        settings as for hetcomm, e.g.
//   "TCP_CHUNK=256K;TCP_STREAMS=2"
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "src/present/statistics.h"
#include "src/system/unique_fd.h"
#include "tests/unit/tcp/fixture.h"

namespace hetcomm::test {
namespace {

constexpr size_t kSizes[] = {64u << 10, 1u << 20, 16u << 20, 64u << 20};
constexpr size_t kBytesPerRun = 512u << 20;
constexpr int kPingPongs = 20000;
constexpr size_t kWindow = 16;  // puts in flight
constexpr size_t kPingBytes = 8;

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::_Exit(1);
}

void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(core), &set);
  // Without permission to pin, the figures are only noisier.
  sched_setaffinity(0, sizeof(set), &set);
}

void write_all(int fd, const void* data, size_t size) {
  for (const char* at = static_cast<const char*>(data); size > 0;) {
    const ssize_t n = ::write(fd, at, size);
    if (n <= 0) die("write");
    at += n;
    size -= static_cast<size_t>(n);
  }
}
void read_all(int fd, void* data, size_t size) {
  for (char* at = static_cast<char*>(data); size > 0;) {
    const ssize_t n = ::read(fd, at, size);
    if (n <= 0) die("read");
    at += n;
    size -= static_cast<size_t>(n);
  }
}

// Returns a connected pair of plain sockets over loopback, one end for each process.
std::pair<UniqueFd, UniqueFd> socket_pair() {
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.get(), generic, length) != 0 || ::listen(listener.get(), 1) != 0) die("bind");
  if (::getsockname(listener.get(), generic, &length) != 0) die("getsockname");
  UniqueFd one(::socket(AF_INET, SOCK_STREAM, 0));
  if (::connect(one.get(), generic, length) != 0) die("connect");
  UniqueFd two(::accept(listener.get(), nullptr, nullptr));
  const int yes = 1;
  for (const int fd : {one.get(), two.get()}) {
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  }
  return {std::move(one), std::move(two)};
}

// One side of the measurement.
class Side final : public EndpointHandler {
 public:
  Side(int rank, const std::string& settings, int sync_fd, int raw_fd)
      : rank_(rank), node_(rank, 2, settings), sync_(sync_fd), raw_(raw_fd), data_(64u << 20) {
    std::fill(data_.begin(), data_.end(), static_cast<std::byte>(rank));
  }

  void connect() {
    const std::vector<std::byte> mine = node_.transport->contact();
    std::vector<std::byte> theirs(mine.size());
    write_all(sync_, mine.data(), mine.size());
    read_all(sync_, theirs.data(), theirs.size());
    if (rank_ == 0) node_.transport->connect({.rank = 1}, theirs);
    while (node_.endpoints.empty()) node_.step();
    endpoint_ = &node_.to(1 - rank_);
    endpoint_->set_handler(this);
  }

  void barrier() {
    char byte = 0;
    write_all(sync_, &byte, 1);
    read_all(sync_, &byte, 1);
  }

  // Measures plain spinning send and recv. Returns nanoseconds in one direction.
  double raw_latency() {
    char frame[48] = {};
    const auto receive = [&] {
      while (::recv(raw_, frame, sizeof(frame), MSG_DONTWAIT) <= 0) cpu_relax();
    };
    const uint64_t start = now_ns();
    for (int i = 0; i < kPingPongs; ++i) {
      if (rank_ == 0 && ::send(raw_, frame, sizeof(frame), MSG_NOSIGNAL) < 0) die("send");
      receive();
      if (rank_ == 1 && ::send(raw_, frame, sizeof(frame), MSG_NOSIGNAL) < 0) die("send");
    }
    return static_cast<double>(now_ns() - start) / kPingPongs / 2;
  }

  double latency() {
    const uint64_t start = now_ns();
    const int first = received_;
    for (int i = 0; i < kPingPongs; ++i) {
      if (rank_ == 0) send_ping();
      while (received_ - first <= i) progress();
      if (rank_ == 1) send_ping();
    }
    return static_cast<double>(now_ns() - start) / kPingPongs / 2;
  }

  // Measures blocking writes of |size|. Returns bytes per nanosecond.
  double raw_bandwidth(size_t size) {
    const size_t count = kBytesPerRun / size;
    char byte = 0;
    const uint64_t start = now_ns();
    for (size_t i = 0; i < count; ++i) {
      if (rank_ == 0) {
        write_all(raw_, data_.data(), size);
      } else {
        read_all(raw_, data_.data(), size);
      }
    }
    if (rank_ == 0) {
      read_all(raw_, &byte, 1);
    } else {
      write_all(raw_, &byte, 1);
    }
    return static_cast<double>(size * count) / static_cast<double>(now_ns() - start);
  }

  // Measures puts of |size| from rank 0 to rank 1, |window| in flight, in pieces of |piece| as core
  // would cut them.
  double bandwidth(size_t size, size_t window) {
    const size_t count = kBytesPerRun / size;
    RemoteKey key;
    const iovec local{data_.data(), size};
    if (rank_ == 1) {
      Result<RemoteKey> exposed =
          endpoint_->abilities().exposer->expose({&local, 1}, Access::kPutTarget, 1);
      if (!exposed.ok()) die("expose");
      key = exposed.value();
      write_all(sync_, &key, sizeof(key));
    } else {
      read_all(sync_, &key, sizeof(key));
    }
    arrived_ = 0;
    completed_ = 0;
    barrier();
    const uint64_t start = now_ns();
    if (rank_ == 0) {
      run_puts({&local, 1}, key, size, count, window);
      while (received_ == last_received_) progress();
    } else {
      while (arrived_ < size * count) progress();
      send_ping();
    }
    last_received_ = received_;
    const double rate = static_cast<double>(size * count) / static_cast<double>(now_ns() - start);
    if (rank_ == 1) endpoint_->abilities().exposer->revoke(key);
    return rate;
  }

  void on_message(const MessageHeader& /*header*/, ConstByteSpan /*payload*/) override {
    ++received_;
  }
  void on_put(uint64_t /*cookie*/, uint64_t length) override { arrived_ += length; }
  void on_bulk_complete(Bulk& bulk, Code /*code*/) override {
    ++completed_;
    free_.push_back(&bulk);
  }
  void on_mapped(const RemoteKey&, const Result<MappedRegion>&) override {}
  void on_unmap(const RemoteKey&) override {}
  void on_writable() override {}
  void on_doubt(const StreamId&) override {}
  void on_failed(const Status& why) override {
    std::fprintf(stderr, "rank %d: %s\n", rank_, std::string(why.text()).c_str());
    std::_Exit(1);
  }
  void mark_received() { last_received_ = received_; }

 private:
  // Makes progress as core does: the transport in every round, the poller occasionally.
  void progress() {
    if (node_.transport->progress() > 0) return;
    if (++idle_ % 32 == 0) {
      node_.now = now_ns();
      node_.poller.poll();
    }
  }

  void send_ping() {
    const iovec payload{data_.data(), kPingBytes};
    const ExtentView view{{&payload, 1}, 0, kPingBytes};
    if (endpoint_->send(make_header(1), view) != Code::kOk) die("send");
  }

  void run_puts(Extents local, const RemoteKey& key, size_t size, size_t count, size_t window) {
    std::vector<Bulk> bulks(window);
    free_.clear();
    for (Bulk& bulk : bulks) free_.push_back(&bulk);
    size_t started = 0;
    while (completed_ < count) {
      while (started < count && !free_.empty()) {
        Bulk* bulk = free_.back();
        free_.pop_back();
        bulk->local = {local, 0, size};
        bulk->key = key;
        if (endpoint_->abilities().puts->put(*bulk) != Code::kOk) die("put");
        ++started;
      }
      progress();
    }
  }

  const int rank_;
  Node node_;
  const int sync_;
  const int raw_;
  std::vector<std::byte> data_;
  Endpoint* endpoint_ = nullptr;
  int received_ = 0;
  int last_received_ = 0;
  uint64_t arrived_ = 0;
  size_t completed_ = 0;
  std::vector<Bulk*> free_;
  unsigned idle_ = 0;
};

struct Series {
  std::vector<double> floor;
  std::vector<double> ours;
  void print(const char* name, const char* unit, bool small_is_good) const {
    const auto best = [&](const std::vector<double>& values) {
      return small_is_good ? *std::min_element(values.begin(), values.end())
                           : *std::max_element(values.begin(), values.end());
    };
    std::printf("%-24s sockets %8.2f (best %8.2f)   tcp %8.2f (best %8.2f) %s\n", name,
                present::median(floor), best(floor), present::median(ours), best(ours), unit);
  }
};

void run(int rank, int rounds, const std::string& settings, int sync_fd, int raw_fd) {
  pin(rank);
  Side side(rank, settings, sync_fd, raw_fd);
  side.connect();
  Series latency;
  Series many[std::size(kSizes)];
  Series one[std::size(kSizes)];
  for (int round = 0; round < rounds; ++round) {
    side.barrier();
    latency.floor.push_back(side.raw_latency() / 1000);
    side.barrier();
    latency.ours.push_back(side.latency() / 1000);
    for (size_t i = 0; i < std::size(kSizes); ++i) {
      side.barrier();
      const double floor = side.raw_bandwidth(kSizes[i]);
      many[i].floor.push_back(floor);
      one[i].floor.push_back(floor);
      side.mark_received();
      many[i].ours.push_back(side.bandwidth(kSizes[i], kWindow));
      side.mark_received();
      one[i].ours.push_back(side.bandwidth(kSizes[i], 1));
    }
  }
  if (rank != 0) return;
  latency.print("8 B one way", "us", true);
  for (size_t i = 0; i < std::size(kSizes); ++i) {
    const std::string size = std::to_string(kSizes[i] >> 10) + " KiB ";
    many[i].print((size + "16 in flight").c_str(), "GB/s", false);
    one[i].print((size + "one by one").c_str(), "GB/s", false);
  }
}

}  // namespace
}  // namespace hetcomm::test

int main(int argc, char** argv) {
  using namespace hetcomm::test;
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 5;
  std::string settings = "INTERFACE=lo;FAMILY=ipv4;";
  if (argc > 2) settings += argv[2];
  int sync[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sync) != 0) die("socketpair");
  auto [one, two] = socket_pair();
  const pid_t child = fork();
  if (child < 0) die("fork");
  if (child == 0) {
    run(1, rounds, settings, sync[1], two.get());
    std::_Exit(0);
  }
  ::close(sync[1]);
  two.reset();
  run(0, rounds, settings, sync[0], one.get());
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}
