// Measures the cost of one item when there are many (thousands_test.py).
//
//   thousands ROW MOST ROUNDS
//
// Two ranks, which are processes of this program, do ROW with a quarter of MOST items, with half of
// them and with all of them, ROUNDS times. It prints a line for each: the number of items, and the
// seconds from the first call to the end of the last operation on both ranks. The last line ("kept
// BYTES") says how many bytes more a rank has allocated after the last round than after the first.
// Rank 0 listens at MASTER_ADDR and MASTER_PORT, which default to a port of this host.
//
//   thousands lost COUNT 1
//
// Rank 1 ends while rank 0 has COUNT operations with it in flight. It prints the seconds until all
// of them have ended.
#include <malloc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <new>
#include <string>
#include <vector>

#include <hetcomm/hetcomm.h>

#include "tests/e2e/check.h"

namespace {

constexpr uint64_t kTimeoutNs = 300'000'000'000;
constexpr uint64_t kFirstTag = 1000;
constexpr size_t kMaxItems = 100'000'000;

hetcomm_context_t* context = nullptr;
hetcomm_communicator_t* world = nullptr;
int32_t rank = 0;

// Lets the two ranks meet without a message, because other messages may have filled the path.
struct Meeting {
  std::atomic<uint32_t> arrived{0};
  // The number of bytes that one rank passes to the other.
  std::atomic<uint32_t> size{0};
  std::atomic<int64_t> kept{0};  // by rank 1
  std::byte bytes[1 << 24];
};
Meeting* meeting = nullptr;
uint32_t meetings = 0;

void meet() {
  ++meetings;
  meeting->arrived.fetch_add(1);
  while (meeting->arrived.load() < 2 * meetings) usleep(20);
}

void wait_for(hetcomm_request_t* request, hetcomm_status_t expected = HETCOMM_OK) {
  hetcomm_completion_t end{};
  CHECK(hetcomm_request_wait(request, kTimeoutNs, &end));
  if (end.status == expected) return;
  std::printf("FAILED an operation ended with %s: %s\n", hetcomm_status_name(end.status), end.text);
  std::fflush(stdout);
  _exit(1);
}

void demand(bool holds, const char* what) {
  if (holds) return;
  std::printf("FAILED %s\n", what);
  std::fflush(stdout);
  _exit(1);
}

using Requests = std::vector<hetcomm_request_t*>;

void wait_for_all(const Requests& requests, hetcomm_status_t expected = HETCOMM_OK) {
  for (hetcomm_request_t* const request : requests) wait_for(request, expected);
}

// --- messages with tags of their own -------------------------------------------------------------

struct Order {
  bool late = false;      // the messages arrive before the receives are posted
  bool reversed = false;  // the receives are posted in the reverse order
  int32_t source = 0;
  uint64_t ignore = HETCOMM_EXACT_TAG;
  bool by_turns = false;  // every other receive takes any source, and the whole tag
};

void messages(size_t count, const Order& order) {
  Requests requests(count);
  std::vector<uint64_t> values(count);
  const auto send = [&] {
    for (size_t i = 0; i < count; ++i) {
      values[i] = i;
      CHECK(hetcomm_send(world, 1, kFirstTag + 2 * i, hetcomm_buffer_host(&values[i], 8), nullptr,
                         &requests[i]));
    }
  };
  const auto receive = [&] {
    for (size_t i = 0; i < count; ++i) {
      const size_t j = order.reversed ? count - 1 - i : i;
      const bool is_other = order.by_turns && i % 2 == 1;
      CHECK(hetcomm_recv(world, is_other ? HETCOMM_ANY_SOURCE : order.source, kFirstTag + 2 * j,
                         is_other ? HETCOMM_EXACT_TAG : order.ignore,
                         hetcomm_buffer_host(&values[j], 8), nullptr, &requests[j]));
    }
  };
  if (rank == 0 && order.late) send();
  if (rank == 1 && !order.late) receive();
  meet();
  if (rank == 0 && !order.late) send();
  if (rank == 1 && order.late) receive();
  wait_for_all(requests);
  for (size_t i = 0; i < count; ++i) demand(values[i] == i, "a message is another one");
}

void prepared(size_t count) {
  Requests requests(count);
  std::vector<uint64_t> values(count);
  for (size_t i = 0; i < count; ++i) {
    const hetcomm_buffer_t buffer = hetcomm_buffer_host(&values[i], 8);
    if (rank == 0) {
      values[i] = i;
      CHECK(hetcomm_send_prepare(world, 1, kFirstTag + i, &buffer, 1, nullptr, &requests[i]));
    } else {
      CHECK(hetcomm_recv_prepare(world, 0, kFirstTag + i, HETCOMM_EXACT_TAG, &buffer, 1, nullptr,
                                 &requests[i]));
    }
  }
  for (int run = 0; run < 2; ++run) {
    for (hetcomm_request_t* const request : requests) CHECK(hetcomm_request_start(request));
    wait_for_all(requests);
  }
  for (hetcomm_request_t* const request : requests) CHECK(hetcomm_request_destroy(request));
  for (size_t i = 0; i < count; ++i) demand(values[i] == i, "a message is another one");
}

void wait_any(size_t count) {
  Requests requests(count);
  std::vector<uint64_t> values(count);
  for (size_t i = 0; i < count; ++i) {
    const hetcomm_buffer_t buffer = hetcomm_buffer_host(&values[i], 8);
    CHECK(rank == 0 ? hetcomm_send(world, 1, kFirstTag + i, buffer, nullptr, &requests[i])
                    : hetcomm_recv(world, 0, kFirstTag + i, HETCOMM_EXACT_TAG, buffer, nullptr,
                                   &requests[i]));
  }
  for (size_t i = 0; i < count; ++i) {
    size_t index = 0;
    hetcomm_completion_t end{};
    CHECK(hetcomm_request_wait_any(count, requests.data(), kTimeoutNs, &index, &end));
    demand(end.status == HETCOMM_OK && requests[index] != nullptr, "a request ended twice");
    requests[index] = nullptr;
  }
}

void cancelled(size_t count, bool sends) {
  Requests requests(count);
  std::vector<uint64_t> values(count);
  if ((rank == 0) == sends) {
    for (size_t i = 0; i < count; ++i) {
      const hetcomm_buffer_t buffer = hetcomm_buffer_host(&values[i], 8);
      CHECK(sends ? hetcomm_send(world, 1, kFirstTag + i, buffer, nullptr, &requests[i])
                  : hetcomm_recv(world, 0, kFirstTag + i, HETCOMM_EXACT_TAG, buffer, nullptr,
                                 &requests[i]));
    }
    // Starts in the middle and proceeds to both ends.
    for (size_t i = 0; i < count; ++i) {
      const size_t j = i % 2 == 0 ? count / 2 + i / 2 : count / 2 - 1 - i / 2;
      CHECK(hetcomm_request_cancel(requests[j]));
    }
    for (hetcomm_request_t* const request : requests) {
      hetcomm_completion_t end{};
      CHECK(hetcomm_request_wait(request, kTimeoutNs, &end));
      demand(end.status == HETCOMM_CANCELLED || (sends && end.status == HETCOMM_OK),
             "a request ended in another way");
    }
  }
  meet();
  if (!sends || rank == 0) return;
  // Receives the messages whose cancellation came too late.
  hetcomm_completion_t message{};
  while (hetcomm_probe(world, 0, 0, HETCOMM_ANY_TAG, HETCOMM_TIMEOUT_POLL, &message) ==
         HETCOMM_OK) {
    hetcomm_request_t* request = nullptr;
    CHECK(hetcomm_recv(world, 0, 0, HETCOMM_ANY_TAG, hetcomm_buffer_host(&values[0], 8), nullptr,
                       &request));
    wait_for(request);
  }
}

void overdue(size_t count) {
  if (rank == 0) {
    Requests requests(count);
    std::vector<uint64_t> values(count);
    hetcomm_operation_options_t options{};
    options.struct_size = sizeof(options);
    options.timeout_ns = 1'000'000;
    for (size_t i = 0; i < count; ++i) {
      CHECK(hetcomm_recv(world, 1, kFirstTag + i, HETCOMM_EXACT_TAG,
                         hetcomm_buffer_host(&values[i], 8), &options, &requests[i]));
    }
    wait_for_all(requests, HETCOMM_TIMED_OUT);
  }
  meet();
}

// --- collective operations -----------------------------------------------------------------------

void broadcasts(size_t count) {
  Requests requests(count);
  std::vector<uint64_t> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = rank == 0 ? i : 0;
    CHECK(hetcomm_broadcast(world, 0, hetcomm_buffer_host(&values[i], 8), HETCOMM_UINT8, nullptr,
                            &requests[i]));
  }
  wait_for_all(requests);
  for (size_t i = 0; i < count; ++i) demand(values[i] == i, "a broadcast brought something else");
}

