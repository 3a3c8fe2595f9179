// A shm job in which one rank has the secret and violates every rule. Each rank is a process. Its
// library is the real one, but its traffic over local sockets is modified here.
//
//   * memory that does not grant all rights, and memory of another communicator, is never handed
//     over: no forged right, guessed key or guessed id reads or writes it, and the owner names the
//     rank that tried;
//   * with HETCOMM_SHM_MAP=off nothing is handed over, so no peer keeps memory after an unregister;
//   * a rank that replaces every descriptor it passes by a full, blocking event counter, or adds
//     one, makes no other rank hang;
//   * a rank that sends descriptors one byte at a time costs its peer one descriptor;
//   * ranks of two users communicate over shm only if HETCOMM_SHM_USERS allows it, and the log
//     names the refused users.
#include <fcntl.h>
#include <grp.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>

#include "tests/conformance/capi/job.h"
#include "tests/support/descriptors.h"

namespace hetcomm_test {
namespace {

// This process modifies the library's local sockets in one of these ways.
enum class Evil { kNone, kKeep, kReplace, kAdd, kDrip };
Evil evil = Evil::kNone;
std::vector<int> kept;  // kKeep: copies of all received descriptors
int full_counter = -1;  // kReplace, kAdd: passed in place of every descriptor, or with it
constexpr size_t kSetupBytes = 256;  // size of both set-up messages

void become(Evil what) {
  evil = what;
  full_counter = eventfd(0, EFD_CLOEXEC);
  const uint64_t most = 0xfffffffffffffffe;
  if (write(full_counter, &most, sizeof(most)) != sizeof(most)) std::abort();
}

bool passes_descriptors(const msghdr* message) {
  for (cmsghdr* at = CMSG_FIRSTHDR(message); at != nullptr;
       at = CMSG_NXTHDR(const_cast<msghdr*>(message), at)) {
    if (at->cmsg_level == SOL_SOCKET && at->cmsg_type == SCM_RIGHTS) return true;
  }
  return false;
}

ssize_t raw_send(int socket, const msghdr* message, int flags) {
  return syscall(SYS_sendmsg, socket, message, flags);
}

// Sends |bytes|, together with |count| copies of the full counter.
ssize_t send_with_counters(int socket, const iovec& bytes, size_t count, int flags) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * 2)> control{};
  const std::array<int, 2> counters{full_counter, full_counter};
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(&bytes);
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int) * count);
  std::memcpy(CMSG_DATA(header), counters.data(), sizeof(int) * count);
  return raw_send(socket, &message, flags);
}

// Sends all but the last byte of |bytes| one by one, two descriptors with each, for as long as the
// peer accepts them.
ssize_t drip(int socket, const iovec& bytes) {
  auto* at = static_cast<char*>(bytes.iov_base);
  for (size_t i = 0; i + 1 < bytes.iov_len;) {
    const ssize_t sent = send_with_counters(socket, {at + i, 1}, 2, MSG_NOSIGNAL);
    if (sent == 1) {
      ++i;
    } else if (errno == EAGAIN) {
      usleep(1000);
    } else {
      break;
    }
  }
  return static_cast<ssize_t>(bytes.iov_len);
}

using hetcomm::test::open_descriptors;

// --- the log of all ranks --------------------------------------------------------------------

// A log in memory that all processes of a test share.
struct SharedLog {
  std::atomic<size_t> used{0};
  std::array<char, 1 << 20> text{};
};
SharedLog* shared_log = nullptr;

void keep_line(void* /*rank*/, int32_t /*level*/, const char* line) {
  const std::string text = std::string(line) + "\n";
  const size_t at = shared_log->used.fetch_add(text.size());
  if (at + text.size() < shared_log->text.size()) {
    std::memcpy(shared_log->text.data() + at, text.data(), text.size());
  }
}

// Returns whether rank |rank| has logged a line with all |parts|.
bool has_logged(int32_t rank, const std::vector<std::string>& parts) {
  const std::string all(shared_log->text.data());
  const std::string name = ":" + std::to_string(rank) + " pid ";
  for (size_t from = 0; from < all.size();) {
    const size_t end = std::min(all.find('\n', from), all.size());
    const std::string line = all.substr(from, end - from);
    from = end + 1;
    if (line.find(name) != std::string::npos &&
        std::all_of(parts.begin(), parts.end(), [&](const std::string& part) {
          return line.find(part) != std::string::npos;
        })) {
      return true;
    }
  }
  return false;
}

