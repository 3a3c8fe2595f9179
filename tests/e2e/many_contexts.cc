// 1,000 contexts in one process, in groups of ten ranks, each rank connected to two others. Over
// one transport (argument 1) it proves that they connect within the limit, use little memory per
// connection while idle, and use no measurable CPU while idle.
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <hetcomm/hetcomm.h>

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kGroupSize = 10;

void check(hetcomm_status_t status, const char* what) {
  if (status == HETCOMM_OK) return;
  std::fprintf(stderr, "%s: %s: %s\n", what, hetcomm_status_name(status), hetcomm_last_error());
  _exit(1);
}
#define CHECK(call) check((call), #call)

// The ranks' meeting point: a map with a blocking get.
class Store {
 public:
  void put(const std::string& key, std::string value) {
    const std::lock_guard lock(mutex_);
    values_[key] = std::move(value);
    changed_.notify_all();
  }
  bool get(const std::string& key, uint64_t timeout_ns, std::string* value) {
    std::unique_lock lock(mutex_);
    const bool there = changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns),
                                         [&] { return values_.count(key) != 0; });
    if (there) *value = values_[key];
    return there;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

hetcomm_status_t put(void* store, const char* key, const void* value, size_t size) {
  static_cast<Store*>(store)->put(key, std::string(static_cast<const char*>(value), size));
  return HETCOMM_OK;
}

hetcomm_status_t get(void* store, const char* key, void* value, size_t* inout_size,
                     uint64_t timeout_ns) {
  std::string found;
  if (!static_cast<Store*>(store)->get(key, timeout_ns, &found)) return HETCOMM_TIMED_OUT;
  if (found.size() <= *inout_size && !found.empty()) std::memcpy(value, found.data(), found.size());
  *inout_size = found.size();
  return HETCOMM_OK;
}

struct Member {
  hetcomm_context_t* context = nullptr;
  hetcomm_bootstrap_t* bootstrap = nullptr;
  hetcomm_communicator_t* communicator = nullptr;
};

void wait_ok(hetcomm_request_t* request) {
  hetcomm_completion_t completion;
  CHECK(hetcomm_request_wait(request, 0, &completion));
  check(completion.status, completion.text);
}

void join_group(Member& member, Store& store, int rank, const std::string& settings) {
  hetcomm_context_options_t options{};
  options.struct_size = sizeof(options);
  options.settings = settings.c_str();
  CHECK(hetcomm_context_create(&options, &member.context));
  hetcomm_bootstrap_options_t bootstrap{};
  bootstrap.struct_size = sizeof(bootstrap);
  bootstrap.rank = rank;
  bootstrap.size = kGroupSize;
  bootstrap.put = put;
  bootstrap.get = get;
  bootstrap.user_data = &store;
  CHECK(hetcomm_bootstrap_create_from_callbacks(member.context, &bootstrap, &member.bootstrap));
  CHECK(
      hetcomm_communicator_create(member.context, member.bootstrap, nullptr, &member.communicator));
  // Exchanges a byte with the neighbours on both sides: two connections per rank.
  char out = 'x';
  char in[2];
  std::vector<hetcomm_request_t*> requests(4);
  for (size_t side = 0; side < 2; ++side) {
    const int peer = (rank + (side == 0 ? 1 : kGroupSize - 1)) % kGroupSize;
    CHECK(hetcomm_recv(member.communicator, peer, 1, 0, hetcomm_buffer_host(&in[side], 1), nullptr,
                       &requests[side]));
    CHECK(hetcomm_send(member.communicator, peer, 1, hetcomm_buffer_host(&out, 1), nullptr,
                       &requests[side + 2]));
  }
  for (hetcomm_request_t* request : requests) wait_ok(request);
}

// Returns the private and shared memory of this process in KiB.
double memory_kib() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("Pss:", 0) == 0) return std::strtod(line.c_str() + 4, nullptr);
  }
  return 0;
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

}  // namespace

int main(int argc, char** argv) {
  alarm(150);
  const std::string transport = argc > 1 ? argv[1] : "tcp";
  const int contexts = argc > 2 ? std::atoi(argv[2]) : 1000;
  const double limit_s = argc > 3 ? std::atof(argv[3]) : 10;
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  const double before_kib = memory_kib();
  const auto start = Clock::now();
  std::vector<Member> members(static_cast<size_t>(contexts));
  std::vector<std::unique_ptr<Store>> stores;
  for (int first = 0; first < contexts; first += kGroupSize) {
    Store& store = *stores.emplace_back(std::make_unique<Store>());
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kGroupSize; ++rank) {
      threads.emplace_back([&, rank] {
        join_group(members[static_cast<size_t>(first + rank)], store, rank,
                   "TRANSPORTS=" + transport);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  const double connect_s = std::chrono::duration<double>(Clock::now() - start).count();
  size_t connections = 0;
  for (const Member& member : members) {
    for (int peer = 0; peer < kGroupSize; ++peer) {
      size_t count = 0;
      CHECK(hetcomm_communicator_counters(member.communicator, peer, 0, nullptr, &count));
      connections += count;
    }
  }
  const double kib = (memory_kib() - before_kib) / static_cast<double>(connections);
  const double cpu_before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::seconds(2));
  const double cpu = (cpu_seconds() - cpu_before) / 2;
  std::printf("%s: %d contexts, %zu connection ends in %.2f s, %.1f KiB each, idle %.2f %% CPU\n",
              transport.c_str(), contexts, connections, connect_s, kib, cpu * 100);
  // Each context has a control thread, which sends its neighbours ten signs of life per detection
  // time.
  const bool good = connect_s < limit_s && kib < 128 && cpu < 0.3;
  std::fflush(stdout);
  // The kernel closes the rest.
  _exit(good ? 0 : 1);
}
