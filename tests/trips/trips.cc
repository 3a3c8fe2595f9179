// Five operations between two ranks, for a debugger that looks at rank 0 (record.py).
//
// The ranks run each operation some times, so that connections, plans and grants are there, and
// once more between trip_begin() and trip_end().
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <hetcomm/hetcomm.h>

extern "C" {
// The debugger stops in these functions, and reads the name.
const char* trip_name = "";
[[gnu::noinline]] void trip_begin() { asm volatile("" : : : "memory"); }
[[gnu::noinline]] void trip_end() { asm volatile("" : : : "memory"); }
}

namespace {

// A rendezvous, for one-sided operations.
constexpr size_t kBytes = size_t{1} << 20;
// Longer items of queues and messages of reshard plans leave in a later pass.
constexpr size_t kShortBytes = size_t{16} << 10;
constexpr uint64_t kTag = 1;

void check(hetcomm_status_t status, const char* what) {
  if (status == HETCOMM_OK) return;
  std::fprintf(stderr, "%s: %s: %s\n", what, hetcomm_status_name(status), hetcomm_last_error());
  std::exit(1);
}

void wait(hetcomm_request_t* request) {
  hetcomm_completion_t completion;
  check(hetcomm_request_wait(request, HETCOMM_TIMEOUT_DEFAULT, &completion), "wait");
  if (completion.status == HETCOMM_OK) return;
  std::fprintf(stderr, "%s: %s\n", hetcomm_status_name(completion.status), completion.text);
  std::exit(1);
}

template <typename Options>
Options options_of() {
  Options options;
  std::memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  return options;
}

class Trips {
 public:
  Trips() {
    auto options = options_of<hetcomm_context_options_t>();
    options.progress = HETCOMM_PROGRESS_THREAD;
    check(hetcomm_context_create(&options, &context_), "context");
    check(hetcomm_bootstrap_create_from_environment(context_, &bootstrap_), "bootstrap");
    check(hetcomm_communicator_create(context_, bootstrap_, nullptr, &world_), "communicator");
    int32_t size = 0;
    check(hetcomm_communicator_rank(world_, &rank_, &size), "rank");
    check(hetcomm_memory_allocate(context_, kDevice, kBytes, &device_memory_), "allocate");
  }
  ~Trips() {
    barrier();
    check(hetcomm_memory_destroy(device_memory_), "destroy");
    check(hetcomm_communicator_destroy(world_), "destroy");
    hetcomm_bootstrap_destroy(bootstrap_);
    check(hetcomm_context_destroy(context_), "destroy");
  }
  Trips(const Trips&) = delete;
  Trips& operator=(const Trips&) = delete;

  void push() {
    auto options = options_of<hetcomm_queue_options_t>();
    options.max_item_bytes = kShortBytes;
    hetcomm_queue_t* queue = nullptr;
    check(hetcomm_queue_create(world_, peer(), rank_ == 0 ? HETCOMM_QUEUE_PUSH : HETCOMM_QUEUE_PULL,
                               &options, &queue),
          "queue");
    trip("queue push", [&] {
      hetcomm_request_t* request = nullptr;
      check(rank_ == 0 ? hetcomm_queue_push(queue, host(kShortBytes), nullptr, &request)
                       : hetcomm_queue_pull(queue, host(kShortBytes), nullptr, &request),
            "push");
      return request;
    });
    check(hetcomm_queue_destroy(queue), "destroy");
  }

  void put_with_notification() {
    hetcomm_memory_t* window = nullptr;
    check(hetcomm_memory_wrap(context_, 0, bytes_.data(), kBytes, &window), "wrap");
    check(hetcomm_memory_register(window, world_, HETCOMM_ACCESS_ALL, 0), "register");
    hetcomm_remote_memory_t* remote = exchange(window);
    trip("put with notification", [&]() -> hetcomm_request_t* {
      hetcomm_request_t* request = nullptr;
      if (rank_ == 0) {
        hetcomm_operation_options_t options = options_of<hetcomm_operation_options_t>();
        options.flags = HETCOMM_OPERATION_NOTIFY;
        check(hetcomm_put(remote, 0, host(kBytes), &options, &request), "put");
      }
      return request;
    });
    check(hetcomm_remote_memory_destroy(remote), "destroy");
    check(hetcomm_memory_unregister(window, HETCOMM_TIMEOUT_DEFAULT), "unregister");
    check(hetcomm_memory_destroy(window), "destroy");
  }

  void send_behind_a_stream() {
    hetcomm_stream_t* stream = nullptr;
    check(hetcomm_stream_create(context_, kDevice, 0, &stream), "stream");
    trip("send behind a stream", [&] {
      auto options = options_of<hetcomm_operation_options_t>();
      options.stream = rank_ == 0 ? stream : nullptr;
      hetcomm_request_t* request = nullptr;
      check(rank_ == 0 ? hetcomm_send(world_, peer(), kTag, device(), &options, &request)
                       : hetcomm_recv(world_, peer(), kTag, HETCOMM_EXACT_TAG, device(), &options,
                                      &request),
            "send");
      return request;
    });
    check(hetcomm_stream_destroy(stream), "destroy");
  }

