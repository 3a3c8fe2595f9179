// One rank of a liveness test: liveness_rank SCENARIO ARGUMENT. liveness_test.py starts the ranks,
// kills, stops and isolates them, and judges their output and logs.
//
//   live SECONDS   computes in bursts and talks to others now and then, until a line of input
//                  comes; after a second one it prints "VIEW" and each rank's status as it sees it
//   contact TO     on a line of input rank 0 sends to rank TO, which receives; on a second one each
//                  prints "VIEW"
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <hetcomm/hetcomm.h>

#include "tests/e2e/check.h"

namespace {

using Clock = std::chrono::steady_clock;

hetcomm_context_t* g_context = nullptr;
hetcomm_communicator_t* g_world = nullptr;

void say(const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

bool input_waits() {
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return poll(&input, 1, 0) > 0;
}

void await_line() {
  char line[16];
  if (std::fgets(line, sizeof(line), stdin) == nullptr) _exit(1);
}

// Computes without calling the library.
void compute(double seconds) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < end && !input_waits()) {
    for (int i = 0; i < 200'000; ++i) asm volatile("");
  }
}

void live(int rank, int size, double most_seconds) {
  std::mt19937 random(static_cast<unsigned>(rank));
  std::uniform_real_distribution<double> unit(0, 1);
  uint64_t word = 7;
  // Pending sends. Most of them never complete.
  std::vector<hetcomm_request_t*> begun;
  while (!input_waits()) {
    compute(most_seconds * unit(random) * unit(random));
    const int other = static_cast<int>(random() % static_cast<unsigned>(size));
    hetcomm_request_t* request = nullptr;
    const hetcomm_buffer_t buffer = hetcomm_buffer_host(&word, 8);
    if (other != rank && begun.size() < 64 &&
        hetcomm_send(g_world, other, 1, buffer, nullptr, &request) == HETCOMM_OK) {
      begun.push_back(request);
    }
    for (int i = 0; i < 50; ++i) {
      CHECK(hetcomm_context_progress(g_context));
      usleep(1000);
    }
  }
  // Statuses that the control thread has left in the mailbox count too.
  std::string view = "VIEW";
  for (int other = 0; other < size; ++other) {
    view += hetcomm_communicator_peer_status(g_world, other) == HETCOMM_OK ? " +" : " -";
  }
  await_line();
  say(view);
  await_line();
  _exit(0);
}

void contact(int rank, int size, int to) {
  uint64_t word = 9;
  hetcomm_request_t* request = nullptr;
  const hetcomm_buffer_t buffer = hetcomm_buffer_host(&word, 8);
  await_line();
  if (rank == 0) {
    CHECK(hetcomm_send(g_world, to, 1, buffer, nullptr, &request));
  } else if (rank == to) {
    CHECK(hetcomm_recv(g_world, 0, 1, 0, buffer, nullptr, &request));
  }
  hetcomm_completion_t completion{};
  if (request != nullptr) {
    CHECK(hetcomm_request_wait(request, 0, &completion));
    say(std::string("RESULT ") + hetcomm_status_name(completion.status) + " " + completion.text);
  }
  await_line();
  std::string view = "VIEW";
  for (int other = 0; other < size; ++other) {
    view += hetcomm_communicator_peer_status(g_world, other) == HETCOMM_PEER_LOST ? " -" : " +";
  }
  say(view);
  await_line();
  _exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const int rank = std::atoi(std::getenv("RANK"));
  const int size = std::atoi(std::getenv("WORLD_SIZE"));
  hetcomm_bootstrap_t* bootstrap = nullptr;
  CHECK(hetcomm_context_create(nullptr, &g_context));
  CHECK(hetcomm_bootstrap_create_from_environment(g_context, &bootstrap));
  CHECK(hetcomm_communicator_create(g_context, bootstrap, nullptr, &g_world));
  say("READY");
  if (std::strcmp(argv[1], "live") == 0) live(rank, size, std::atof(argv[2]));
  if (std::strcmp(argv[1], "contact") == 0) contact(rank, size, std::atoi(argv[2]));
  return 2;
}