// --- one-sided operations ------------------------------------------------------------------------

// Returns rank 1's |bytes| on both ranks.
std::vector<std::byte> hand_over(std::vector<std::byte> bytes) {
  if (rank == 1) {
    demand(bytes.size() <= sizeof(meeting->bytes), "too much to hand over");
    std::memcpy(meeting->bytes, bytes.data(), bytes.size());
    meeting->size = static_cast<uint32_t>(bytes.size());
  }
  meet();
  bytes.assign(meeting->bytes, meeting->bytes + meeting->size);
  meet();
  return bytes;
}

std::vector<std::byte> export_of(const hetcomm_memory_t* memory) {
  std::vector<std::byte> bytes(HETCOMM_EXPORT_MAX_BYTES);
  size_t size = 0;
  CHECK(hetcomm_memory_export(memory, bytes.size(), bytes.data(), &size));
  bytes.resize(size);
  return bytes;
}

void one_sided(size_t count, bool puts) {
  std::vector<uint64_t> values(count);
  hetcomm_memory_t* memory = nullptr;
  std::vector<std::byte> bytes;
  if (rank == 1) {
    CHECK(hetcomm_memory_wrap(context, 0, values.data(), 8 * count, &memory));
    CHECK(hetcomm_memory_register(memory, world, HETCOMM_ACCESS_PUT | HETCOMM_ACCESS_GET,
                                  HETCOMM_REGISTER_CALLER_PROGRESS));
    bytes = export_of(memory);
  }
  bytes = hand_over(std::move(bytes));
  hetcomm_request_t* last = nullptr;
  uint64_t end = 0;
  if (rank == 1) {
    CHECK(
        hetcomm_recv(world, 0, 1, HETCOMM_EXACT_TAG, hetcomm_buffer_host(&end, 8), nullptr, &last));
    wait_for(last);
    CHECK(hetcomm_memory_unregister(memory, 0));
    CHECK(hetcomm_memory_destroy(memory));
    return;
  }
  hetcomm_remote_memory_t* remote = nullptr;
  CHECK(hetcomm_memory_import(world, bytes.data(), bytes.size(), &remote));
  Requests requests(count);
  for (size_t i = 0; i < count; ++i) {
    const hetcomm_buffer_t buffer = hetcomm_buffer_host(&values[i], 8);
    CHECK(puts ? hetcomm_put(remote, 8 * i, buffer, nullptr, &requests[i])
               : hetcomm_get(remote, 8 * i, buffer, nullptr, &requests[i]));
  }
  wait_for_all(requests);
  CHECK(hetcomm_remote_memory_destroy(remote));
  CHECK(hetcomm_send(world, 1, 1, hetcomm_buffer_host(&end, 8), nullptr, &last));
  wait_for(last);
}

