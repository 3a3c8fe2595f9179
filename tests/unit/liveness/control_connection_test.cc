// One control connection:
//
//   * frames arrive complete and in order, for any fragmentation, and everything before an end
//     arrives;
//   * over a local socket the process handle is passed first;
//   * if a peer does not read, the backlog is bounded, and room is reported once it reads;
//   * close() first sends all pending data, and ends without reporting a break;
//   * garbage or the end of the peer ends the connection once, with the reason.
#include "src/liveness/control_connection.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/liveness/process_descriptor.h"
#include "src/net/listening_socket.h"
#include "src/system/clock.h"

namespace hetcomm::liveness {
namespace {

using testing::HasSubstr;

struct Recorder final : ControlConnectionHandler {
  void on_frame(ControlConnection& /*connection*/, Frame& frame) override {
    frames.push_back(frame);
  }
  void on_room(ControlConnection& /*connection*/) override { ++rooms; }
  void on_ended(ControlConnection& /*connection*/, const std::string& why) override {
    ends.push_back(why);
  }
  void on_closed(ControlConnection& /*connection*/) override { ++closed; }
  void on_process(ControlConnection& /*connection*/, UniqueFd process) override {
    frames_before_process = frames.size();
    processes.push_back(std::move(process));
  }

  std::vector<Frame> frames;
  std::vector<std::string> ends;
  std::vector<UniqueFd> processes;
  size_t frames_before_process = 0;
  int rooms = 0;
  int closed = 0;
};

struct Sockets {
  UniqueFd near, far;
};

Sockets local_sockets() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

Sockets tcp_sockets() {
  const UniqueFd listener = listen_on(Address::parse_numeric("127.0.0.1", 0).value(), 1).value();
  const Address address = bound_address(listener.get()).value();
  Sockets sockets;
  sockets.near.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(sockets.near.get(), address.get(), address.length()), 0);
  fcntl(sockets.near.get(), F_SETFL, O_NONBLOCK);
  sockets.far.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  return sockets;
}

Frame frame_of(uint32_t number, size_t length = 30) {
  return {.type = FrameType::kAborted,
          .subject = static_cast<int32_t>(number % 8),
          .number = number,
          .text = std::string(length, 'x')};
}

class LivenessControlConnection : public testing::Test {
 protected:
  // Starts a connection on one end. The test holds the other end.
  void start(Sockets sockets, int own_process = -1) {
    far_ = std::move(sockets.far);
    ASSERT_TRUE(connection_.start(StreamSocket(std::move(sockets.near)), own_process).ok());
  }
  bool until(const std::function<bool()>& done) {
    const uint64_t end = now_ns() + 20'000'000'000;
    while (!done() && now_ns() < end) {
      poller_.wait(10'000'000);
      poller_.poll();
    }
    return done();
  }
  void deliver() {
    while (poller_.poll() > 0) {
    }
  }
  void write_far(ConstByteSpan bytes) const {
    ASSERT_EQ(::send(far_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void write_far(const Frame& frame) const {
    std::vector<std::byte> bytes;
    encode(frame, bytes);
    write_far(bytes);
  }
  // Sends a stand-in for the process handle on a local socket.
  void greet() const { write_far(std::vector<std::byte>{std::byte{'-'}}); }
  // Appends the bytes that the far end has received. Returns false at the end of the stream.
  bool read_far() {
    std::byte buffer[4096];
    ssize_t got = 0;
    while ((got = ::recv(far_.get(), buffer, sizeof(buffer), MSG_DONTWAIT)) > 0) {
      came_.insert(came_.end(), buffer, buffer + got);
    }
    return got != 0;
  }
  // Returns the numbers of the frames received at the far end of a local socket.
  std::vector<uint32_t> numbers_far() const {
    std::vector<uint32_t> numbers;
    Frame frame;
    size_t used = 0;
    for (size_t at = 1;
         decode(ConstByteSpan(came_).subspan(at), 8, &frame, &used) == Decoded::kFrame;
         at += used) {
      numbers.push_back(frame.number);
    }
    return numbers;
  }
  static std::vector<uint32_t> up_to(uint32_t count) {
    std::vector<uint32_t> numbers;
    for (uint32_t i = 0; i < count; ++i) numbers.push_back(i);
    return numbers;
  }

  Poller poller_ = Poller::create().value();
  Recorder upcalls_;
  ControlConnection connection_{poller_, upcalls_, 17, 3, 8};
  UniqueFd far_;
  std::vector<std::byte> came_;
};

TEST_F(LivenessControlConnection, ProcessHandleIsPassedBeforeTheFirstFrame) {
  const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (!process.valid()) GTEST_SKIP() << "this kernel has no pidfd_open";
  Sockets sockets = local_sockets();
  Recorder other;
  ControlConnection peer(poller_, other, 18, 4, 8);
  ASSERT_TRUE(peer.start(StreamSocket(std::move(sockets.far)), -1).ok());
  ASSERT_TRUE(connection_.start(StreamSocket(std::move(sockets.near)), process.get()).ok());
  EXPECT_TRUE(connection_.is_local());
  EXPECT_TRUE(connection_.send(frame_of(1)));
  EXPECT_TRUE(peer.send(frame_of(2)));
  ASSERT_TRUE(until([&] { return other.frames.size() == 1 && upcalls_.frames.size() == 1; }));
  EXPECT_EQ(other.frames[0].number, 1u);
  EXPECT_EQ(upcalls_.frames[0].number, 2u);
  EXPECT_TRUE(upcalls_.processes.empty());  // the peer had no process handle
  ASSERT_EQ(other.processes.size(), 1u);
  EXPECT_EQ(other.frames_before_process, 0u);
  std::ifstream info(fmt::format("/proc/self/fdinfo/{}", other.processes[0].get()));
  const std::string text((std::istreambuf_iterator<char>(info)), std::istreambuf_iterator<char>());
  EXPECT_THAT(text, HasSubstr(fmt::format("Pid:\t{}\n", getpid())));
  EXPECT_NE(fcntl(other.processes[0].get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(LivenessProcessDescriptor, OnlyRunningProcessCountsAsAlive) {
  const UniqueFd own = describe_own_process();
  if (!own.valid()) GTEST_SKIP() << "this kernel has no pidfd_open";
  EXPECT_TRUE(is_running_process(own.get()));
  const UniqueFd file(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_FALSE(is_running_process(file.get()));
  const UniqueFd quiet(eventfd(0, EFD_CLOEXEC));
  EXPECT_FALSE(is_running_process(quiet.get()));
  EXPECT_FALSE(is_running_process(-1));
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const UniqueFd other(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
  EXPECT_TRUE(is_running_process(other.get()));
  kill(child, SIGSTOP);
  int status = 0;
  waitpid(child, &status, WUNTRACED);
  EXPECT_TRUE(is_running_process(other.get()));
  kill(child, SIGKILL);
  // The process has exited, whether or not it was reaped.
  siginfo_t exited{};
  waitid(P_PID, static_cast<id_t>(child), &exited, WEXITED | WNOWAIT);
  EXPECT_FALSE(is_running_process(other.get()));
  waitpid(child, &status, 0);
  EXPECT_FALSE(is_running_process(other.get()));
}

TEST_F(LivenessControlConnection, DetectsThatBothEndsAreInOneProcess) {
  Sockets sockets = local_sockets();
  ASSERT_TRUE(connection_.start(StreamSocket(std::move(sockets.near)), -1).ok());
  EXPECT_TRUE(connection_.is_of_this_process());
}

TEST_F(LivenessControlConnection, FramesSentByteByByteArriveIntact) {
  start(local_sockets());
  greet();
  std::vector<std::byte> bytes;
  for (uint32_t i = 0; i < 3; ++i) encode(frame_of(i), bytes);
  for (size_t at = 0; at < bytes.size(); ++at) {
    write_far(ConstByteSpan(bytes).subspan(at, 1));
    deliver();
    EXPECT_EQ(upcalls_.frames.size(), (at + 1) / (kFrameHeaderBytes + 30)) << at;
  }
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(upcalls_.frames[i].number, i);
    EXPECT_EQ(upcalls_.frames[i].text, std::string(30, 'x'));
  }
}

// Sends more data than one round reads. All of it must arrive before the end.
TEST_F(LivenessControlConnection, FramesBeforeTheDisconnectAreDelivered) {
  start(local_sockets());
  greet();
  constexpr uint32_t kCount = 1000;  // some 100 KB
  std::vector<std::byte> bytes;
  for (uint32_t i = 0; i < kCount; ++i) encode(frame_of(i, 80), bytes);
  write_far(bytes);
  EXPECT_TRUE(read_far());  // unread data would reset the connection
  far_.reset();
  ASSERT_TRUE(until([&] { return !upcalls_.ends.empty(); }));
  ASSERT_EQ(upcalls_.frames.size(), kCount);
  for (uint32_t i = 0; i < kCount; ++i) EXPECT_EQ(upcalls_.frames[i].number, i);
  EXPECT_EQ(upcalls_.ends.size(), 1u);
  EXPECT_THAT(upcalls_.ends[0], HasSubstr("without closing its communicator"));
  deliver();
  EXPECT_EQ(upcalls_.ends.size(), 1u);
  EXPECT_EQ(upcalls_.closed, 0);
}

TEST_F(LivenessControlConnection, ReadOutDeliversAllReceivedFrames) {
  start(local_sockets());
  greet();
  std::vector<std::byte> bytes;
  for (uint32_t i = 0; i < 1000; ++i) encode(frame_of(i, 80), bytes);
  write_far(bytes);
  connection_.read_out();
  EXPECT_EQ(upcalls_.frames.size(), 1000u);
  EXPECT_TRUE(upcalls_.ends.empty());
}

TEST_F(LivenessControlConnection, GarbageEndsTheConnectionAfterEarlierFrames) {
  start(local_sockets());
  greet();
  write_far(frame_of(1));
  Frame foreign = frame_of(2);
  foreign.subject = 8;  // the job has eight ranks, 0 to 7
  write_far(foreign);
  write_far(frame_of(3));
  deliver();
  ASSERT_EQ(upcalls_.frames.size(), 1u);
  ASSERT_EQ(upcalls_.ends.size(), 1u);
  EXPECT_THAT(upcalls_.ends[0], HasSubstr("no frame"));
  EXPECT_FALSE(read_far());                    // the peer sees the end
  EXPECT_TRUE(connection_.send(frame_of(4)));  // the frame is dropped, and nothing waits for it
  EXPECT_EQ(connection_.last_acknowledged_ns(100), 0u);
}

TEST_F(LivenessControlConnection, BacklogIsBoundedIfThePeerDoesNotRead) {
  start(local_sockets());
  int socket_bytes = 0;
  socklen_t length = sizeof(socket_bytes);
  ASSERT_EQ(getsockopt(far_.get(), SOL_SOCKET, SO_SNDBUF, &socket_bytes, &length), 0);
  uint32_t accepted = 0;
  while (accepted < 100'000 && connection_.send(frame_of(accepted, kMaxFrameText))) ++accepted;
  ASSERT_LT(accepted, 100'000u);
  const size_t frame_bytes = kFrameHeaderBytes + kMaxFrameText;
  EXPECT_LE(accepted * frame_bytes, static_cast<size_t>(socket_bytes) + 16 * 1024 + frame_bytes);
  EXPECT_GE(accepted * frame_bytes, 16 * 1024u);
  EXPECT_FALSE(connection_.send(frame_of(0)));
  deliver();
  EXPECT_EQ(upcalls_.rooms, 0);
  ASSERT_TRUE(until([&] { return read_far() && numbers_far().size() == accepted; }));
  EXPECT_EQ(numbers_far(), up_to(accepted));
  EXPECT_EQ(upcalls_.rooms, 1);
  EXPECT_TRUE(connection_.send(frame_of(accepted)));
  ASSERT_TRUE(until([&] { return read_far() && numbers_far().size() == accepted + 1; }));
  EXPECT_EQ(numbers_far(), up_to(accepted + 1));
  EXPECT_EQ(upcalls_.rooms, 1);
}

TEST_F(LivenessControlConnection, ClosingSendsPendingFramesFirst) {
  start(local_sockets());
  greet();
  uint32_t accepted = 0;
  while (connection_.send(frame_of(accepted, kMaxFrameText))) ++accepted;
  connection_.close();
  EXPECT_TRUE(connection_.send(frame_of(accepted)));  // too late to be sent
  write_far(frame_of(1));                             // also too late
  ASSERT_TRUE(until([&] { return !read_far(); }));
  EXPECT_EQ(numbers_far(), up_to(accepted));
  EXPECT_EQ(upcalls_.closed, 0);  // the peer may still send
  far_.reset();
  ASSERT_TRUE(until([&] { return upcalls_.closed != 0; }));
  deliver();
  EXPECT_EQ(upcalls_.closed, 1);
  EXPECT_TRUE(upcalls_.ends.empty());
  EXPECT_TRUE(upcalls_.frames.empty());
}

// A reset is reported as a reset, not as the end of the peer.
TEST_F(LivenessControlConnection, TcpConnectionReportsAcknowledgementsAndAReset) {
  start(tcp_sockets());
  EXPECT_FALSE(connection_.is_local());
  EXPECT_EQ(connection_.peer_address().to_string(), bound_address(far_.get())->to_string());
  EXPECT_TRUE(connection_.send(frame_of(5)));
  write_far(frame_of(6));  // no process byte precedes it
  ASSERT_TRUE(until([&] { return upcalls_.frames.size() == 1; }));
  EXPECT_EQ(upcalls_.frames[0].number, 6u);
  const uint64_t now = now_ns();
  EXPECT_LE(connection_.last_acknowledged_ns(now), now);
  EXPECT_GE(connection_.last_acknowledged_ns(now), now - 20'000'000'000);
  usleep(50'000);
  const uint64_t later = now_ns();
  EXPECT_LE(connection_.last_acknowledged_ns(later), later - 30'000'000);
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ASSERT_EQ(setsockopt(far_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
  far_.reset();
  ASSERT_TRUE(until([&] { return !upcalls_.ends.empty(); }));
  EXPECT_THAT(upcalls_.ends[0], HasSubstr("reset"));
}

TEST_F(LivenessControlConnection, LocalPeerCountsAsAcknowledgingUntilItDisconnects) {
  start(local_sockets());
  EXPECT_EQ(connection_.last_acknowledged_ns(12345), 12345u);
  far_.reset();
  ASSERT_TRUE(until([&] { return !upcalls_.ends.empty(); }));
  EXPECT_EQ(connection_.last_acknowledged_ns(12345), 0u);
}

}  // namespace
}  // namespace hetcomm::liveness