class Trust : public ::testing::Test {
 protected:
  void SetUp() override {
    void* const memory =
        mmap(nullptr, sizeof(SharedLog), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    shared_log = new (memory) SharedLog;
    test_case_.name = "shm";
    test_case_.transports = "shm";
    test_case_.processes = true;
    test_case_.thread_progress = true;
    test_case_.log = keep_line;
  }
  void TearDown() override {
    if (HasFailure()) std::printf("%s", shared_log->text.data());
    munmap(shared_log, sizeof(SharedLog));
  }
  // Makes rank |rank| hostile from its first connection.
  void make_evil(int32_t rank, Evil what) {
    test_case_.prepare = [rank, what](int32_t each) {
      if (each == rank) become(what);
    };
  }

  CapiCase test_case_;
};

// --- registered memory -----------------------------------------------------------------------

constexpr uint64_t kBytes = 19 << 12;  // a number that appears nowhere else in exported bytes
constexpr uint64_t kExportTag = 7;

using Bytes = std::vector<std::byte>;

struct Owned {
  hetcomm_memory_t* memory = nullptr;
  char* address = nullptr;

  Owned(Member& me, const char* text) {
    EXPECT_EQ(hetcomm_memory_allocate(me.context(), 0, kBytes, &memory), HETCOMM_OK);
    void* at = nullptr;
    EXPECT_EQ(hetcomm_memory_address(memory, &at), HETCOMM_OK);
    address = static_cast<char*>(at);
    std::strcpy(address, text);
  }
  Bytes share(hetcomm_communicator_t* communicator, uint32_t access) const {
    EXPECT_EQ(hetcomm_memory_register(memory, communicator, access, 0), HETCOMM_OK)
        << hetcomm_last_error();
    Bytes bytes(HETCOMM_EXPORT_MAX_BYTES);
    size_t size = 0;
    EXPECT_EQ(hetcomm_memory_export(memory, bytes.size(), bytes.data(), &size), HETCOMM_OK);
    bytes.resize(size);
    return bytes;
  }
  void unregister() const {
    EXPECT_EQ(hetcomm_memory_unregister(memory, kPatienceNs), HETCOMM_OK) << hetcomm_last_error();
  }
  void free() const {
    unregister();
    EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_OK);
  }
};

void give(Member& me, int32_t rank, const Bytes& bytes) {
  EXPECT_EQ(finish(me.send(rank, kExportTag, bytes.data(), bytes.size())).status, HETCOMM_OK);
}

Bytes take(Member& me, int32_t rank) {
  Bytes bytes(HETCOMM_EXPORT_MAX_BYTES);
  const Outcome outcome = finish(me.recv(rank, kExportTag, bytes.data(), bytes.size()));
  EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
  bytes.resize(outcome.bytes_received);
  return bytes;
}

// Returns |exported| with all rights, and with |key| as the only key, for shm. The length of the
// memory is followed by a byte of rights, a byte for its kind, and the keys.
Bytes forge(Bytes exported, uint64_t key) {
  const auto* length_bytes = reinterpret_cast<const std::byte*>(&kBytes);
  const auto at =
      std::search(exported.begin(), exported.end(), length_bytes, length_bytes + sizeof(kBytes));
  const auto rights = static_cast<size_t>(at - exported.begin()) + sizeof(kBytes);
  if (rights + 2 > exported.size()) std::abort();
  exported[rights] = std::byte{HETCOMM_ACCESS_ALL};
  exported.resize(rights + 2);
  const auto append = [&](const void* data, size_t size) {
    const auto* bytes = static_cast<const std::byte*>(data);
    exported.insert(exported.end(), bytes, bytes + size);
  };
  const uint8_t count = 1;
  const uint8_t shm = 1;  // the owner's second transport, after self
  const std::array<uint64_t, 3> words{key, 0, 0};
  append(&count, 1);
  append(&shm, 1);
  append(words.data(), sizeof(words));
  return exported;
}

