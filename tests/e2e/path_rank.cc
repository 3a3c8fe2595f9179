// A rank that reports the outcome of its operations over a failing network (path_test.py).
//
//   send SECONDS SIZE...   rank 0 sends messages of these sizes to rank 1, one after the other;
//                          rank 1 then sends one back ("end")
//   allreduce SECONDS SIZE
//   put SECONDS SIZE       rank 0 puts to rank 1
//   busy SECONDS SIZE      messages of that size go both ways all the time
//   idle SECONDS           nothing is sent for so long; messages go before and after
//
// For each operation it prints a line with name, status and text. SECONDS is the deadline of each
// operation, or the duration.
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <hetcomm/hetcomm.h>

#include "tests/e2e/check.h"

namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr int32_t kTag = 5;

hetcomm_communicator_t* world = nullptr;
hetcomm_context_t* context = nullptr;
int32_t rank = 0;

hetcomm_operation_options_t options_of(uint64_t seconds) {
  hetcomm_operation_options_t options{};
  options.struct_size = sizeof(options);
  options.timeout_ns = seconds * kSecond;
  return options;
}

// Waits for |request|, prints its outcome and returns whether it succeeded.
bool tell(const char* name, hetcomm_request_t* request) {
  hetcomm_completion_t end{};
  CHECK(hetcomm_request_wait(request, 600 * kSecond, &end));
  std::printf("%s %s %s\n", name, hetcomm_status_name(end.status),
              end.status == HETCOMM_OK ? "" : end.text);
  std::fflush(stdout);
  return end.status == HETCOMM_OK;
}

void send_all(uint64_t seconds, int count, char** sizes) {
  const hetcomm_operation_options_t options = options_of(seconds);
  for (int i = 0; i < count; ++i) {
    std::vector<char> bytes(std::strtoull(sizes[i], nullptr, 10));
    const hetcomm_buffer_t buffer = hetcomm_buffer_host(bytes.data(), bytes.size());
    hetcomm_request_t* request = nullptr;
    CHECK(rank == 0 ? hetcomm_send(world, 1, kTag, buffer, &options, &request)
                    : hetcomm_recv(world, 0, kTag, HETCOMM_EXACT_TAG, buffer, &options, &request));
    if (!tell(sizes[i], request)) return;
  }
  // The send of a short message completes when the message has left, whatever its fate.
  char end = 0;
  const hetcomm_buffer_t buffer = hetcomm_buffer_host(&end, 1);
  hetcomm_request_t* request = nullptr;
  CHECK(rank == 1
            ? hetcomm_send(world, 0, kTag + 1, buffer, &options, &request)
            : hetcomm_recv(world, 1, kTag + 1, HETCOMM_EXACT_TAG, buffer, &options, &request));
  tell("end", request);
}

void allreduce(uint64_t seconds, uint64_t size) {
  hetcomm_collective_options_t options{};
  options.struct_size = sizeof(options);
  options.timeout_ns = seconds * kSecond;
  std::vector<float> values(size / sizeof(float));
  const hetcomm_buffer_t buffer = hetcomm_buffer_host(values.data(), size);
  hetcomm_request_t* request = nullptr;
  CHECK(hetcomm_allreduce(world, buffer, buffer, HETCOMM_FLOAT32, HETCOMM_REDUCE_SUM, &options,
                          &request));
  tell("allreduce", request);
}

void put(uint64_t seconds, uint64_t size) {
  hetcomm_memory_t* window = nullptr;
  CHECK(hetcomm_memory_allocate(context, HETCOMM_DEVICE_HOST, size, &window));
  CHECK(
      hetcomm_memory_register(window, world, HETCOMM_ACCESS_ALL, HETCOMM_REGISTER_CALLER_PROGRESS));
  unsigned char key[HETCOMM_EXPORT_MAX_BYTES];
  size_t key_bytes = sizeof(key);
  hetcomm_request_t* request = nullptr;
  const hetcomm_operation_options_t options = options_of(seconds);
  if (rank == 1) {
    CHECK(hetcomm_memory_export(window, sizeof(key), key, &key_bytes));
    CHECK(hetcomm_send(world, 0, kTag, hetcomm_buffer_host(key, key_bytes), nullptr, &request));
    tell("key", request);
    // Serves the put until rank 0 has reported its completion, or is lost.
    char end = 0;
    CHECK(hetcomm_recv(world, 0, kTag + 1, HETCOMM_EXACT_TAG, hetcomm_buffer_host(&end, 1),
                       &options, &request));
    tell("end", request);
    return;
  }
  hetcomm_completion_t received{};
  CHECK(hetcomm_recv(world, 1, kTag, HETCOMM_EXACT_TAG, hetcomm_buffer_host(key, sizeof(key)),
                     nullptr, &request));
  CHECK(hetcomm_request_wait(request, 60 * kSecond, &received));
  CHECK(received.status);
  hetcomm_remote_memory_t* remote = nullptr;
  CHECK(hetcomm_memory_import(world, key, received.bytes_received, &remote));
  std::vector<char> bytes(size);
  CHECK(hetcomm_put(remote, 0, hetcomm_buffer_host(bytes.data(), size), &options, &request));
  tell("put", request);
}