  void reshard() {
    const uint64_t shape[] = {kShortBytes / sizeof(float)};
    hetcomm_layout_t* layouts[2] = {};
    for (int32_t owner = 0; owner < 2; ++owner) {
      const uint64_t axes[] = {1};
      const hetcomm_placement_t whole{HETCOMM_PLACEMENT_REPLICATE, 0, 1, nullptr};
      check(hetcomm_layout_from_mesh(1, shape, 1, axes, &owner, &whole, nullptr, &layouts[owner]),
            "layout");
    }
    const hetcomm_reshard_tensor_t tensor{layouts[0], layouts[1], HETCOMM_FLOAT32, HETCOMM_FLOAT32};
    hetcomm_reshard_t* plan = nullptr;
    check(hetcomm_reshard_create(world_, &tensor, 1, nullptr, &plan), "plan");
    trip("reshard start", [&] {
      const hetcomm_buffer_t buffer = host(kShortBytes);
      hetcomm_request_t* request = nullptr;
      check(hetcomm_reshard_start(plan, rank_ == 0 ? &buffer : nullptr,
                                  rank_ == 0 ? nullptr : &buffer, nullptr, &request),
            "start");
      return request;
    });
    check(hetcomm_reshard_destroy(plan), "destroy");
    for (hetcomm_layout_t* const layout : layouts) check(hetcomm_layout_destroy(layout), "destroy");
  }

  void allreduce() {
    trip(
        "allreduce of device memory",
        [&] {
          hetcomm_request_t* request = nullptr;
          check(hetcomm_allreduce(world_, device(), device(), HETCOMM_FLOAT32, HETCOMM_REDUCE_SUM,
                                  nullptr, &request),
                "allreduce");
          return request;
        },
        true);
  }

 private:
  static constexpr int32_t kDevice = 1;

  int32_t peer() const { return 1 - rank_; }
  hetcomm_buffer_t host(size_t bytes) { return hetcomm_buffer_host(bytes_.data(), bytes); }
  hetcomm_buffer_t device() const { return {device_memory_, 0, kBytes}; }
  void barrier() {
    check(hetcomm_communicator_barrier(world_, HETCOMM_TIMEOUT_DEFAULT), "barrier");
  }

  void trip(const char* name, const std::function<hetcomm_request_t*()>& start,
            bool is_collective = false) {
    for (int round = 0; round < 3; ++round) {
      if (hetcomm_request_t* const request = start(); request != nullptr) wait(request);
      barrier();
    }
    // The peer is ready, and its grants are here.
    hetcomm_request_t* request = nullptr;
    if (rank_ == 1 && !is_collective) request = start();
    barrier();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (rank_ == 1 && is_collective) request = start();
    if (rank_ == 0) {
      trip_name = name;
      trip_begin();
      request = start();
      if (request != nullptr) wait(request);
      trip_end();
    } else if (request != nullptr) {
      wait(request);
    }
    barrier();
  }

  hetcomm_remote_memory_t* exchange(hetcomm_memory_t* window) {
    std::vector<unsigned char> mine(HETCOMM_EXPORT_MAX_BYTES);
    std::vector<unsigned char> theirs(HETCOMM_EXPORT_MAX_BYTES);
    size_t size = 0;
    check(hetcomm_memory_export(window, mine.size(), mine.data(), &size), "export");
    hetcomm_request_t* receive = nullptr;
    hetcomm_request_t* send = nullptr;
    check(hetcomm_recv(world_, peer(), kTag, HETCOMM_EXACT_TAG,
                       hetcomm_buffer_host(theirs.data(), theirs.size()), nullptr, &receive),
          "recv");
    check(
        hetcomm_send(world_, peer(), kTag, hetcomm_buffer_host(mine.data(), size), nullptr, &send),
        "send");
    wait(send);
    hetcomm_completion_t completion;
    check(hetcomm_request_wait(receive, HETCOMM_TIMEOUT_DEFAULT, &completion), "wait");
    hetcomm_remote_memory_t* remote = nullptr;
    check(hetcomm_memory_import(world_, theirs.data(), completion.bytes_received, &remote),
          "import");
    return remote;
  }

  std::vector<unsigned char> bytes_ = std::vector<unsigned char>(kBytes);
  hetcomm_context_t* context_ = nullptr;
  hetcomm_bootstrap_t* bootstrap_ = nullptr;
  hetcomm_communicator_t* world_ = nullptr;
  hetcomm_memory_t* device_memory_ = nullptr;
  int32_t rank_ = 0;
};

}  // namespace

int main() {
  Trips trips;
  trips.push();
  trips.put_with_notification();
  trips.send_behind_a_stream();
  trips.reshard();
  trips.allreduce();
  return 0;
}