struct Attempt {
  hetcomm_status_t get, put, add;
  std::string found;
};

// Tries a get, a put and an atomic. Returns their outcomes.
Attempt attempt(Member& me, const Bytes& exported) {
  Attempt result{};
  hetcomm_remote_memory_t* remote = nullptr;
  EXPECT_EQ(hetcomm_memory_import(me.communicator(), exported.data(), exported.size(), &remote),
            HETCOMM_OK)
      << hetcomm_last_error();
  if (remote == nullptr) return result;
  hetcomm_request_t* request = nullptr;
  std::array<char, 64> read{};
  EXPECT_EQ(
      hetcomm_get(remote, 0, hetcomm_buffer_host(read.data(), read.size()), nullptr, &request),
      HETCOMM_OK);
  result.get = finish(request).status;
  result.found.assign(read.data(), strnlen(read.data(), read.size()));
  const std::array<char, 64> write{"overwritten"};
  EXPECT_EQ(
      hetcomm_put(remote, 0, hetcomm_buffer_host(write.data(), write.size()), nullptr, &request),
      HETCOMM_OK);
  result.put = finish(request).status;
  uint64_t before = 0;
  EXPECT_EQ(hetcomm_fetch_add(remote, 128, 1, &before, nullptr, &request), HETCOMM_OK);
  result.add = finish(request).status;
  EXPECT_EQ(hetcomm_remote_memory_destroy(remote), HETCOMM_OK);
  return result;
}

uint64_t operations_without_the_owner(Member& me, int32_t rank) {
  hetcomm_counters_t counters[4] = {{.struct_size = sizeof(counters[0])}};
  size_t count = 0;
  EXPECT_EQ(hetcomm_communicator_counters(me.communicator(), rank, 4, counters, &count),
            HETCOMM_OK);
  uint64_t direct = 0;
  for (size_t i = 0; i < count; ++i) direct += counters[i].direct;
  return direct;
}

void own_memories(Member& me, hetcomm_communicator_t* sub) {
  hetcomm_communicator_t* const world = me.communicator();
  const Owned put_only(me, "may be written only");
  const Owned get_only(me, "may be read only");
  const Owned no_atomics(me, "may not be counted in");
  const Owned foreign(me, "of the other communicator");
  const Owned hidden(me, "private start of an allocation");
  hetcomm_memory_t* part = nullptr;
  ASSERT_EQ(hetcomm_memory_wrap(me.context(), 0, hidden.address + 16384, 4096, &part), HETCOMM_OK);
  ASSERT_EQ(hetcomm_memory_register(part, world, HETCOMM_ACCESS_ALL, 0), HETCOMM_OK);
  give(me, 2, put_only.share(world, HETCOMM_ACCESS_PUT));
  give(me, 2, get_only.share(world, HETCOMM_ACCESS_GET));
  give(me, 2, no_atomics.share(world, HETCOMM_ACCESS_PUT | HETCOMM_ACCESS_GET));
  give(me, 2, foreign.share(sub, HETCOMM_ACCESS_ALL));
  me.meet();  // rank 2 has tried
  EXPECT_STREQ(foreign.address, "of the other communicator");
  EXPECT_STREQ(get_only.address, "may be read only");
  EXPECT_STREQ(hidden.address, "private start of an allocation");
  for (const Owned* each : {&put_only, &get_only, &no_atomics, &foreign, &hidden}) {
    EXPECT_TRUE(
        std::all_of(each->address + 128, each->address + 136, [](char c) { return c == 0; }));
  }
  EXPECT_EQ(hetcomm_memory_unregister(part, kPatienceNs), HETCOMM_OK);
  EXPECT_EQ(hetcomm_memory_destroy(part), HETCOMM_OK);
  EXPECT_EQ(hetcomm_memory_destroy(hidden.memory), HETCOMM_OK);
  for (const Owned* each : {&put_only, &get_only, &no_atomics, &foreign}) each->free();
}