// Exchanges messages of |size| in both directions. Returns whether that succeeded.
bool exchange(uint64_t size) {
  std::vector<char> out(size);
  std::vector<char> in(size);
  hetcomm_request_t* receive = nullptr;
  hetcomm_request_t* send = nullptr;
  CHECK(hetcomm_recv(world, 1 - rank, kTag, HETCOMM_EXACT_TAG, hetcomm_buffer_host(in.data(), size),
                     nullptr, &receive));
  CHECK(hetcomm_send(world, 1 - rank, kTag, hetcomm_buffer_host(out.data(), size), nullptr, &send));
  for (hetcomm_request_t* request : {receive, send}) {
    hetcomm_completion_t end{};
    CHECK(hetcomm_request_wait(request, 600 * kSecond, &end));
    if (end.status == HETCOMM_OK) continue;
    std::printf("exchange %s %s\n", hetcomm_status_name(end.status), end.text);
    return false;
  }
  return true;
}

// Sends messages until rank 0 decides to stop.
void be_busy(uint64_t seconds, uint64_t size) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  uint64_t rounds = 0;
  for (char goes_on = 1; goes_on != 0; ++rounds) {
    if (!exchange(size)) return;
    goes_on = std::chrono::steady_clock::now() < end ? 1 : 0;
    hetcomm_request_t* request = nullptr;
    hetcomm_completion_t told{};
    const hetcomm_buffer_t word = hetcomm_buffer_host(&goes_on, 1);
    CHECK(rank == 0 ? hetcomm_send(world, 1, kTag, word, nullptr, &request)
                    : hetcomm_recv(world, 0, kTag, HETCOMM_EXACT_TAG, word, nullptr, &request));
    CHECK(hetcomm_request_wait(request, 600 * kSecond, &told));
    if (told.status != HETCOMM_OK) {
      std::printf("exchange %s %s\n", hetcomm_status_name(told.status), told.text);
      return;
    }
  }
  std::printf("busy OK %lu\n", static_cast<unsigned long>(rounds));
}

void be_idle(uint64_t seconds) {
  for (const uint64_t size : {uint64_t{8}, uint64_t{100'000}}) {
    if (!exchange(size)) return;
  }
  std::this_thread::sleep_for(std::chrono::seconds(seconds));
  for (const uint64_t size : {uint64_t{8}, uint64_t{100'000}}) {
    if (!exchange(size)) return;
  }
  std::printf("idle OK\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  hetcomm_bootstrap_t* bootstrap = nullptr;
  hetcomm_context_options_t options{};
  options.struct_size = sizeof(options);
  options.progress = HETCOMM_PROGRESS_THREAD;
  CHECK(hetcomm_context_create(&options, &context));
  CHECK(hetcomm_bootstrap_create_from_environment(context, &bootstrap));
  CHECK(hetcomm_communicator_create(context, bootstrap, nullptr, &world));
  int32_t size = 0;
  CHECK(hetcomm_communicator_rank(world, &rank, &size));
  std::printf("ready\n");
  std::fflush(stdout);
  const std::string what = argv[1];
  const uint64_t seconds = std::strtoull(argv[2], nullptr, 10);
  const uint64_t bytes = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 0;
  if (what == "send") {
    send_all(seconds, argc - 3, argv + 3);
  } else if (what == "allreduce") {
    allreduce(seconds, bytes);
  } else if (what == "put") {
    put(seconds, bytes);
  } else if (what == "busy") {
    be_busy(seconds, bytes);
  } else if (what == "idle") {
    be_idle(seconds);
  } else {
    return 2;
  }
  std::fflush(stdout);
  // The other rank should receive the reason that this rank knows, not see its exit.
  std::this_thread::sleep_for(std::chrono::seconds(2));
  _exit(0);
}