// All memories exist at the same time, and rank 0 puts to each.
void memories(size_t count) {
  std::vector<uint64_t> values(count);
  std::vector<hetcomm_memory_t*> own(count);
  std::vector<std::byte> bytes;
  size_t size = 0;
  if (rank == 1) {
    for (size_t i = 0; i < count; ++i) {
      CHECK(hetcomm_memory_wrap(context, 0, &values[i], 8, &own[i]));
      CHECK(hetcomm_memory_register(own[i], world, HETCOMM_ACCESS_PUT,
                                    HETCOMM_REGISTER_CALLER_PROGRESS));
      const std::vector<std::byte> exported = export_of(own[i]);
      bytes.insert(bytes.end(), exported.begin(), exported.end());
    }
  }
  bytes = hand_over(std::move(bytes));
  size = bytes.size() / count;
  hetcomm_request_t* last = nullptr;
  if (rank == 1) {
    uint64_t end = 0;
    CHECK(
        hetcomm_recv(world, 0, 1, HETCOMM_EXACT_TAG, hetcomm_buffer_host(&end, 8), nullptr, &last));
    wait_for(last);
    for (size_t i = 0; i < count; ++i) {
      demand(values[i] == i, "a put wrote something else");
      CHECK(hetcomm_memory_unregister(own[i], 0));
      CHECK(hetcomm_memory_destroy(own[i]));
    }
    return;
  }
  std::vector<hetcomm_remote_memory_t*> remotes(count);
  Requests requests(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = i;
    CHECK(hetcomm_memory_import(world, bytes.data() + i * size, size, &remotes[i]));
    CHECK(hetcomm_put(remotes[i], 0, hetcomm_buffer_host(&values[i], 8), nullptr, &requests[i]));
  }
  wait_for_all(requests);
  for (hetcomm_remote_memory_t* const remote : remotes) {
    CHECK(hetcomm_remote_memory_destroy(remote));
  }
  CHECK(hetcomm_send(world, 1, 1, hetcomm_buffer_host(&values[0], 8), nullptr, &last));
  wait_for(last);
}