void try_memories(Member& me) {
  const Bytes put_only = take(me, 0);
  const Bytes get_only = take(me, 0);
  const Bytes no_atomics = take(me, 0);
  const Bytes foreign = take(me, 0);
  // Tries each memory with each possible key, as often as a mapping takes to arrive.
  for (int round = 0; round < 3; ++round) {
    for (uint64_t key = 0; key < 12; ++key) {
      const Attempt first = attempt(me, forge(put_only, key));
      EXPECT_EQ(first.get, HETCOMM_PERMISSION_DENIED) << first.found;
      EXPECT_EQ(first.put, HETCOMM_OK);
      EXPECT_EQ(first.add, HETCOMM_PERMISSION_DENIED);
      const Attempt second = attempt(me, forge(get_only, key));
      EXPECT_EQ(second.get, HETCOMM_OK);
      EXPECT_EQ(second.put, HETCOMM_PERMISSION_DENIED);
      EXPECT_EQ(second.add, HETCOMM_PERMISSION_DENIED);
      EXPECT_EQ(attempt(me, forge(no_atomics, key)).add, HETCOMM_PERMISSION_DENIED);
      const Attempt third = attempt(me, forge(foreign, key));
      EXPECT_EQ(third.get, HETCOMM_PERMISSION_DENIED) << third.found;
      EXPECT_EQ(third.put, HETCOMM_PERMISSION_DENIED);
      EXPECT_EQ(third.add, HETCOMM_PERMISSION_DENIED);
    }
    // These are the memory's real bytes, as another rank may have forwarded them.
    const Attempt leaked = attempt(me, foreign);
    EXPECT_EQ(leaked.get, HETCOMM_PERMISSION_DENIED) << leaked.found;
    EXPECT_EQ(leaked.put, HETCOMM_PERMISSION_DENIED);
    EXPECT_TRUE(me.until([&] { return has_logged(0, {"shm: rank 2", "does not belong to"}); }));
  }
  EXPECT_EQ(operations_without_the_owner(me, 0), 0u);
  EXPECT_TRUE(kept.empty()) << "a file was handed over";
  me.meet();
}

TEST_F(Trust, MemoryIsPassedOnlyToMembersWithAllRights) {
  make_evil(2, Evil::kKeep);
  run_job(test_case_, 3, [](Member& me) {
    hetcomm_communicator_t* sub = nullptr;
    ASSERT_EQ(
        hetcomm_communicator_split(me.communicator(), me.rank() == 2 ? 1 : 0, me.rank(), &sub),
        HETCOMM_OK);
    if (me.rank() == 0) own_memories(me, sub);
    if (me.rank() == 1) me.meet();
    if (me.rank() == 2) try_memories(me);
    me.meet();
    EXPECT_EQ(hetcomm_communicator_destroy(sub), HETCOMM_OK);
  });
  const std::string user = "of user " + std::to_string(geteuid());
  EXPECT_TRUE(has_logged(0, {"shm: rank 2", "process", user, "names no memory"}));
  EXPECT_TRUE(has_logged(0, {"shm: rank 2", "process", user, "does not belong to"}));
  EXPECT_TRUE(has_logged(0, {"rank 2 is refused memory", "that access was not granted"}));
  EXPECT_TRUE(has_logged(0, {"rank 2 is refused memory", "does not belong to"}));
}

// The control case: with all rights a file is handed over, and the test detects it. Without
// mappings no file is handed over, and the peer keeps nothing after an unregister.
TEST_F(Trust, NoMemoryIsPassedIfMappingIsDisabled) {
  for (const bool maps : {true, false}) {
    test_case_.settings = maps ? "" : "SHM_MAP=off;";
    make_evil(1, Evil::kKeep);
    run_job(test_case_, 2, [&](Member& me) {
      if (me.rank() == 0) {
        const Owned all(me, "all of it");
        give(me, 1, all.share(me.communicator(), HETCOMM_ACCESS_ALL));
        me.meet();
        all.free();
      } else {
        const Bytes exported = take(me, 0);
        const auto use = [&] {
          const Attempt got = attempt(me, exported);
          EXPECT_EQ(got.get, HETCOMM_OK);
          EXPECT_EQ(got.put, HETCOMM_OK);
          EXPECT_EQ(got.add, HETCOMM_OK);
        };
        if (maps) {
          EXPECT_TRUE(me.until([&] {
            use();
            return operations_without_the_owner(me, 0) > 0;
          }));
        } else {
          for (int i = 0; i < 50; ++i) use();
          EXPECT_EQ(operations_without_the_owner(me, 0), 0u);
        }
        EXPECT_EQ(kept.size(), maps ? 1u : 0u);
        me.meet();
      }
      me.meet();
    });
  }
}

