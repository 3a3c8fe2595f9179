#include "tests/e2e/failover/rank.h"

#include <unistd.h>

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#ifdef HETCOMM_TEST_QUEUE_PAIRS
#include "tests/e2e/failover/queue_pairs.h"
#endif

namespace hetcomm::test {

namespace {

[[gnu::format(printf, 2, 0)]] void say_line(const char* prefix, const char* format,
                                            va_list arguments) {
  char text[2000];
  std::vsnprintf(text, sizeof(text), format, arguments);
  for (char* at = text; *at != 0; ++at) {
    if (*at == '\n') *at = ' ';
  }
  std::printf("%s%s\n", prefix, text);
  std::fflush(stdout);
}

}  // namespace

void say(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say_line("", format, arguments);
  va_end(arguments);
}

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say_line("FAILED ", format, arguments);
  va_end(arguments);
  _exit(1);
}

void check(hetcomm_status_t status, const char* what) {
  if (status == HETCOMM_OK) return;
  fail("%s: %s: %s", what, hetcomm_status_name(status), hetcomm_last_error());
}

uint64_t mix(uint64_t value) {
  value ^= value >> 30;
  value *= 0xbf58476d1ce4e5b9;
  value ^= value >> 27;
  value *= 0x94d049bb133111eb;
  return value ^ value >> 31;
}

void fill(std::byte* bytes, uint64_t length, uint64_t seed) {
  for (uint64_t at = 0; at < length; at += 8) {
    const uint64_t word = mix(seed + at);
    std::memcpy(bytes + at, &word, std::min<uint64_t>(8, length - at));
  }
}

uint64_t mismatch(const std::byte* bytes, uint64_t length, uint64_t seed) {
  for (uint64_t at = 0; at < length; at += 8) {
    const uint64_t word = mix(seed + at);
    if (std::memcmp(bytes + at, &word, std::min<uint64_t>(8, length - at)) != 0) return at;
  }
  return length;
}

std::string explain_mismatch(const std::byte* bytes, uint64_t length, uint64_t seed) {
  const uint64_t first = mismatch(bytes, length, seed);
  uint64_t wrong = 0;
  uint64_t last = 0;
  uint64_t zeros = 0;
  for (uint64_t at = 0; at < length; at += 8) {
    const uint64_t size = std::min<uint64_t>(8, length - at);
    const uint64_t word = mix(seed + at);
    if (std::memcmp(bytes + at, &word, size) == 0) continue;
    uint64_t there = 0;
    std::memcpy(&there, bytes + at, size);
    wrong += size;
    zeros += there == 0 ? size : 0;
    last = at + size;
  }
  uint64_t there = 0;
  std::memcpy(&there, bytes + first, std::min<uint64_t>(8, length - first));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  char text[200];
  std::snprintf(text, sizeof(text),
                "%lu bytes between %lu and %lu at %p, %lu of them zero, the first word 0x%lx; %s",
                wrong, first, last, static_cast<const void*>(bytes), zeros, there,
                mismatch(bytes, length, seed) == length ? "right 0.3 s later" : "later still");
  return text;
}

uint64_t random_size(Random& random, uint64_t least, uint64_t most) {
  const uint64_t kind = random.below(20);
  const uint64_t limit = kind < 11 ? 300 : kind < 16 ? 9000 : kind < 19 ? 70'000 : most;
  return least + random.below(std::min(limit, most) - least + 1);
}

Rank::Rank() {
  CHECK(hetcomm_context_create(nullptr, &context_));
  CHECK(hetcomm_bootstrap_create_from_environment(context_, &bootstrap_));
  CHECK(hetcomm_communicator_create(context_, bootstrap_, nullptr, &world_));
  int32_t rank = 0;
  int32_t size = 0;
  CHECK(hetcomm_communicator_rank(world_, &rank, &size));
  if (size != 2) fail("this job is one of two ranks");
  rank_ = rank;
  std::thread([this] { obey(); }).detach();
}

Rank::~Rank() {
  CHECK(hetcomm_communicator_destroy(world_));
  hetcomm_bootstrap_destroy(bootstrap_);
  CHECK(hetcomm_context_destroy(context_));
}

// "break N" breaks a queue pair; "stop" ends the scenario.
void Rank::obey() {
  char line[100];
  while (std::fgets(line, sizeof(line), stdin) != nullptr) {
    if (std::strncmp(line, "stop", 4) == 0) orders_.stop = true;
#ifdef HETCOMM_TEST_QUEUE_PAIRS
    if (std::strncmp(line, "break ", 6) == 0) {
      say("BROKE %u", break_queue_pair(static_cast<uint32_t>(std::strtoul(line + 6, nullptr, 10))));
    }
#endif
  }
  orders_.ended = true;
}

