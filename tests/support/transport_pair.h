// Two ranks of one transport, each driven by a test function: rank 0 ("near") on the test's own
// thread, rank 1 ("far") in its own thread or in a forked process. The two coordinate over a
// channel that is independent of the transport. A side that waits on the channel keeps driving its
// node.
//
//   run_pair(options, [](Side& near) { near.connect(); ... }, [](Side& far) { far.connect(); ...
//   });
//
// A failed expectation on either side fails the test. A side that ends, throws or dies aborts the
// other side's waits.
#pragma once

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "src/net/key.h"
#include "src/system/random.h"
#include "tests/support/transport_node.h"

namespace hetcomm::test {

// Makes fresh credentials for each test, so that concurrent tests never connect to each other.
inline Credentials make_credentials() {
  Credentials credentials;
  Result<Secret> secret = random_secret();
  if (!fill_random(credentials.identity.job).ok() || !secret.ok()) {
    throw Abandoned("no randomness");
  }
  credentials.secret = secret.value();
  return credentials;
}

// One end of a sequenced-packet socket pair.
class Channel {
 public:
  explicit Channel(int fd) : fd_(fd) {}

  template <typename T>
  requires std::is_trivially_copyable_v<T>
  void post(const T& value) { post_bytes(std::as_bytes(std::span(&value, 1))); }
  void post_bytes(ConstByteSpan bytes) {
    if (::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) {
      throw Abandoned("the other side is gone");
    }
  }
  // Receives a packet if one is available, else returns false.
  bool try_take(std::vector<std::byte>& bytes) {
    bytes.resize(kLargest);
    const ssize_t got = recv(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) {
      bytes.resize(static_cast<size_t>(got));
      return true;
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) throw Abandoned("the other side is gone");
    return false;
  }
  void close() { fd_.reset(); }

 private:
  static constexpr size_t kLargest = 16384;
  UniqueFd fd_;
};

enum class Mode : uint8_t { kThreads, kProcesses };

struct PairOptions {
  const TransportFactory& factory;
  std::string settings;
  Mode mode = Mode::kThreads;
  Credentials credentials = make_credentials();
  Credentials far_credentials = credentials;  // different only in tests of the proof
};

// The interface that a side's function uses.
class Side {
 public:
  Side(const PairOptions& options, int rank, Channel& channel)
      : options_(options), rank_(rank), channel_(channel) {
    reset_node();
  }

  int rank() const { return rank_; }
  Node& node() { return *node_; }
  Mode mode() const { return options_.mode; }
  // Replaces the node with a fresh one, as after a restart.
  void reset_node() {
    node_.reset();
    node_ = std::make_unique<Node>(
        Node::Options{options_.factory, options_.settings,
                      rank_ == 0 ? options_.credentials : options_.far_credentials, rank_, 2});
  }

