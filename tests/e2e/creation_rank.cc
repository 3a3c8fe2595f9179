// Several ranks of a large job, each a thread with its own context, that create one communicator:
//
//   creation_rank FIRST COUNT SIZE
//
// They meet through MASTER_ADDR and MASTER_PORT. The process prints the bytes that its ranks have
// sent and received over sockets, by thread, so that the store of rank 0 has a line of its own.
// Lines on standard input let it continue: after "created" all processes wait for each other. Then
// each rank sends a message to the rank half a job away and receives one.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <hetcomm/hetcomm.h>

namespace {

// --- socket traffic ---

struct Traffic {
  std::string name;  // thread name
  std::atomic<uint64_t> sent{0};
  std::atomic<uint64_t> received{0};
  std::atomic<uint64_t> sends{0};
};

class Meter {
 public:
  static Traffic& own() {
    thread_local Traffic* const traffic = add();
    return *traffic;
  }
  static void print() {
    const std::lock_guard lock(mutex());
    for (Traffic& each : all()) {
      std::printf("traffic %s %llu %llu %llu\n", each.name.c_str(),
                  static_cast<unsigned long long>(each.sent),
                  static_cast<unsigned long long>(each.received),
                  static_cast<unsigned long long>(each.sends));
    }
  }

 private:
  static std::mutex& mutex() {
    static auto* const the_mutex = new std::mutex;
    return *the_mutex;
  }
  static std::list<Traffic>& all() {
    static auto* const list = new std::list<Traffic>;
    return *list;
  }
  static Traffic* add() {
    char name[32] = "";
    pthread_getname_np(pthread_self(), name, sizeof(name));
    const std::lock_guard lock(mutex());
    Traffic& added = all().emplace_back();
    added.name = name;
    std::replace(added.name.begin(), added.name.end(), ' ', '_');
    return &added;
  }
};

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

void count_sent(ssize_t bytes) {
  if (bytes <= 0) return;
  Meter::own().sent += static_cast<uint64_t>(bytes);
  ++Meter::own().sends;
}

void count_received(ssize_t bytes, int flags) {
  if (bytes > 0 && (flags & MSG_PEEK) == 0) Meter::own().received += static_cast<uint64_t>(bytes);
}

}  // namespace

// These replace the C library's functions, for the shared libraries of the process too.
extern "C" {
ssize_t send(int fd, const void* data, size_t size, int flags) {
  static const auto real = next<decltype(&::send)>("send");
  const ssize_t result = real(fd, data, size, flags);
  count_sent(result);
  return result;
}
ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  static const auto real = next<decltype(&::sendmsg)>("sendmsg");
  const ssize_t result = real(fd, message, flags);
  count_sent(result);
  return result;
}
ssize_t recv(int fd, void* data, size_t size, int flags) {
  static const auto real = next<decltype(&::recv)>("recv");
  const ssize_t result = real(fd, data, size, flags);
  count_received(result, flags);
  return result;
}
ssize_t recvmsg(int fd, msghdr* message, int flags) {
  static const auto real = next<decltype(&::recvmsg)>("recvmsg");
  const ssize_t result = real(fd, message, flags);
  count_received(result, flags);
  return result;
}
}

namespace {

using Clock = std::chrono::steady_clock;

void check(hetcomm_status_t status, const char* what) {
  if (status == HETCOMM_OK) return;
  std::printf("FAILED %s: %s: %s\n", what, hetcomm_status_name(status), hetcomm_last_error());
  std::fflush(stdout);
  _exit(1);
}
#define CHECK(call) check((call), #call)

struct Member {
  int rank = 0;
  hetcomm_context_t* context = nullptr;
  hetcomm_bootstrap_t* bootstrap = nullptr;
  hetcomm_communicator_t* communicator = nullptr;
  hetcomm_communicator_t* second = nullptr;  // shares the first one's connections
};

// The variables that give a rank its number are shared by all threads.
void find_bootstrap(Member& member, int size) {
  setenv("RANK", std::to_string(member.rank).c_str(), 1);
  setenv("WORLD_SIZE", std::to_string(size).c_str(), 1);
  CHECK(hetcomm_bootstrap_create_from_environment(member.context, &member.bootstrap));
}

void exchange(Member& member, int size) {
  const int32_t peer = (member.rank + size / 2) % size;
  const int32_t source = (member.rank + size - size / 2) % size;
  int32_t sent = member.rank;
  int32_t received = -1;
  hetcomm_request_t* requests[2];
  CHECK(hetcomm_recv(member.communicator, source, 1, HETCOMM_EXACT_TAG,
                     hetcomm_buffer_host(&received, sizeof(received)), nullptr, &requests[0]));
  CHECK(hetcomm_send(member.communicator, peer, 1, hetcomm_buffer_host(&sent, sizeof(sent)),
                     nullptr, &requests[1]));
  for (hetcomm_request_t* const request : requests) {
    hetcomm_completion_t completion;
    CHECK(hetcomm_request_wait(request, HETCOMM_TIMEOUT_DEFAULT, &completion));
    check(completion.status, completion.text);
  }
  if (received == source) return;
  std::printf("FAILED rank %d has received %d of rank %d\n", member.rank, received, source);
  std::fflush(stdout);
  _exit(1);
}

template <typename Use>
void for_all(std::vector<Member>& members, Use&& use) {
  std::vector<std::thread> threads;
  for (Member& member : members) threads.emplace_back([&] { use(member); });
  for (std::thread& thread : threads) thread.join();
}

uint64_t memory_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::strtoull(line.c_str() + 6, nullptr, 10);
  }
  return 0;
}

void report(const char* what, double seconds) {
  Meter::print();
  std::printf("%s %.3f %llu\n", what, seconds, static_cast<unsigned long long>(memory_kib()));
  std::fflush(stdout);
  std::string line;
  std::getline(std::cin, line);
}

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const int first = std::atoi(argv[1]);
  const int count = std::atoi(argv[2]);
  const int size = std::atoi(argv[3]);
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  std::vector<Member> members(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    Member& member = members[static_cast<size_t>(i)];
    member.rank = first + i;
    CHECK(hetcomm_context_create(nullptr, &member.context));
  }
  for (Member& member : members) find_bootstrap(member, size);
  report("ready", 0);
  const Clock::time_point begin = Clock::now();
  for_all(members, [&](Member& member) {
    CHECK(hetcomm_communicator_create(member.context, member.bootstrap, nullptr,
                                      &member.communicator));
  });
  report("created", since(begin));
  const Clock::time_point first_talk = Clock::now();
  for_all(members, [&](Member& member) { exchange(member, size); });
  report("talked", since(first_talk));
  const Clock::time_point sharing = Clock::now();
  for_all(members, [&](Member& member) {
    hetcomm_communicator_options_t options{};
    options.struct_size = sizeof(options);
    options.name = "second";
    options.share = 1;
    CHECK(hetcomm_communicator_create(member.context, member.bootstrap, &options, &member.second));
  });
  report("shared", since(sharing));
  for_all(members, [&](Member& member) {
    CHECK(hetcomm_communicator_destroy(member.second));
    CHECK(hetcomm_communicator_destroy(member.communicator));
    hetcomm_bootstrap_destroy(member.bootstrap);
    CHECK(hetcomm_context_destroy(member.context));
  });
  std::printf("ended\n");
  return 0;
}