hetcomm_request_t* Rank::send(uint64_t tag, const void* data, uint64_t size) {
  hetcomm_request_t* request = nullptr;
  CHECK(hetcomm_send(world_, peer(), tag, hetcomm_buffer_host(data, size), nullptr, &request));
  return request;
}

hetcomm_request_t* Rank::receive(uint64_t tag, void* data, uint64_t size) {
  hetcomm_request_t* request = nullptr;
  CHECK(hetcomm_recv(world_, peer(), tag, HETCOMM_EXACT_TAG, hetcomm_buffer_host(data, size),
                     nullptr, &request));
  return request;
}

hetcomm_completion_t Rank::wait(hetcomm_request_t* request) {
  hetcomm_completion_t completion;
  CHECK(hetcomm_request_wait(request, HETCOMM_TIMEOUT_INFINITE, &completion));
  return completion;
}

void Rank::finish(hetcomm_request_t* request, const char* what) {
  const hetcomm_completion_t completion = wait(request);
  if (completion.status != HETCOMM_OK) {
    fail("%s: %s: %s", what, hetcomm_status_name(completion.status), completion.text);
  }
}

void Rank::barrier() { CHECK(hetcomm_communicator_barrier(world_, 60'000'000'000)); }

Rank::Window Rank::open_window(uint64_t size) {
  Window window;
  CHECK(hetcomm_memory_allocate(context_, HETCOMM_DEVICE_HOST, size, &window.memory));
  void* address = nullptr;
  CHECK(hetcomm_memory_address(window.memory, &address));
  window.bytes = static_cast<std::byte*>(address);
  std::memset(window.bytes, 0, size);
  CHECK(hetcomm_memory_register(window.memory, world_, HETCOMM_ACCESS_ALL,
                                HETCOMM_REGISTER_CALLER_PROGRESS));
  std::vector<char> mine(HETCOMM_EXPORT_MAX_BYTES);
  std::vector<char> theirs(HETCOMM_EXPORT_MAX_BYTES);
  size_t length = 0;
  CHECK(hetcomm_memory_export(window.memory, mine.size(), mine.data(), &length));
  constexpr uint64_t kTag = 1000;
  hetcomm_request_t* incoming = receive(kTag, theirs.data(), theirs.size());
  finish(send(kTag, mine.data(), length), "sending the keys");
  const hetcomm_completion_t completion = wait(incoming);
  check(completion.status, "receiving the keys");
  CHECK(hetcomm_memory_import(world_, theirs.data(), completion.bytes_received, &window.remote));
  return window;
}

void Rank::close_window(Window& window) {
  CHECK(hetcomm_remote_memory_destroy(window.remote));
  CHECK(hetcomm_memory_unregister(window.memory, 30'000'000'000));
  CHECK(hetcomm_memory_destroy(window.memory));
}

std::vector<hetcomm_counters_t> Rank::counters() {
  std::vector<hetcomm_counters_t> result(16, {.struct_size = sizeof(hetcomm_counters_t)});
  size_t count = 0;
  CHECK(hetcomm_communicator_counters(world_, peer(), result.size(), result.data(), &count));
  result.resize(std::min(count, result.size()));
  return result;
}

void Rank::say_counters() {
  for (const hetcomm_counters_t& each : counters()) {
    say("COUNTERS %s connected=%d failures=%lu messages=%lu bulk=%lu puts=%lu gets=%lu atomics=%lu "
        "direct=%lu",
        each.transport, each.connected, each.failures, each.messages_sent, each.bulk_bytes,
        each.puts, each.gets, each.atomics, each.direct);
  }
}

}  // namespace hetcomm::test

int main(int count, char** arguments) {
  using namespace hetcomm::test;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::string scenario = count > 1 ? arguments[1] : "";
  const auto argument = [&](int index, uint64_t otherwise) {
    return count > index ? std::strtoull(arguments[index], nullptr, 10) : otherwise;
  };
  Rank rank;
  if (scenario == "mix") {
    play_mix(rank, argument(2, 1), argument(3, 0));
  } else if (scenario == "bulk") {
    play_bulk(rank, count > 2 ? arguments[2] : "send", argument(3, 256) << 20);
  } else if (scenario == "cut-off") {
    play_cut_off(rank);
  } else if (scenario == "compute") {
    play_compute(rank, static_cast<double>(argument(2, 5)));
  } else {
    fail("usage: %s mix SEED LEAST_PUTS | bulk send|put|get MIB | cut-off | compute SECONDS",
         arguments[0]);
  }
  say("DONE");
  return 0;
}
