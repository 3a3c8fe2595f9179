// A rank that performs every kind of operation once in an environment that denies it a resource or
// a system call (surroundings_test.py):
//
//   surroundings_rank [refuse ERRNO CALL | limit NAME VALUE]...
//
// CALL: a system call of system_calls.def, or "socket:AF_UNIX" for sockets of one family. NAME:
// fsize, nofile, memlock, as, data, stack or nproc. VALUE: a number, or +N for N more than the
// current use. Both apply from the first call of the library on, so they do not affect the start of
// the process.
//
// Prints "ok", or "FAILED what: status: text" and exits with status 1. Received data is checked
// byte by byte. A getpgid() marks in a trace where the library's own calls begin.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include <hetcomm/hetcomm.h>

#include "tests/e2e/check.h"

namespace {

constexpr uint64_t kSecond = 1'000'000'000;

// --- the surroundings ---

struct Call {
  const char* name;
  int number;
};

constexpr Call kCalls[] = {
#define HETCOMM_CALL(name, expectation, reason) {#name, SYS_##name},
#include "tests/e2e/system_calls.def"
#undef HETCOMM_CALL
};

int errno_of(std::string_view name) {
  if (name == "EPERM") return EPERM;
  if (name == "ENOSYS") return ENOSYS;
  if (name == "EAFNOSUPPORT") return EAFNOSUPPORT;
  if (name == "EACCES") return EACCES;
  std::printf("no such error\n");
  std::exit(2);
}

int family_of(std::string_view name) {
  if (name == "AF_UNIX") return AF_UNIX;
  if (name == "AF_INET6") return AF_INET6;
  if (name == "AF_NETLINK") return AF_NETLINK;
  std::printf("no such family\n");
  std::exit(2);
}

int number_of(std::string_view name) {
  for (const Call& call : kCalls) {
    if (name == call.name) return call.number;
  }
  std::printf("no such call\n");
  std::exit(2);
}

// System calls that are refused from apply() on.
class Filter {
 public:
  void refuse(int error, const std::string& call) {
    constexpr std::string_view kSocket = "socket:";
    const uint32_t answer = SECCOMP_RET_ERRNO | static_cast<uint32_t>(error);
    load(offsetof(seccomp_data, nr));
    if (call.starts_with(kSocket)) {
      const int family = family_of(std::string_view(call).substr(kSocket.size()));
      skip_unless(SYS_socket, 3);
      load(offsetof(seccomp_data, args));
      skip_unless(family, 1);
    } else {
      skip_unless(number_of(call), 1);
    }
    code_.push_back(BPF_STMT(BPF_RET | BPF_K, answer));
  }
  void apply() {
    if (code_.empty()) return;
    code_.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    sock_fprog program{.len = static_cast<unsigned short>(code_.size()), .filter = code_.data()};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
      std::printf("no seccomp: %s\n", std::strerror(errno));
      std::exit(77);
    }
  }

 private:
  void load(size_t offset) {
    code_.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)));
  }
  void skip_unless(int value, uint8_t count) {
    code_.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(value), 0, count));
  }

  std::vector<sock_filter> code_;
};

// Returns the bytes of address space or data that this process uses now.
rlim_t used_now(int resource) {
  if (resource != RLIMIT_AS && resource != RLIMIT_DATA) return 0;
  std::ifstream file("/proc/self/statm");
  rlim_t pages[6] = {};
  for (rlim_t& each : pages) file >> each;
  return (resource == RLIMIT_AS ? pages[0] : pages[5]) * 4096;
}

void set_limit(std::string_view name, const std::string& value) {
  const struct {
    std::string_view name;
    decltype(RLIMIT_AS) resource;
  } known[] = {{"fsize", RLIMIT_FSIZE}, {"nofile", RLIMIT_NOFILE}, {"memlock", RLIMIT_MEMLOCK},
               {"as", RLIMIT_AS},       {"data", RLIMIT_DATA},     {"stack", RLIMIT_STACK},
               {"nproc", RLIMIT_NPROC}};
  for (const auto& each : known) {
    if (each.name != name) continue;
    rlim_t most = std::strtoull(value.c_str(), nullptr, 10);
    if (value.starts_with('+')) most += used_now(static_cast<int>(each.resource));
    const rlimit limit{most, most};
    if (setrlimit(each.resource, &limit) == 0) return;
    std::printf("no such limit: %s\n", std::strerror(errno));
    std::exit(77);
  }
  std::printf("no such limit\n");
  std::exit(2);
}