// --- descriptors over the set-up socket ------------------------------------------------------

// Expects that sends from the honest rank end, with or without the peer. Between them the rank has
// time to fall asleep.
void send_and_end(Member& me, int32_t peer) {
  char letter = 'a';
  for (int i = 0; i < 50; ++i) {
    const uint64_t start = clock_ns();
    const auto options = with_timeout(kSec / 2);
    hetcomm_request_t* request = nullptr;
    if (hetcomm_send(me.communicator(), peer, 1, hetcomm_buffer_host(&letter, 1), &options,
                     &request) == HETCOMM_OK) {
      (void)finish(request);
    }
    EXPECT_LT(clock_ns() - start, 5 * kSec) << "a call with a deadline did not return";
    usleep(1000);
  }
}

TEST_F(Trust, BlockingDoorbellDoesNotHangAPeer) {
  test_case_.settings = "SPIN_TIME=0;";
  for (const Evil what : {Evil::kReplace, Evil::kAdd}) {
    for (const int32_t bad : {0, 1}) {
      make_evil(bad, what);
      run_job(test_case_, 2, [&](Member& me) {
        me.expect_ruin();
        if (me.rank() != bad) {
          send_and_end(me, bad);
          me.store().word(0) = 1;
        } else {
          // The rank receives, so it sleeps and is woken.
          char letter = 0;
          while (me.store().word(0) == 0) {
            const auto options = with_timeout(kSec / 5);
            hetcomm_request_t* request = nullptr;
            if (hetcomm_recv(me.communicator(), 1 - bad, 1, HETCOMM_EXACT_TAG,
                             hetcomm_buffer_host(&letter, 1), &options, &request) == HETCOMM_OK) {
              (void)finish(request);
            } else {
              usleep(1000);
            }
          }
        }
      });
    }
  }
  // A counter is not memory, and the acceptor has no memory to pass.
  EXPECT_TRUE(has_logged(1, {"rank 0", "process", "of user", "not sealed"}));
  EXPECT_TRUE(has_logged(0, {"rank 1", "process", "of user", "more descriptors"}));
}

TEST_F(Trust, DescriptorsSentByteByByteAreLimited) {
  for (const int32_t bad : {0, 1}) {
    make_evil(bad, Evil::kDrip);
    run_job(test_case_, 2, [&](Member& me) {
      me.expect_ruin();
      char letter = 'a';
      hetcomm_request_t* request = nullptr;
      if (me.rank() == bad) {
        const auto options = with_timeout(5 * kSec);
        ASSERT_EQ(hetcomm_send(me.communicator(), 1 - bad, 1, hetcomm_buffer_host(&letter, 1),
                               &options, &request),
                  HETCOMM_OK);
        EXPECT_TRUE(me.until([&] { return me.store().word(0) != 0; }));
        (void)finish(request);
        return;
      }
      const size_t before = open_descriptors();
      size_t most = before;
      if (bad == 1) {  // the lower rank connects
        const auto options = with_timeout(5 * kSec);
        ASSERT_EQ(hetcomm_send(me.communicator(), bad, 1, hetcomm_buffer_host(&letter, 1), &options,
                               &request),
                  HETCOMM_OK);
      }
      const auto refused = [&] {
        most = std::max(most, open_descriptors());
        return has_logged(
            me.rank(), {"rank " + std::to_string(bad), "process", "of user", "more descriptors"});
      };
      EXPECT_TRUE(me.until(refused));
      // These descriptors belong to the connection itself: socket, process, memory, control plane.
      EXPECT_LE(most, before + 10);
      me.store().word(0) = 1;
      if (request != nullptr) (void)finish(request);
    });
  }
}

// --- two users -------------------------------------------------------------------------------

