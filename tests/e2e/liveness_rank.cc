// One rank of a test of life and death, played by the line: liveness_rank SCENARIO.
// liveness_test.py starts the ranks, kills, stops and cuts them off, and judges what they print and
// log.
//
//   live SECONDS   computes in bursts and talks to others now and then, until a line of input
//   comes; then prints
//                  "VIEW" and the status of each rank as it sees it, and waits for a line
//   contact TO     says READY; on a line of input sends to rank TO; the others receive from rank 0
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

namespace {

using Clock = std::chrono::steady_clock;

void check(hetcomm_status_t status, const char* what) {
  if (status == HETCOMM_OK) return;
  std::printf("FAILED %s: %s: %s\n", what, hetcomm_status_name(status), hetcomm_last_error());
  std::fflush(stdout);
  _exit(1);
}
#define CHECK(call) check((call), #call)

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

// No call of the library.
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
  // What was begun and has not ended; most of it never does.
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
  // What its control thread knew before.
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