void make_surroundings(int argc, char** argv) {
  Filter filter;
  for (int i = 1; i + 2 < argc; i += 3) {
    if (std::string_view(argv[i]) == "refuse") {
      filter.refuse(errno_of(argv[i + 1]), argv[i + 2]);
    } else {
      set_limit(argv[i + 1], argv[i + 2]);
    }
  }
  filter.apply();
}

// --- the operations ---

hetcomm_context_t* context = nullptr;
hetcomm_communicator_t* world = nullptr;
int32_t rank = 0;
int32_t size = 0;
int32_t next = 0;
int32_t before = 0;

[[noreturn]] void fail(const char* what, const char* status, const char* text) {
  std::printf("FAILED %s: %s: %s\n", what, status, text);
  std::fflush(stdout);
  _exit(1);
}

uint64_t finish(const char* what, hetcomm_request_t* request) {
  hetcomm_completion_t end{};
  check(hetcomm_request_wait(request, 60 * kSecond, &end), what);
  if (end.status != HETCOMM_OK) fail(what, hetcomm_status_name(end.status), end.text);
  return end.bytes_received;
}

void expect(const char* what, const std::vector<unsigned char>& bytes, int value) {
  const auto differs = [value](unsigned char each) { return each != value; };
  if (std::any_of(bytes.begin(), bytes.end(), differs)) fail(what, "OK", "wrong bytes");
}

hetcomm_buffer_t buffer_of(std::vector<unsigned char>& bytes) {
  return hetcomm_buffer_host(bytes.data(), bytes.size());
}

unsigned char own_byte(int32_t of) { return static_cast<unsigned char>(of + 1); }