// Device allocations that are named by pointers, all existing at the same time.
void pointers(size_t count) {
  std::vector<hetcomm_memory_t*> own(count);
  Requests requests(count);
  for (size_t i = 0; i < count; ++i) {
    CHECK(hetcomm_memory_allocate(context, 1, 64, &own[i]));
    void* address = nullptr;
    CHECK(hetcomm_memory_address(own[i], &address));
    hetcomm_buffer_t buffer;
    CHECK(hetcomm_buffer_pointer(context, address, 64, &buffer));
    CHECK(rank == 0 ? hetcomm_send(world, 1, kFirstTag + i, buffer, nullptr, &requests[i])
                    : hetcomm_recv(world, 0, kFirstTag + i, HETCOMM_EXACT_TAG, buffer, nullptr,
                                   &requests[i]));
  }
  wait_for_all(requests);
  for (hetcomm_memory_t* const memory : own) CHECK(hetcomm_memory_destroy(memory));
}

// --- plans ---------------------------------------------------------------------------------------

hetcomm_layout_t* layout_on(int32_t owner) {
  hetcomm_part_t part{};
  part.rank = owner;
  part.end[0] = 16;
  const uint64_t shape = 16;
  hetcomm_layout_t* layout = nullptr;
  CHECK(hetcomm_layout_from_parts(1, &shape, &part, 1, nullptr, &layout));
  return layout;
}

struct Plans {
  hetcomm_layout_t* from = layout_on(0);
  hetcomm_layout_t* to = layout_on(1);
  std::vector<float> values = std::vector<float>(16);

  hetcomm_reshard_t* make(uint64_t tag) const {
    const hetcomm_reshard_tensor_t tensor{from, to, HETCOMM_FLOAT32, HETCOMM_FLOAT32};
    hetcomm_reshard_options_t options{};
    options.struct_size = sizeof(options);
    options.tag = tag;
    hetcomm_reshard_t* plan = nullptr;
    CHECK(hetcomm_reshard_create(world, &tensor, 1, &options, &plan));
    return plan;
  }
  static hetcomm_request_t* start(hetcomm_reshard_t* plan, float* data) {
    const hetcomm_buffer_t buffer = hetcomm_buffer_host(data, 16 * sizeof(float));
    hetcomm_request_t* request = nullptr;
    CHECK(hetcomm_reshard_start(plan, rank == 0 ? &buffer : nullptr, rank == 1 ? &buffer : nullptr,
                                nullptr, &request));
    return request;
  }
  ~Plans() {
    CHECK(hetcomm_layout_destroy(from));
    CHECK(hetcomm_layout_destroy(to));
  }
};

void plans_in_turn(size_t count) {
  Plans plans;
  for (size_t i = 0; i < count; ++i) {
    hetcomm_reshard_t* const plan = plans.make(0);
    wait_for(Plans::start(plan, plans.values.data()));
    CHECK(hetcomm_reshard_destroy(plan));
  }
}

// Executions of all plans are in flight at the same time.
void plans_at_once(size_t count, bool tags) {
  Plans plans;
  std::vector<float> values(16 * count);
  std::vector<hetcomm_reshard_t*> all(count);
  Requests requests(count);
  for (size_t i = 0; i < count; ++i) all[i] = plans.make(tags ? i : 0);
  for (size_t i = 0; i < count; ++i) {
    if (rank == 0) values[16 * i] = static_cast<float>(i);
    requests[i] = Plans::start(all[i], &values[16 * i]);
  }
  wait_for_all(requests);
  for (size_t i = 0; i < count; ++i) {
    demand(values[16 * i] == static_cast<float>(i), "an execution moved something else");
  }
  meet();
  for (hetcomm_reshard_t* const plan : all) CHECK(hetcomm_reshard_destroy(plan));
}

// --- groups and communicators --------------------------------------------------------------------

