// One rank of a failure test: actor SCENARIO. failure_test.py starts the ranks, kills, stops or
// isolates them, and judges their output: one line "RESULT name seconds status text" per finished
// operation.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <hetcomm/hetcomm.h>

#include "tests/e2e/check.h"

namespace {

using Clock = std::chrono::steady_clock;

int g_rank = 0;
int g_size = 0;
hetcomm_context_t* g_context = nullptr;
hetcomm_communicator_t* g_world = nullptr;

void say(const char* text) {
  std::printf("%s\n", text);
  std::fflush(stdout);
}

hetcomm_request_t* receive(int source, uint64_t tag, void* data, size_t size, uint64_t timeout_ns) {
  hetcomm_operation_options_t options{};
  options.struct_size = sizeof(options);
  options.timeout_ns = timeout_ns;
  hetcomm_request_t* request = nullptr;
  CHECK(hetcomm_recv(g_world, source, tag, 0, hetcomm_buffer_host(data, size), &options, &request));
  return request;
}

hetcomm_request_t* send(int destination, uint64_t tag, const void* data, size_t size) {
  hetcomm_request_t* request = nullptr;
  CHECK(
      hetcomm_send(g_world, destination, tag, hetcomm_buffer_host(data, size), nullptr, &request));
  return request;
}

hetcomm_status_t finish(const char* name, hetcomm_request_t* request, Clock::time_point start) {
  hetcomm_completion_t completion;
  CHECK(hetcomm_request_wait(request, 0, &completion));
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  std::printf("RESULT %s %.3f %s %s\n", name, seconds, hetcomm_status_name(completion.status),
              completion.text);
  std::fflush(stdout);
  return completion.status;
}

// All ranks wait for the last rank, which is made to fail. Then the remaining ranks show that they
// can still communicate.
void play_lost() {
  char byte = 0;
  const int victim = g_size - 1;
  if (g_rank == victim) {
    say("READY");
    pause();
  }
  const auto start = Clock::now();
  hetcomm_request_t* waiting = receive(victim, 1, &byte, 1, 60'000'000'000);
  say("READY");
  finish("victim", waiting, start);
  // Messages between the remaining ranks have sizes up to a rendezvous.
  std::vector<char> out(300'000, 'a');
  std::vector<char> in(300'000);
  const int others = g_size - 1;
  const int next = (g_rank + 1) % others;
  const int previous = (g_rank + others - 1) % others;
  hetcomm_request_t* r = receive(previous, 2, in.data(), in.size(), 20'000'000'000);
  hetcomm_request_t* s = send(next, 2, out.data(), out.size());
  finish("others_receive", r, start);
  finish("others_send", s, start);
}

// After a collective operation each rank gets from the memory of the next one, over shm until that
// is mapped. So each has memory of every kind when the last rank is made to fail.
void play_left() {
  hetcomm_memory_t* memory = nullptr;
  CHECK(hetcomm_memory_allocate(g_context, HETCOMM_DEVICE_HOST, 100'000, &memory));
  CHECK(hetcomm_memory_register(memory, g_world, HETCOMM_ACCESS_ALL,
                                HETCOMM_REGISTER_CALLER_PROGRESS));
  std::vector<char> own(HETCOMM_EXPORT_MAX_BYTES);
  std::vector<char> others(own.size() * static_cast<size_t>(g_size));
  size_t size = 0;
  CHECK(hetcomm_memory_export(memory, own.size(), own.data(), &size));
  own.resize(HETCOMM_EXPORT_MAX_BYTES);
  std::memcpy(own.data() + HETCOMM_EXPORT_MAX_BYTES - sizeof(size), &size, sizeof(size));
  hetcomm_request_t* request = nullptr;
  CHECK(hetcomm_allgather(g_world, hetcomm_buffer_host(own.data(), own.size()),
                          hetcomm_buffer_host(others.data(), others.size()), HETCOMM_UINT8, nullptr,
                          &request));
  CHECK(hetcomm_request_wait(request, 0, nullptr));
  const char* const theirs = &others[own.size() * static_cast<size_t>((g_rank + 1) % g_size)];
  std::memcpy(&size, theirs + HETCOMM_EXPORT_MAX_BYTES - sizeof(size), sizeof(size));
  hetcomm_remote_memory_t* remote = nullptr;
  CHECK(hetcomm_memory_import(g_world, theirs, size, &remote));
  hetcomm_counters_t counters{};
  counters.struct_size = sizeof(counters);
  do {
    char byte = 0;
    CHECK(hetcomm_get(remote, 0, hetcomm_buffer_host(&byte, 1), nullptr, &request));
    CHECK(hetcomm_request_wait(request, 0, nullptr));
    CHECK(hetcomm_communicator_counters(g_world, (g_rank + 1) % g_size, 1, &counters, &size));
  } while (counters.direct == 0 && std::strcmp(counters.transport, "shm") == 0);
  CHECK(hetcomm_communicator_barrier(g_world, 0));
  char byte = 0;
  const auto start = Clock::now();
  hetcomm_request_t* waiting = nullptr;
  if (g_rank < g_size - 1) waiting = receive(g_size - 1, 1, &byte, 1, 60'000'000'000);
  say("READY");
  if (waiting == nullptr) pause();
  finish("victim", waiting, start);
  CHECK(hetcomm_remote_memory_destroy(remote));
  CHECK(hetcomm_memory_unregister(memory, 20'000'000'000));
  CHECK(hetcomm_memory_destroy(memory));
}

// Like play_lost, but the ranks never post to the victim: they learn of its death from its
// neighbours.
void play_strangers() {
  if (g_rank == g_size - 1) {
    say("READY");
    pause();
  }
  say("READY");
  const auto start = Clock::now();
  while (hetcomm_communicator_peer_status(g_world, g_size - 1) == HETCOMM_OK) {
    if (std::chrono::duration<double>(Clock::now() - start).count() > 60) break;
    char byte = 0;
    finish("tick", receive(g_rank, 9, &byte, 1, 50'000'000), start);
  }
  const hetcomm_status_t status = hetcomm_communicator_peer_status(g_world, g_size - 1);
  std::printf("RESULT stranger %.3f %s %s\n",
              std::chrono::duration<double>(Clock::now() - start).count(),
              hetcomm_status_name(status), hetcomm_last_error());
  std::fflush(stdout);
}

// Rank 0 sends a big message to rank 1, which is stopped and receives it after it resumes.
void play_silent() {
  const size_t size = 256u << 20;
  std::vector<char> data(size, static_cast<char>(g_rank == 0 ? 7 : 0));
  if (g_rank == 1) {
    hetcomm_request_t* request = receive(0, 1, data.data(), size, 120'000'000'000);
    const auto start = Clock::now();
    say("READY");
    finish("silent_receive", request, start);
    for (size_t i = 0; i < size; i += 4096) {
      if (data[i] != 7) {
        say("FAILED wrong data");
        _exit(1);
      }
    }
  } else {
    hetcomm_request_t* request = send(1, 1, data.data(), size);
    const auto start = Clock::now();
    say("READY");
    finish("silent_send", request, start);
  }
}

// Rank 1 receives repeatedly with a short deadline. After each failed receive it fills the buffer
// and checks that nothing writes to it later. The test stops and resumes rank 0 at random moments.
void play_late_writer() {
  const size_t size = 4u << 20;
  std::vector<unsigned char> data(size, 1);
  const auto start = Clock::now();
  say("READY");
  uint64_t tag = 0;
  int late = 0;
  while (std::chrono::duration<double>(Clock::now() - start).count() < 12) {
    ++tag;
    hetcomm_completion_t completion;
    if (g_rank == 0) {
      hetcomm_operation_options_t options{};
      options.struct_size = sizeof(options);
      options.timeout_ns = 400'000'000;
      hetcomm_request_t* request = nullptr;
      CHECK(hetcomm_send(g_world, 1, tag, hetcomm_buffer_host(data.data(), size), &options,
                         &request));
      CHECK(hetcomm_request_wait(request, 0, &completion));
      continue;
    }
    std::vector<unsigned char> in(size, 2);
    hetcomm_request_t* request = nullptr;
    hetcomm_operation_options_t options{};
    options.struct_size = sizeof(options);
    options.timeout_ns = 15'000'000;
    CHECK(hetcomm_recv(g_world, 0, 0, HETCOMM_ANY_TAG, hetcomm_buffer_host(in.data(), size),
                       &options, &request));
    CHECK(hetcomm_request_wait(request, 0, &completion));
    if (completion.status == HETCOMM_OK) continue;
    ++late;
    std::memset(in.data(), 3, size);
    const auto filled = Clock::now();
    while (std::chrono::duration<double>(Clock::now() - filled).count() < 0.03) {
      char byte = 0;
      CHECK(hetcomm_request_wait(receive(1, 7, &byte, 1, 5'000'000), 0, &completion));
    }
    for (size_t i = 0; i < size; ++i) {
      if (in[i] != 3) {
        say("FAILED a buffer was written after it was given back");
        _exit(1);
      }
    }
  }
  std::printf("RESULT late %d OK\n", late);
  std::fflush(stdout);
}

// All ranks send to all for some seconds, with sizes up to a rendezvous and checked data.
void play_traffic() {
  const size_t sizes[] = {0, 8, 4000, 60'000, 400'000};
  const auto start = Clock::now();
  say("READY");
  uint64_t tag = 0;
  while (true) {
    const size_t size = sizes[++tag % 5];
    std::vector<std::vector<unsigned char>> data;
    std::vector<hetcomm_request_t*> requests;
    data.reserve(static_cast<size_t>(g_size) * 2);
    for (int peer = 0; peer < g_size; ++peer) {
      auto& in = data.emplace_back(size + 1);
      requests.push_back(receive(peer, tag, in.data(), size, 30'000'000'000));
      auto& out = data.emplace_back(
          size + 1, static_cast<unsigned char>(tag + static_cast<uint64_t>(g_rank)));
      requests.push_back(send(peer, tag, out.data(), size));
    }
    for (hetcomm_request_t* request : requests) {
      hetcomm_completion_t completion;
      CHECK(hetcomm_request_wait(request, 0, &completion));
      check(completion.status, completion.text);
    }
    for (int peer = 0; peer < g_size; ++peer) {
      const auto& in = data[static_cast<size_t>(peer) * 2];
      for (size_t i = 0; i < size; ++i) {
        if (in[i] != static_cast<unsigned char>(tag + static_cast<uint64_t>(peer))) {
          say("FAILED wrong data");
          _exit(1);
        }
      }
    }
    // Rank 0 decides whether there is another round.
    unsigned char more =
        std::chrono::duration<double>(Clock::now() - start).count() < 4 || tag < 20 ? 1 : 0;
    for (int peer = 1; peer < g_size; ++peer) {
      if (g_rank == 0) finish("round", send(peer, 1'000'000, &more, 1), start);
    }
    if (g_rank != 0) finish("round", receive(0, 1'000'000, &more, 1, 30'000'000'000), start);
    if (more == 0) break;
  }
  say("RESULT traffic OK");
  char text[4096];
  size_t size = 0;
  for (int peer = 0; peer < g_size; ++peer) {
    CHECK(hetcomm_communicator_explain(g_world, peer, sizeof(text), text, &size));
    std::printf("EXPLAIN %d %s", peer, text);
  }
  say("END");
}

}  // namespace

int main(int argc, char** argv) {
  alarm(150);
  const std::string scenario = argc > 1 ? argv[1] : "";
  hetcomm_bootstrap_t* bootstrap = nullptr;
  CHECK(hetcomm_context_create(nullptr, &g_context));
  CHECK(hetcomm_bootstrap_create_from_environment(g_context, &bootstrap));
  CHECK(hetcomm_communicator_create(g_context, bootstrap, nullptr, &g_world));
  CHECK(hetcomm_communicator_rank(g_world, &g_rank, &g_size));
  CHECK(hetcomm_communicator_barrier(g_world, 0));
  if (scenario == "lost") play_lost();
  if (scenario == "left") play_left();
  if (scenario == "strangers") play_strangers();
  if (scenario == "silent") play_silent();
  if (scenario == "traffic") play_traffic();
  if (scenario == "late_writer") play_late_writer();
  CHECK(hetcomm_communicator_destroy(g_world));
  hetcomm_bootstrap_destroy(bootstrap);
  CHECK(hetcomm_context_destroy(g_context));
  say("DONE");
  // The test inspects the resources that the rank still holds.
  if (scenario == "left") std::getchar();
  return 0;
}