// Sends eager messages, messages by rendezvous, and messages in several pieces.
void messages() {
  for (const size_t bytes : {size_t{8}, size_t{20'000}, size_t{3} << 20}) {
    std::vector<unsigned char> out(bytes, own_byte(rank));
    std::vector<unsigned char> in(bytes);
    hetcomm_request_t* receive = nullptr;
    hetcomm_request_t* send = nullptr;
    CHECK(hetcomm_recv(world, before, 5, HETCOMM_EXACT_TAG, buffer_of(in), nullptr, &receive));
    CHECK(hetcomm_send(world, next, 5, buffer_of(out), nullptr, &send));
    finish("receive", receive);
    finish("send", send);
    expect("receive", in, own_byte(before));
  }
}

void collectives() {
  hetcomm_request_t* request = nullptr;
  for (const size_t count : {size_t{4}, size_t{300'000}}) {
    std::vector<float> values(count, static_cast<float>(rank + 1));
    const hetcomm_buffer_t buffer = hetcomm_buffer_host(values.data(), count * sizeof(float));
    CHECK(hetcomm_allreduce(world, buffer, buffer, HETCOMM_FLOAT32, HETCOMM_REDUCE_SUM, nullptr,
                            &request));
    finish("allreduce", request);
    const auto sum = static_cast<float>(size * (size + 1) / 2);
    if (std::count(values.begin(), values.end(), sum) != static_cast<ptrdiff_t>(count)) {
      fail("allreduce", "OK", "wrong sum");
    }
    std::vector<unsigned char> all(count, own_byte(rank));
    CHECK(hetcomm_broadcast(world, 0, buffer_of(all), HETCOMM_UINT8, nullptr, &request));
    finish("broadcast", request);
    expect("broadcast", all, own_byte(0));
  }
  CHECK(hetcomm_communicator_barrier(world, 60 * kSecond));
}

// Each rank exposes a window to the preceding rank.
void one_sided() {
  constexpr size_t kBytes = (1 << 20) - 64;
  constexpr size_t kWindowBytes = 1 << 20;  // the last 64 are for atomics
  hetcomm_memory_t* window = nullptr;
  void* address = nullptr;
  CHECK(hetcomm_memory_allocate(context, HETCOMM_DEVICE_HOST, kWindowBytes, &window));
  CHECK(hetcomm_memory_address(window, &address));
  std::memset(address, 0, kWindowBytes);
  CHECK(hetcomm_memory_register(window, world, HETCOMM_ACCESS_ALL, 0));
  unsigned char mine[HETCOMM_EXPORT_MAX_BYTES];
  unsigned char theirs[HETCOMM_EXPORT_MAX_BYTES];
  size_t mine_bytes = 0;
  CHECK(hetcomm_memory_export(window, sizeof(mine), mine, &mine_bytes));
  hetcomm_request_t* receive = nullptr;
  hetcomm_request_t* send = nullptr;
  CHECK(hetcomm_recv(world, next, 6, HETCOMM_EXACT_TAG, hetcomm_buffer_host(theirs, sizeof(theirs)),
                     nullptr, &receive));
  CHECK(hetcomm_send(world, before, 6, hetcomm_buffer_host(mine, mine_bytes), nullptr, &send));
  const uint64_t their_bytes = finish("receive of an export", receive);
  finish("send of an export", send);
  hetcomm_remote_memory_t* remote = nullptr;
  CHECK(hetcomm_memory_import(world, theirs, their_bytes, &remote));
  std::vector<unsigned char> out(kBytes, own_byte(rank));
  hetcomm_operation_options_t notified{};
  notified.struct_size = sizeof(notified);
  notified.flags = HETCOMM_OPERATION_NOTIFY;
  notified.notify_value = 7;
  hetcomm_request_t* request = nullptr;
  CHECK(hetcomm_put(remote, 0, buffer_of(out), &notified, &request));
  finish("put", request);
  hetcomm_notification_t told{};
  CHECK(hetcomm_memory_wait_notification(window, 60 * kSecond, &told));
  expect("put",
         std::vector<unsigned char>(static_cast<unsigned char*>(address),
                                    static_cast<unsigned char*>(address) + kBytes),
         own_byte(before));
  std::vector<unsigned char> in(kBytes);
  CHECK(hetcomm_get(remote, 0, buffer_of(in), nullptr, &request));
  finish("get", request);
  expect("get", in, own_byte(rank));
  uint64_t previous = 0;
  CHECK(hetcomm_fetch_add(remote, kBytes, 1, &previous, nullptr, &request));
  finish("fetch_add", request);
  CHECK(hetcomm_flush(world, next, nullptr, &request));
  finish("flush", request);
  CHECK(hetcomm_communicator_barrier(world, 60 * kSecond));
  CHECK(hetcomm_remote_memory_destroy(remote));
  CHECK(hetcomm_memory_unregister(window, 60 * kSecond));
  CHECK(hetcomm_memory_destroy(window));
}

void queues() {
  hetcomm_queue_options_t options{};
  options.struct_size = sizeof(options);
  options.max_item_bytes = 100'000;
  hetcomm_queue_t* out = nullptr;
  hetcomm_queue_t* in = nullptr;
  CHECK(hetcomm_queue_create(world, next, HETCOMM_QUEUE_PUSH, &options, &out));
  CHECK(hetcomm_queue_create(world, before, HETCOMM_QUEUE_PULL, &options, &in));
  std::vector<unsigned char> item(options.max_item_bytes, own_byte(rank));
  std::vector<unsigned char> pulled(options.max_item_bytes);
  hetcomm_request_t* push = nullptr;
  hetcomm_request_t* pull = nullptr;
  CHECK(hetcomm_queue_pull(in, buffer_of(pulled), nullptr, &pull));
  CHECK(hetcomm_queue_push(out, buffer_of(item), nullptr, &push));
  finish("pull", pull);
  finish("push", push);
  expect("pull", pulled, own_byte(before));
  CHECK(hetcomm_communicator_barrier(world, 60 * kSecond));
  CHECK(hetcomm_queue_destroy(out));
  CHECK(hetcomm_queue_destroy(in));
}

void run() {
  hetcomm_context_options_t options{};
  options.struct_size = sizeof(options);
  options.progress = HETCOMM_PROGRESS_THREAD;
  CHECK(hetcomm_context_create(&options, &context));
  hetcomm_bootstrap_t* bootstrap = nullptr;
  CHECK(hetcomm_bootstrap_create_from_environment(context, &bootstrap));
  CHECK(hetcomm_communicator_create(context, bootstrap, nullptr, &world));
  CHECK(hetcomm_communicator_rank(world, &rank, &size));
  next = (rank + 1) % size;
  before = (rank + size - 1) % size;
  messages();
  collectives();
  one_sided();
  queues();
  CHECK(hetcomm_communicator_destroy(world));
  hetcomm_bootstrap_destroy(bootstrap);
  CHECK(hetcomm_context_destroy(context));
}

}  // namespace

int main(int argc, char** argv) {
  (void)getpgid(0);
  make_surroundings(argc, argv);
  try {
    run();
  } catch (const std::bad_alloc&) {
    fail("run", "OUT_OF_MEMORY", "no memory for what this rank sends and receives");
  }
  std::printf("ok\n");
  return 0;
}