void become_another_user() {
  constexpr uid_t kOther = 65534;
  if (setgroups(0, nullptr) != 0 || setresgid(kOther, kOther, kOther) != 0 ||
      setresuid(kOther, kOther, kOther) != 0) {
    _exit(99);
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
}

class TwoUsers : public Trust {
 protected:
  void SetUp() override {
    Trust::SetUp();
    if (geteuid() != 0) GTEST_SKIP() << "only root can act as two users";
  }
  void give_to_other_user(int32_t rank) {
    test_case_.prepare = [rank](int32_t each) {
      if (each == rank) become_another_user();
    };
  }
};

TEST_F(TwoUsers, ShmRefusesAnotherUserOnBothSides) {
  test_case_.settings = "DETECTION_TIME=2s;";
  for (const int32_t other : {0, 1}) {
    give_to_other_user(other);
    run_job(test_case_, 2, [&](Member& me) {
      me.expect_ruin();
      char letter = 'a';
      const auto options = with_timeout(4 * kSec);
      hetcomm_request_t* request = me.rank() == 0
                                       ? me.send(1, 1, &letter, 1, &options)
                                       : me.recv(0, 1, &letter, 1, HETCOMM_EXACT_TAG, &options);
      const Outcome outcome = finish(request);
      EXPECT_NE(outcome.status, HETCOMM_OK);
      if (me.rank() == 0) {
        EXPECT_NE(outcome.text.find("runs as user"), std::string::npos) << outcome.text;
      }
      EXPECT_TRUE(me.meet_quietly());
    });
    EXPECT_TRUE(has_logged(0, {"process", other == 1 ? "runs as user 65534" : "runs as user 0"}));
  }
}

TEST_F(TwoUsers, AnotherUserConnectsOverAnotherTransport) {
  test_case_.transports = "shm,tcp";
  give_to_other_user(1);
  run_job(test_case_, 2, [&](Member& me) {
    char letter = 'a';
    hetcomm_request_t* request =
        me.rank() == 0 ? me.send(1, 1, &letter, 1) : me.recv(0, 1, &letter, 1);
    EXPECT_EQ(finish(request).status, HETCOMM_OK);
    me.meet();
  });
}

TEST_F(TwoUsers, AnotherUserConnectsOverShmIfAllowed) {
  test_case_.settings = "SHM_USERS=any;";
  for (const int32_t other : {0, 1}) {
    give_to_other_user(other);
    run_job(test_case_, 2, [&](Member& me) {
      std::vector<std::byte> bytes(300'000, std::byte{7});
      hetcomm_request_t* request = me.rank() == 0 ? me.send(1, 1, bytes.data(), bytes.size())
                                                  : me.recv(0, 1, bytes.data(), bytes.size());
      EXPECT_EQ(finish(request).status, HETCOMM_OK);
      me.meet();
    });
  }
}

}  // namespace
}  // namespace hetcomm_test

// The library calls these functions in place of the C library's.

using hetcomm_test::evil;
using hetcomm_test::Evil;

extern "C" ssize_t recvmsg(int socket, msghdr* message, int flags) {
  const ssize_t got = syscall(SYS_recvmsg, socket, message, flags);
  if (evil != Evil::kKeep || got <= 0) return got;
  for (cmsghdr* at = CMSG_FIRSTHDR(message); at != nullptr; at = CMSG_NXTHDR(message, at)) {
    if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(at), sizeof(fd));
    // The connection's own memory is meant to be shared. Only other memory is kept.
    std::array<char, 64> target{};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    (void)!readlink(link.c_str(), target.data(), target.size() - 1);
    if (std::strstr(target.data(), "hetcomm-memory") != nullptr) {
      hetcomm_test::kept.push_back(dup(fd));
    }
  }
  return got;
}

extern "C" ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  using namespace hetcomm_test;
  const bool passes = evil != Evil::kNone && passes_descriptors(message);
  const bool sets_up = message->msg_iovlen == 1 && message->msg_iov[0].iov_len == kSetupBytes;
  if (evil == Evil::kReplace && passes) {
    return send_with_counters(socket, message->msg_iov[0], 1, flags);
  }
  if (evil == Evil::kAdd && sets_up) {
    return send_with_counters(socket, message->msg_iov[0], passes ? 2 : 1, flags);
  }
  if (evil == Evil::kDrip && sets_up) return drip(socket, message->msg_iov[0]);
  return raw_send(socket, message, flags);
}