  template <typename T>
  void post(const T& value) {
    channel_.post(value);
  }
  void post_bytes(ConstByteSpan bytes) { channel_.post_bytes(bytes); }
  std::vector<std::byte> take_bytes(uint64_t limit_ns = kPatience) {
    std::vector<std::byte> bytes;
    node_->until(
        "the other side", [&] { return channel_.try_take(bytes); }, limit_ns);
    return bytes;
  }
  template <typename T>
  requires std::is_trivially_copyable_v<T> T take(uint64_t limit_ns = kPatience) {
    const std::vector<std::byte> bytes = take_bytes(limit_ns);
    if (bytes.size() != sizeof(T)) throw Abandoned("the sides do not understand each other");
    T value;
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  bool try_take(std::vector<std::byte>& bytes) { return channel_.try_take(bytes); }
  // Waits without driving the node, so that to its peer the side appears to be computing.
  void take_idle() {
    std::vector<std::byte> bytes;
    const uint64_t deadline = now_ns() + kPatience;
    while (!channel_.try_take(bytes)) {
      if (now_ns() > deadline) throw Abandoned("waited too long for the other side (idle)");
      usleep(100);
    }
  }
  // Waits until both sides have called meet().
  void meet() {
    post('m');
    (void)take<char>();
  }

  // Connects the two sides. Both must call it. The node owns the rail.
  Rail& connect() {
    if (rank_ == 0) {
      const std::vector<std::byte> contact = take_bytes();
      return connect_to(contact);
    }
    const int before = node_->accepts;
    post_bytes(node_->transport().contact());
    node_->until("an accepted connection", [&] { return node_->accepts > before; });
    (void)take<char>();
    return *node_->accepted.at(0);
  }

  // Returns the rail that the last connect() made.
  Rail& rail() { return rank_ == 0 ? *node_->connected.at(1) : *node_->accepted.at(0); }

  // Returns the far process. Only the near side may call it.
  pid_t process() const { return process_; }
  void set_process(pid_t process) { process_ = process; }
  // Kills the far process. Its death then does not fail the test.
  void kill_far() {
    killed_ = true;
    ::kill(process_, SIGKILL);
  }
  bool killed() const { return killed_; }

 private:
  Rail& connect_to(ConstByteSpan contact) {
    const int before = node_->connect_outcomes;
    node_->connected.erase(1);
    node_->connect(1, contact);
    node_->until("the connection", [&] { return node_->connect_outcomes > before; });
    if (!node_->connected.contains(1)) {
      throw Abandoned("connect: " + std::string(node_->connect_failed[1].text()));
    }
    post('c');
    return *node_->connected.at(1);
  }

  const PairOptions& options_;
  int rank_;
  Channel& channel_;
  pid_t process_ = -1;
  bool killed_ = false;
  std::unique_ptr<Node> node_;
};

using SideFunction = std::function<void(Side&)>;

// Zero-initialised memory shared by both processes of a pair.
template <typename T>
class Shared {
 public:
  Shared()
      : memory_(
            mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (memory_ == MAP_FAILED) throw Abandoned("no shared memory");
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { munmap(memory_, sizeof(T)); }
  T* operator->() { return static_cast<T*>(memory_); }
  T& operator*() { return *static_cast<T*>(memory_); }

 private:
  void* memory_;
};

namespace internal {

inline void run_side(const PairOptions& options, int rank, Channel& channel, pid_t process,
                     const SideFunction& function, bool* killed = nullptr) {
  try {
    Side side(options, rank, channel);
    side.set_process(process);
    function(side);
    if (killed != nullptr) *killed = side.killed();
  } catch (const Abandoned& reason) {
    ADD_FAILURE() << "rank " << rank << ": " << reason.what();
  }
  channel.close();
}

// The far process's final report. It shows the failure even if the process's own output is lost.
struct FarEnd {
  bool ran;  // its function has returned
  char failure[1000];
};

// Returns this process's first failed expectation.
inline std::string first_failure() {
  const auto* result = ::testing::UnitTest::GetInstance()->current_test_info()->result();
  for (int i = 0; i < result->total_part_count(); ++i) {
    const auto& part = result->GetTestPartResult(i);
    if (!part.failed()) continue;
    return std::string(part.file_name() == nullptr ? "?" : part.file_name()) + ":" +
           std::to_string(part.line_number()) + ": " + part.message();
  }
  return "";
}

// Runs the far side in this process. Never returns.
[[noreturn]] inline void far_process(const PairOptions& options, Channel& channel,
                                     const SideFunction& far, FarEnd& end) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(120);
  run_side(options, 1, channel, -1, far);
  end.ran = true;
  first_failure().copy(end.failure, sizeof(end.failure) - 1);
  fflush(nullptr);
  _exit(::testing::Test::HasFailure() ? 1 : 0);
}

inline void reap(pid_t child, bool killed, const FarEnd& end) {
  const uint64_t deadline = now_ns() + kPatience;
  int status = 0;
  pid_t done = 0;
  while ((done = waitpid(child, &status, WNOHANG)) == 0 && now_ns() < deadline) usleep(200);
  if (done == 0) {
    ADD_FAILURE() << "the far process does not end";
    ::kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return;
  }
  if (killed) return;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
      << "the far process failed (status " << status << ", "
      << (end.ran ? "it ran to its end" : "it did not run to its end") << "): " << end.failure;
}

}  // namespace internal

// Runs both sides to completion.
inline void run_pair(const PairOptions& options, const SideFunction& near,
                     const SideFunction& far) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  Channel near_end(ends[0]);
  Channel far_end(ends[1]);
  if (options.mode == Mode::kThreads) {
    std::thread thread([&] { internal::run_side(options, 1, far_end, -1, far); });
    internal::run_side(options, 0, near_end, -1, near);
    thread.join();
    return;
  }
  Shared<internal::FarEnd> end;
  fflush(nullptr);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    near_end.close();
    internal::far_process(options, far_end, far, *end);
  }
  far_end.close();
  bool killed = false;
  internal::run_side(options, 0, near_end, child, near, &killed);
  internal::reap(child, killed, *end);
}

}  // namespace hetcomm::test
