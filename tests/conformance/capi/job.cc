#include "tests/conformance/capi/job.h"

#include <arpa/inet.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "tests/support/certificates.h"

namespace hetcomm_test {
namespace {

// The files belong to this process. Forked ranks read the same files.
std::string tls() {
  static const hetcomm::test::Certificates files;
  return files.settings();
}

std::vector<CapiCase> base_cases() {
  return {
      {.name = "self", .transports = "self", .settings = ""},
      {.name = "shm", .transports = "shm", .settings = ""},
      {.name = "shm_tiny",
       .transports = "shm",
       .settings = "SHM_RING_BYTES=64K;SHM_CHUNK=4K;SHM_BULK=copy;SHM_EAGER=1K;"},
      {.name = "shm_read", .transports = "shm", .settings = "SHM_BULK=read;SHM_EAGER=256;"},
      {.name = "shm_pull", .transports = "shm", .settings = "SHM_BULK=read;"},
      {.name = "shm_little_credit", .transports = "shm", .settings = "CREDIT_BYTES=4K;"},
      {.name = "shm_thread", .transports = "shm", .settings = "", .thread_progress = true},
      {.name = "tcp", .transports = "tcp", .settings = ""},
      {.name = "tcp_tiny",
       .transports = "tcp",
       .settings = "TCP_CHUNK=4K;TCP_EAGER=256;TCP_SOCKET_BUFFER=128K;"},
      {.name = "tcp_three_streams",
       .transports = "tcp",
       .settings = "TCP_STREAMS=3;TCP_CHUNK=64K;CREDIT_BYTES=8K;"},
      {.name = "tcp_thread", .transports = "tcp", .settings = "", .thread_progress = true},
      {.name = "tcp_tls",
       .transports = "tcp",
       .settings = tls() + "REQUIRE_TLS=1;SECRET=of the job;"},
      {.name = "rdma", .transports = "rdma", .settings = ""},
      {.name = "rdma_tiny",
       .transports = "rdma",
       .settings = "RDMA_SLICE=64K;RDMA_EAGER=256;RDMA_CACHE_BYTES=0;"},
      {.name = "rdma_thread", .transports = "rdma", .settings = "", .thread_progress = true},
      {.name = "any", .transports = "", .settings = ""},
  };
}

std::vector<CapiCase> named(const std::vector<std::string>& names, bool processes) {
  std::vector<CapiCase> cases;
  for (CapiCase each : base_cases()) {
    if (std::find(names.begin(), names.end(), each.name) == names.end()) continue;
    each.processes = processes;
    cases.push_back(each);
  }
  return cases;
}

void append(std::vector<CapiCase>& cases, const std::vector<CapiCase>& more) {
  cases.insert(cases.end(), more.begin(), more.end());
}

hetcomm_communicator_options_t communicator_options(const CapiCase& test_case) {
  hetcomm_communicator_options_t options{};
  options.struct_size = sizeof(options);
  options.transports = test_case.transports.empty() ? nullptr : test_case.transports.c_str();
  options.timeout_ns = kPatienceNs;
  return options;
}

[[noreturn]] void rank_process(SharedStore& store, const CapiCase& test_case, int32_t rank,
                               int32_t size, const std::function<void(Member&)>& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(100);
  if (test_case.prepare) test_case.prepare(rank);
  {
    Member member(store, test_case, rank, size);
    if (member.ok()) body(member);
  }
  fflush(nullptr);
  _exit(::testing::Test::HasFailure() ? 1 : 0);
}

void reap(pid_t child, int rank, const SharedStore& store, uint64_t deadline) {
  int status = 0;
  pid_t done = 0;
  while ((done = waitpid(child, &status, WNOHANG)) == 0 && clock_ns() < deadline) usleep(500);
  if (done == 0) {
    ADD_FAILURE() << "rank " << rank << " does not end";
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
  } else if (!store.expects_death(rank)) {
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << "rank " << rank << " failed (status " << status << ")";
  }
}

}  // namespace

std::vector<CapiCase> all_cases() {
  std::vector<CapiCase> cases = base_cases();
  append(cases, named({"shm", "shm_tiny", "shm_read", "shm_pull", "tcp", "tcp_tiny", "tcp_thread",
                       "tcp_tls", "rdma", "rdma_thread"},
                      true));
  return cases;
}

std::vector<CapiCase> plain_cases() {
  std::vector<CapiCase> cases =
      named({"self", "shm", "tcp", "tcp_thread", "tcp_tls", "rdma", "any"}, false);
  append(cases, named({"shm", "tcp", "rdma"}, true));
  return cases;
}

std::vector<CapiCase> process_cases() {
  return named({"shm", "shm_tiny", "shm_read", "shm_pull", "shm_thread", "tcp", "tcp_tiny",
                "tcp_thread", "tcp_tls", "rdma", "rdma_thread", "any"},
               true);
}

std::string capi_case_name(const ::testing::TestParamInfo<CapiCase>& info) {
  return info.param.name + (info.param.processes ? "_processes" : "_threads");
}

Member::Member(SharedStore& store, const CapiCase& test_case, int32_t rank, int32_t size)
    : store_(store), case_(test_case), rank_(rank), size_(size) {
  std::string settings = kOperationTimeout + test_case.settings;
  if (test_case.clusters > 0) {
    settings += "CLUSTER=c" + std::to_string(rank % test_case.clusters) + ";";
  }
  hetcomm_context_options_t options{};
  options.struct_size = sizeof(options);
  options.settings = settings.c_str();
  options.log_function = test_case.log;
  options.log_user_data = &rank_;
  options.progress = test_case.thread_progress ? HETCOMM_PROGRESS_THREAD : HETCOMM_PROGRESS_CALLER;
  EXPECT_EQ(hetcomm_context_create(&options, &context_), HETCOMM_OK) << hetcomm_last_error();
  if (context_ == nullptr) return;
  bootstrap_ = make_bootstrap("job", rank, size);
  if (bootstrap_ == nullptr) return;
  const hetcomm_communicator_options_t wanted = communicator_options(test_case);
  EXPECT_EQ(hetcomm_communicator_create(context_, bootstrap_, &wanted, &communicator_), HETCOMM_OK)
      << "rank " << rank << ": " << hetcomm_last_error();
}

Member::~Member() {
  hetcomm_status_t status = hetcomm_communicator_destroy(communicator_);
  if (!ruined_) {
    EXPECT_EQ(status, HETCOMM_OK) << "rank " << rank_ << ": " << hetcomm_last_error();
  }
  if (status == HETCOMM_BUSY) {
    (void)hetcomm_communicator_abort(communicator_, "test ends");
    for (int i = 0; i < 1000 && status == HETCOMM_BUSY; ++i) {
      (void)hetcomm_context_progress(context_);
      status = hetcomm_communicator_destroy(communicator_);
    }
  }
  hetcomm_bootstrap_destroy(bootstrap_);
  EXPECT_EQ(hetcomm_context_destroy(context_), HETCOMM_OK)
      << "rank " << rank_ << ": " << hetcomm_last_error();
}

hetcomm_bootstrap_t* Member::make_bootstrap(const std::string& name, int32_t rank, int32_t size) {
  views_.emplace_back(store_, name + ":");
  const hetcomm_bootstrap_options_t options = views_.back().options(rank, size);
  hetcomm_bootstrap_t* bootstrap = nullptr;
  EXPECT_EQ(hetcomm_bootstrap_create_from_callbacks(context_, &options, &bootstrap), HETCOMM_OK)
      << hetcomm_last_error();
  return bootstrap;
}

bool Member::until(const std::function<bool()>& done, uint64_t limit_ns) {
  const uint64_t deadline = clock_ns() + limit_ns;
  while (!done()) {
    EXPECT_EQ(hetcomm_context_progress(context_), HETCOMM_OK);
    if (clock_ns() > deadline) return done();
    usleep(50);
  }
  return true;
}

bool Member::meet() {
  store_.arrive();
  const uint64_t needed = ++meetings_ * static_cast<uint64_t>(size_);
  const bool met = until([&] { return store_.arrivals() >= needed; });
  EXPECT_TRUE(met) << "rank " << rank_ << ": not all ranks came to meeting " << meetings_;
  return met;
}

bool Member::meet_quietly() {
  store_.arrive();
  const uint64_t needed = ++meetings_ * static_cast<uint64_t>(size_);
  const uint64_t deadline = clock_ns() + kPatienceNs;
  while (store_.arrivals() < needed && clock_ns() < deadline) usleep(50);
  EXPECT_GE(store_.arrivals(), needed) << "rank " << rank_ << ": meeting " << meetings_;
  return store_.arrivals() >= needed;
}

void Member::die() {
  store_.expect_death(rank_);
  kill(getpid(), SIGKILL);
  std::abort();
}

hetcomm_request_t* Member::send(int32_t to, uint64_t tag, const void* data, uint64_t size,
                                const hetcomm_operation_options_t* options) {
  hetcomm_request_t* request = nullptr;
  EXPECT_EQ(
      hetcomm_send(communicator_, to, tag, hetcomm_buffer_host(data, size), options, &request),
      HETCOMM_OK)
      << hetcomm_last_error();
  return request;
}

hetcomm_request_t* Member::recv(int32_t from, uint64_t tag, void* data, uint64_t size,
                                uint64_t ignore, const hetcomm_operation_options_t* options) {
  hetcomm_request_t* request = nullptr;
  EXPECT_EQ(hetcomm_recv(communicator_, from, tag, ignore, hetcomm_buffer_host(data, size), options,
                         &request),
            HETCOMM_OK)
      << hetcomm_last_error();
  return request;
}

hetcomm_request_t* start_move(Member& me, hetcomm_buffer_t buffer) {
  hetcomm_request_t* request = nullptr;
  EXPECT_EQ(me.rank() == 0 ? hetcomm_send(me.communicator(), 1, 1, buffer, nullptr, &request)
                           : hetcomm_recv(me.communicator(), 0, 1, HETCOMM_EXACT_TAG, buffer,
                                          nullptr, &request),
            HETCOMM_OK)
      << hetcomm_last_error();
  return request;
}

Outcome finish(hetcomm_request_t* request, uint64_t limit_ns) {
  Outcome outcome;
  if (request == nullptr) return outcome;
  hetcomm_completion_t completion{};
  outcome.call = hetcomm_request_wait(request, limit_ns, &completion);
  if (outcome.call == HETCOMM_TIMED_OUT) {
    ADD_FAILURE() << "an operation does not end";
    EXPECT_EQ(hetcomm_request_cancel(request), HETCOMM_OK);
    outcome.call = hetcomm_request_wait(request, limit_ns, &completion);
    // The operation's memory is about to be freed. An abort is better than a wild write.
    if (outcome.call == HETCOMM_TIMED_OUT) std::abort();
  }
  EXPECT_EQ(outcome.call, HETCOMM_OK) << hetcomm_last_error();
  if (outcome.call != HETCOMM_OK) return outcome;
  outcome.status = completion.status;
  outcome.source = completion.source;
  outcome.tag = completion.tag;
  outcome.bytes_sent = completion.bytes_sent;
  outcome.bytes_received = completion.bytes_received;
  EXPECT_NE(completion.text, nullptr);
  if (completion.text != nullptr) outcome.text = completion.text;
  if (outcome.status == HETCOMM_OK) {
    EXPECT_EQ(outcome.text, "");
  } else {
    EXPECT_NE(outcome.text, "") << "a failure says what happened";
  }
  return outcome;
}

void finish_all(std::vector<hetcomm_request_t*>& requests) {
  for (hetcomm_request_t* request : requests) {
    const Outcome outcome = finish(request);
    EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
  }
  requests.clear();
}

void expect_rejected(hetcomm_communicator_t* communicator, int32_t peer, hetcomm_status_t status) {
  static uint64_t memory[2];
  for (const bool send : {true, false}) {
    const hetcomm_buffer_t buffer = hetcomm_buffer_host(&memory[send ? 0 : 1], 8);
    hetcomm_request_t* request = nullptr;
    const hetcomm_status_t got =
        send ? hetcomm_send(communicator, peer, 77, buffer, nullptr, &request)
             : hetcomm_recv(communicator, peer, 77, 0, buffer, nullptr, &request);
    if (got == HETCOMM_OK) {
      EXPECT_EQ(finish(request).status, status);
    } else {
      EXPECT_EQ(got, status);
      EXPECT_STRNE(hetcomm_last_error(), "");
      EXPECT_EQ(request, nullptr) << "outputs are written on success only";
    }
  }
}

hetcomm_operation_options_t with_timeout(uint64_t timeout_ns) {
  hetcomm_operation_options_t options{};
  options.struct_size = sizeof(options);
  options.timeout_ns = timeout_ns;
  return options;
}

void ring(hetcomm_communicator_t* communicator, uint64_t value) {
  int32_t rank = -1;
  int32_t size = 0;
  ASSERT_EQ(hetcomm_communicator_rank(communicator, &rank, &size), HETCOMM_OK);
  const uint64_t out[2] = {value, static_cast<uint64_t>(rank)};
  uint64_t in[2] = {};
  hetcomm_request_t* send = nullptr;
  hetcomm_request_t* receive = nullptr;
  ASSERT_EQ(hetcomm_recv(communicator, HETCOMM_ANY_SOURCE, 3, 0, hetcomm_buffer_host(in, 16),
                         nullptr, &receive),
            HETCOMM_OK)
      << hetcomm_last_error();
  EXPECT_EQ(hetcomm_send(communicator, (rank + 1) % size, 3, hetcomm_buffer_host(out, 16), nullptr,
                         &send),
            HETCOMM_OK)
      << hetcomm_last_error();
  const Outcome outcome = finish(receive);
  EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
  EXPECT_EQ(outcome.source, (rank + size - 1) % size);
  EXPECT_EQ(in[0], value);
  EXPECT_EQ(in[1], static_cast<uint64_t>((rank + size - 1) % size));
  EXPECT_EQ(finish(send).status, HETCOMM_OK);
}

int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  close(fd);
  return ntohs(address.sin_port);
}

uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t pages = 0;
  file >> pages >> pages;
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

void run_job(const CapiCase& test_case, int32_t size, const std::function<void(Member&)>& body) {
  SharedStore store;
  if (!test_case.processes) {
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        Member member(store, test_case, rank, size);
        if (member.ok()) body(member);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return;
  }
  fflush(nullptr);
  std::vector<pid_t> children;
  for (int32_t rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) rank_process(store, test_case, rank, size, body);
    children.push_back(child);
  }
  const uint64_t deadline = clock_ns() + 80 * kSec;
  for (int32_t rank = 0; rank < size; ++rank) {
    reap(children[static_cast<size_t>(rank)], rank, store, deadline);
  }
}

void CapiTest::SetUp() {
  const std::string settings = kOperationTimeout + GetParam().settings;
  hetcomm_context_options_t options{};
  options.struct_size = sizeof(options);
  options.settings = settings.c_str();
  hetcomm_context_t* context = nullptr;
  ASSERT_EQ(hetcomm_context_create(&options, &context), HETCOMM_OK) << hetcomm_last_error();
  hetcomm_transport_info_t info{.struct_size = sizeof(info)};
  std::string skip;
  for (size_t i = 0; hetcomm_context_transport(context, i, &info) == HETCOMM_OK; ++i) {
    if (GetParam().transports == info.name && info.usable == 0) {
      skip = std::string(info.name) + ": " + info.reason;
    }
  }
  ASSERT_EQ(hetcomm_context_destroy(context), HETCOMM_OK);
  if (!skip.empty()) GTEST_SKIP() << skip;
}

::testing::AssertionResult holds(const std::vector<std::byte>& bytes, uint64_t seed,
                                 uint64_t length, std::byte background) {
  const hetcomm::ConstByteSpan all(bytes);
  if (const auto bad = find_mismatch(all.first(length), seed)) {
    return ::testing::AssertionFailure() << "byte " << *bad << " of " << length << " is wrong";
  }
  for (uint64_t i = length; i < bytes.size(); ++i) {
    if (bytes[i] != background) {
      return ::testing::AssertionFailure()
             << "byte " << i << " behind " << length << " was written";
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace hetcomm_test