void groups(size_t count, size_t operations) {
  std::vector<hetcomm_group_t*> all(count);
  Requests requests(count * operations);
  std::vector<uint64_t> values(count * operations);
  for (size_t i = 0; i < count; ++i) {
    CHECK(hetcomm_group_create(world, &all[i]));
    hetcomm_operation_options_t options{};
    options.struct_size = sizeof(options);
    options.group = all[i];
    for (size_t j = i * operations; j < (i + 1) * operations; ++j) {
      const hetcomm_buffer_t buffer = hetcomm_buffer_host(&values[j], 8);
      CHECK(rank == 0 ? hetcomm_send(world, 1, kFirstTag + j, buffer, &options, &requests[j])
                      : hetcomm_recv(world, 0, kFirstTag + j, HETCOMM_EXACT_TAG, buffer, &options,
                                     &requests[j]));
    }
  }
  for (hetcomm_group_t* const group : all) CHECK(hetcomm_group_start(group));
  wait_for_all(requests);
  for (hetcomm_group_t* const group : all) hetcomm_group_destroy(group);
}

// Each communicator has a broadcast and a message in flight.
void communicators(size_t count) {
  std::vector<hetcomm_communicator_t*> all(count);
  std::vector<uint64_t> values(2 * count);
  Requests requests;
  for (size_t i = 0; i < count; ++i) CHECK(hetcomm_communicator_split(world, 0, rank, &all[i]));
  for (size_t i = 0; i < count; ++i) {
    hetcomm_request_t* request = nullptr;
    CHECK(hetcomm_broadcast(all[i], 0, hetcomm_buffer_host(&values[2 * i], 8), HETCOMM_UINT8,
                            nullptr, &request));
    requests.push_back(request);
    const hetcomm_buffer_t buffer = hetcomm_buffer_host(&values[2 * i + 1], 8);
    CHECK(rank == 0 ? hetcomm_send(all[i], 1, 7, buffer, nullptr, &request)
                    : hetcomm_recv(all[i], 0, 7, HETCOMM_EXACT_TAG, buffer, nullptr, &request));
    requests.push_back(request);
  }
  wait_for_all(requests);
  meet();
  for (hetcomm_communicator_t* const each : all) CHECK(hetcomm_communicator_destroy(each));
}

const std::map<std::string, std::function<void(size_t)>>& rows() {
  static const std::map<std::string, std::function<void(size_t)>> all{
      {"receives_first", [](size_t n) { messages(n, {}); }},
      {"receives_first_reversed", [](size_t n) { messages(n, {.reversed = true}); }},
      {"sends_first", [](size_t n) { messages(n, {.late = true}); }},
      {"sends_first_reversed", [](size_t n) { messages(n, {.late = true, .reversed = true}); }},
      {"any_source",
       [](size_t n) { messages(n, {.reversed = true, .source = HETCOMM_ANY_SOURCE}); }},
      {"any_source_late",
       [](size_t n) {
         messages(n, {.late = true, .reversed = true, .source = HETCOMM_ANY_SOURCE});
       }},
      {"masked_tags", [](size_t n) { messages(n, {.reversed = true, .ignore = 1}); }},
      {"masked_tags_late",
       [](size_t n) { messages(n, {.late = true, .reversed = true, .ignore = 1}); }},
      {"masks_by_turns",
       [](size_t n) { messages(n, {.reversed = true, .ignore = 1, .by_turns = true}); }},
      {"masks_by_turns_late",
       [](size_t n) {
         messages(n, {.late = true, .reversed = true, .ignore = 1, .by_turns = true});
       }},
      {"prepared", prepared},
      {"wait_any", wait_any},
      {"cancelled_receives", [](size_t n) { cancelled(n, false); }},
      {"cancelled_sends", [](size_t n) { cancelled(n, true); }},
      {"overdue", overdue},
      {"broadcasts", broadcasts},
      {"puts", [](size_t n) { one_sided(n, true); }},
      {"gets", [](size_t n) { one_sided(n, false); }},
      {"memories", memories},
      {"pointers", pointers},
      {"plans_in_turn", plans_in_turn},
      {"plans_at_once", [](size_t n) { plans_at_once(n, false); }},
      {"plans_with_tags", [](size_t n) { plans_at_once(n, true); }},
      {"groups", [](size_t n) { groups(n, 4); }},
      {"group_of_many", [](size_t n) { groups(1, n); }},
      {"communicators", communicators},
  };
  return all;
}

int64_t bytes_allocated() {
  const struct mallinfo2 found = mallinfo2();
  return static_cast<int64_t>(found.uordblks + found.hblkhd);
}

hetcomm_bootstrap_t* join() {
  CHECK(hetcomm_context_create(nullptr, &context));
  hetcomm_bootstrap_t* bootstrap = nullptr;
  CHECK(hetcomm_bootstrap_create_from_environment(context, &bootstrap));
  CHECK(hetcomm_communicator_create(context, bootstrap, nullptr, &world));
  CHECK(hetcomm_communicator_barrier(world, 0));
  return bootstrap;
}

void lose(size_t count) {
  static_cast<void>(join());
  if (rank == 1) {
    meet();
    _exit(0);
  }
  Requests requests(count);
  std::vector<uint64_t> values(count);
  for (size_t i = 0; i < count; ++i) {
    const hetcomm_buffer_t buffer = hetcomm_buffer_host(&values[i], 8);
    CHECK(i % 2 == 0 ? hetcomm_send(world, 1, kFirstTag + i, buffer, nullptr, &requests[i])
                     : hetcomm_recv(world, 1, kFirstTag + i, HETCOMM_EXACT_TAG, buffer, nullptr,
                                    &requests[i]));
  }
  meet();
  const auto start = std::chrono::steady_clock::now();
  for (size_t i = 0; i < count; ++i) {
    hetcomm_completion_t end{};
    CHECK(hetcomm_request_wait(requests[i], kTimeoutNs, &end));
    // The first messages may have left already.
    demand(end.status == HETCOMM_PEER_LOST || (i % 2 == 0 && end.status == HETCOMM_OK),
           "an operation with a rank that has ended ended otherwise");
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  std::printf("%zu %.6f\n", count, elapsed.count());
}

void play(const std::function<void(size_t)>& row, size_t most, int rounds) {
  hetcomm_bootstrap_t* const bootstrap = join();
  row(most / 16);
  int64_t before = 0;
  for (int round = 0; round < rounds; ++round) {
    for (const size_t count : {most / 4, most / 2, most}) {
      CHECK(hetcomm_communicator_barrier(world, 0));
      meet();
      const auto start = std::chrono::steady_clock::now();
      row(count);
      CHECK(hetcomm_communicator_barrier(world, 0));
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      if (rank == 0) std::printf("%zu %.6f\n", count, elapsed.count());
      std::fflush(stdout);
    }
    if (round == 0) before = bytes_allocated();
  }
  const int64_t kept = bytes_allocated() - before;
  if (rank == 1) meeting->kept = kept;
  meet();
  if (rank == 0)
    std::printf("kept %lld\n", static_cast<long long>(std::max(kept, meeting->kept.load())));
  CHECK(hetcomm_communicator_destroy(world));
  hetcomm_bootstrap_destroy(bootstrap);
  CHECK(hetcomm_context_destroy(context));
}

}  // namespace

int main(int argc, char** argv) {
  const auto row = rows().find(argc > 1 ? argv[1] : "");
  const bool loses = argc > 1 && std::strcmp(argv[1], "lost") == 0;
  const size_t count = argc == 4 ? std::strtoull(argv[2], nullptr, 10) : 0;
  const int rounds = argc == 4 ? std::atoi(argv[3]) : 0;
  if (count == 0 || count > kMaxItems || rounds <= 0 || (row == rows().end() && !loses)) {
    std::printf("FAILED usage: thousands ROW MOST ROUNDS, with a ROW of lost");
    for (const auto& [name, run] : rows()) std::printf(", %s", name.c_str());
    std::printf("\n");
    return 2;
  }
  setenv("MASTER_ADDR", "127.0.0.1", 0);
  setenv("MASTER_PORT", "29517", 0);
  void* const shared =
      mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 2;
  meeting = new (shared) Meeting;
  const pid_t other = fork();
  rank = other == 0 ? 1 : 0;
  if (rank == 1) prctl(PR_SET_PDEATHSIG, SIGKILL);
  setenv("WORLD_SIZE", "2", 1);
  setenv("RANK", rank == 0 ? "0" : "1", 1);
  if (loses) {
    lose(count);
    std::fflush(stdout);
    _exit(0);
  }
  play(row->second, count, rounds);
  if (rank == 1) return 0;
  int status = 0;
  waitpid(other, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}
