// Devices that hang and are abandoned (hetcomm_device_abandon, HETCOMM_DEVICE_TIMEOUT):
//
//   * a cancel, a deadline or an abort does not end an operation whose copy does not end;
//     abandoning the device ends every kind of operation, on both ranks, at any stage
//   * HETCOMM_DEVICE_TIMEOUT, if set, soon does the same; the log names device, copy and operation
//   * without a limit nothing is reported and nothing is abandoned
//   * the text says which memory must not be reused, whatever had ended the operation before
//   * the other ranks of a collective operation end soon, and name the rank whose device hangs
//   * the caller's host memory is not written afterwards, and a chunk is reused once its late copy
//     has ended, and not before
//   * other devices and host memory still work; calls that name the abandoned device are refused
//   * everything can be destroyed while the copy hangs, and the memory used by the copy stays valid
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "src/system/clock.h"
#include "tests/conformance/capi/job.h"
#include "tests/support/hanging_device.h"

namespace hetcomm_test {
namespace {

using hetcomm::now_ns;
using hetcomm::test::HangingDevice;
using Way = HangingDevice::Way;

constexpr uint64_t kBytes = 4u << 20;
// The value of DEVICE_TIMEOUT in rounds that use it.
constexpr uint64_t kLimitNs = 100 * kMs;

std::vector<CapiCase> cases() {
  std::vector<CapiCase> all;
  for (const char* transport : {"shm", "tcp"}) {
    for (const bool thread : {false, true}) {
      all.push_back({.name = std::string(transport) + (thread ? "_thread" : ""),
                     .transports = transport,
                     .settings = "STAGING_CHUNK=256K;",
                     .thread_progress = thread});
    }
  }
  return all;
}

// A rank with its own device.
class Rank {
 public:
  Rank(Member& me, HangingDevice& device, uint64_t bytes)
      : me_(me), device_(device), bytes_(bytes), host_(bytes) {
    const hetcomm_device_t own = device.device();
    const hetcomm_status_t added = hetcomm_device_add(me.context(), &own, &number_);
    EXPECT_EQ(added, HETCOMM_OK) << hetcomm_last_error();
    if (added != HETCOMM_OK) abort();  // every test needs the device
    EXPECT_EQ(hetcomm_memory_allocate(me.context(), number_, bytes, &memory_), HETCOMM_OK);
    EXPECT_EQ(hetcomm_memory_write(memory_, 0, host_.data(), bytes), HETCOMM_OK);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  ~Rank() { EXPECT_EQ(hetcomm_memory_destroy(memory_), HETCOMM_OK) << hetcomm_last_error(); }

  Member& me() { return me_; }
  int32_t rank() const { return me_.rank(); }
  int32_t peer() const { return 1 - me_.rank(); }
  HangingDevice& device() { return device_; }
  int32_t number() const { return number_; }
  hetcomm_memory_t* memory() { return memory_; }
  uint64_t bytes() const { return bytes_; }
  hetcomm_buffer_t on_device(uint64_t offset, uint64_t length) {
    return hetcomm_buffer_memory(memory_, offset, length);
  }
  std::vector<std::byte>& host() { return host_; }
  hetcomm_buffer_t on_host(uint64_t offset, uint64_t length) {
    return hetcomm_buffer_host(host_.data() + offset, length);
  }
  // Sets the deadline of operations that this rank starts from now on. 0: the default.
  void set_timeout(uint64_t timeout_ns) { timeout_ns_ = timeout_ns; }
  hetcomm_operation_options_t options() const { return with_timeout(timeout_ns_); }
  hetcomm_collective_options_t collective_options() const {
    hetcomm_collective_options_t options{};
    options.struct_size = sizeof(options);
    options.timeout_ns = timeout_ns_;
    return options;
  }
  void abandon() {
    EXPECT_EQ(hetcomm_device_abandon(me_.context(), number_, "the test says so"), HETCOMM_OK)
        << hetcomm_last_error();
  }

 private:
  Member& me_;
  HangingDevice& device_;
  const uint64_t bytes_;
  std::vector<std::byte> host_;
  int32_t number_ = -1;
  hetcomm_memory_t* memory_ = nullptr;
  uint64_t timeout_ns_ = 0;
};

using Requests = std::vector<hetcomm_request_t*>;

// Returns the time that a small operation currently takes: a word goes to the other rank and back.
uint64_t time_of_word(Member& me) {
  uint64_t took_ns = 0;
  for (int i = 0; i < 2; ++i) {  // the first iteration connects
    const uint64_t begin_ns = now_ns();
    uint64_t word = 0;
    for (const int32_t sender : {0, 1}) {
      const Outcome outcome =
          finish(me.rank() == sender ? me.send(1 - sender, 4, &word, sizeof(word))
                                     : me.recv(sender, 4, &word, sizeof(word)));
      EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
    }
    took_ns = now_ns() - begin_ns;
  }
  return took_ns;
}

// Returns the limit for a prompt end, if an ordinary operation takes |control_ns|.
uint64_t soon_ns(uint64_t control_ns) { return kSec + 10 * control_ns; }

bool is_pending(hetcomm_request_t* request) {
  return hetcomm_request_test(request, nullptr) == HETCOMM_PENDING;
}

// An operation that is polled repeatedly. Null: none.
class Running {
 public:
  explicit Running(hetcomm_request_t* request) : request_(request) {}
  bool exists() const { return request_ != nullptr || is_over_; }
  hetcomm_request_t* request() const { return request_; }
  bool is_over() {
    if (is_over_ || request_ == nullptr) return is_over_;
    hetcomm_completion_t completion{};
    const hetcomm_status_t call = hetcomm_request_test(request_, &completion);
    if (call == HETCOMM_PENDING) return false;
    EXPECT_EQ(call, HETCOMM_OK) << hetcomm_last_error();
    outcome_.status = completion.status;
    outcome_.text = completion.text;
    request_ = nullptr;
    is_over_ = true;
    return true;
  }
  Outcome finish_now() {
    if (!is_over()) outcome_ = finish(request_);
    request_ = nullptr;
    is_over_ = true;
    return outcome_;
  }

 private:
  hetcomm_request_t* request_;
  bool is_over_ = false;
  Outcome outcome_;
};

// One kind of operation between two ranks on the memory of their devices.
class Kind {
 public:
  virtual ~Kind() = default;
  virtual void set_up(Rank& /*own*/) {}
  // Returns whether start() gives |rank| a request.
  virtual bool has_request(int32_t /*rank*/) const { return true; }
  virtual hetcomm_request_t* start(Rank& own) = 0;
  virtual void tear_down(Rank& /*own*/) {}
};

class Messages final : public Kind {
 public:
  Messages(uint64_t bytes, bool pieces) : bytes_(bytes), pieces_(pieces) {}
  hetcomm_request_t* start(Rank& own) override {
    hetcomm_request_t* request = nullptr;
    const hetcomm_operation_options_t options = own.options();
    hetcomm_communicator_t* const on = own.me().communicator();
    const bool sends = own.rank() == 0;
    hetcomm_status_t status = HETCOMM_INTERNAL;
    if (pieces_) {
      const hetcomm_buffer_t all[] = {own.on_host(0, bytes_ / 2), own.on_device(0, bytes_ / 2)};
      status = sends ? hetcomm_sendv(on, 1, 1, all, 2, &options, &request)
                     : hetcomm_recvv(on, 0, 1, HETCOMM_EXACT_TAG, all, 2, &options, &request);
    } else {
      const hetcomm_buffer_t all = own.on_device(0, bytes_);
      status = sends ? hetcomm_send(on, 1, 1, all, &options, &request)
                     : hetcomm_recv(on, 0, 1, HETCOMM_EXACT_TAG, all, &options, &request);
    }
    EXPECT_EQ(status, HETCOMM_OK) << hetcomm_last_error();
    return request;
  }

 private:
  const uint64_t bytes_;
  const bool pieces_;
};

// Rank 0 accesses memory of rank 1.
class Accesses final : public Kind {
 public:
  explicit Accesses(bool puts) : puts_(puts) {}
  void set_up(Rank& own) override {
    std::vector<std::byte> exported(HETCOMM_EXPORT_MAX_BYTES);
    if (own.rank() == 1) {
      const uint32_t flags =
          own.me().test_case().thread_progress ? 0 : HETCOMM_REGISTER_CALLER_PROGRESS;
      ASSERT_EQ(hetcomm_memory_register(own.memory(), own.me().communicator(),
                                        HETCOMM_ACCESS_PUT | HETCOMM_ACCESS_GET, flags),
                HETCOMM_OK)
          << hetcomm_last_error();
      size_t size = 0;
      ASSERT_EQ(hetcomm_memory_export(own.memory(), exported.size(), exported.data(), &size),
                HETCOMM_OK);
      EXPECT_EQ(finish(own.me().send(0, 7, exported.data(), size)).status, HETCOMM_OK);
    } else {
      const Outcome told = finish(own.me().recv(1, 7, exported.data(), exported.size()));
      EXPECT_EQ(told.status, HETCOMM_OK) << told.text;
      exported.resize(told.bytes_received);
      ASSERT_EQ(hetcomm_memory_import(own.me().communicator(), exported.data(), exported.size(),
                                      &remote_),
                HETCOMM_OK)
          << hetcomm_last_error();
    }
  }
  bool has_request(int32_t rank) const override { return rank == 0; }
  hetcomm_request_t* start(Rank& own) override {
    if (!has_request(own.rank())) return nullptr;
    hetcomm_request_t* request = nullptr;
    const hetcomm_operation_options_t options = own.options();
    const hetcomm_buffer_t buffer = own.on_device(0, own.bytes());
    EXPECT_EQ(puts_ ? hetcomm_put(remote_, 0, buffer, &options, &request)
                    : hetcomm_get(remote_, 0, buffer, &options, &request),
              HETCOMM_OK)
        << hetcomm_last_error();
    return request;
  }
  void tear_down(Rank& own) override {
    if (own.rank() == 1) {
      EXPECT_EQ(hetcomm_memory_unregister(own.memory(), kPatienceNs), HETCOMM_OK)
          << hetcomm_last_error();
    } else {
      EXPECT_EQ(hetcomm_remote_memory_destroy(remote_), HETCOMM_OK) << hetcomm_last_error();
    }
  }

 private:
  const bool puts_;
  hetcomm_remote_memory_t* remote_ = nullptr;
};

class Items final : public Kind {
 public:
  void set_up(Rank& own) override {
    hetcomm_queue_options_t options{};
    options.struct_size = sizeof(options);
    options.max_item_bytes = own.bytes();
    EXPECT_EQ(hetcomm_queue_create(own.me().communicator(), own.peer(),
                                   own.rank() == 0 ? HETCOMM_QUEUE_PUSH : HETCOMM_QUEUE_PULL,
                                   &options, &queues_[static_cast<size_t>(own.rank())]),
              HETCOMM_OK)
        << hetcomm_last_error();
  }
  hetcomm_request_t* start(Rank& own) override {
    hetcomm_queue_t* const queue = queues_[static_cast<size_t>(own.rank())];
    hetcomm_request_t* request = nullptr;
    const hetcomm_operation_options_t options = own.options();
    const hetcomm_buffer_t buffer = own.on_device(0, own.bytes());
    EXPECT_EQ(own.rank() == 0 ? hetcomm_queue_push(queue, buffer, &options, &request)
                              : hetcomm_queue_pull(queue, buffer, &options, &request),
              HETCOMM_OK)
        << hetcomm_last_error();
    return request;
  }
  void tear_down(Rank& own) override {
    EXPECT_EQ(hetcomm_queue_destroy(queues_[static_cast<size_t>(own.rank())]), HETCOMM_OK)
        << hetcomm_last_error();
  }

 private:
  std::array<hetcomm_queue_t*, 2> queues_{};
};

class Collectives final : public Kind {
 public:
  // |mixed|: the result goes to host memory.
  explicit Collectives(bool sums, bool mixed = false) : sums_(sums), mixed_(mixed) {}
  hetcomm_request_t* start(Rank& own) override { return start_on(own.me().communicator(), own); }
  hetcomm_request_t* start_on(hetcomm_communicator_t* communicator, Rank& own) {
    hetcomm_request_t* request = nullptr;
    const hetcomm_collective_options_t options = own.collective_options();
    const uint64_t half = own.bytes() / 2;
    const hetcomm_status_t status =
        sums_ ? hetcomm_allreduce(communicator, own.on_device(0, half),
                                  mixed_ ? own.on_host(half, half) : own.on_device(half, half),
                                  HETCOMM_FLOAT32, HETCOMM_REDUCE_SUM, &options, &request)
              : hetcomm_broadcast(communicator, 0, own.on_device(0, own.bytes()), HETCOMM_UINT8,
                                  &options, &request);
    EXPECT_EQ(status, HETCOMM_OK) << hetcomm_last_error();
    return request;
  }

 private:
  const bool sums_;
  const bool mixed_;
};

// Rank 0 has the first half of rank 1's elements, and rank 1 already has the other half.
class Redistributions final : public Kind {
 public:
  // Converts the elements to shorter ones if |converts|. They are sent in several messages, each of
  // which is copied to the host before it begins.
  explicit Redistributions(bool converts = false) : converts_(converts) {}
  void set_up(Rank& own) override {
    const uint64_t n = own.bytes() / 2 / (converts_ ? sizeof(float) : 1);
    const uint64_t shape[] = {n};
    hetcomm_part_t sources[2] = {};
    sources[0] = {.rank = 0,
                  .copy = 0,
                  .term = 0,
                  .reserved = 0,
                  .begin = {0},
                  .end = {n / 2},
                  .offset = 0,
                  .strides = {1}};
    sources[1] = {.rank = 1,
                  .copy = 0,
                  .term = 0,
                  .reserved = 0,
                  .begin = {n / 2},
                  .end = {n},
                  .offset = 0,
                  .strides = {1}};
    const hetcomm_part_t target = {.rank = 1,
                                   .copy = 0,
                                   .term = 0,
                                   .reserved = 0,
                                   .begin = {0},
                                   .end = {n},
                                   .offset = 0,
                                   .strides = {1}};
    hetcomm_layout_t* from = nullptr;
    hetcomm_layout_t* to = nullptr;
    ASSERT_EQ(hetcomm_layout_from_parts(1, shape, sources, 2, nullptr, &from), HETCOMM_OK)
        << hetcomm_last_error();
    ASSERT_EQ(hetcomm_layout_from_parts(1, shape, &target, 1, nullptr, &to), HETCOMM_OK)
        << hetcomm_last_error();
    hetcomm_reshard_tensor_t tensor{};
    tensor.source = from;
    tensor.destination = to;
    tensor.source_type = converts_ ? HETCOMM_FLOAT32 : HETCOMM_UINT8;
    tensor.destination_type = converts_ ? HETCOMM_BFLOAT16 : HETCOMM_UINT8;
    hetcomm_reshard_options_t options{};
    options.struct_size = sizeof(options);
    if (converts_) options.slice_bytes = 64u << 10;
    EXPECT_EQ(hetcomm_reshard_create(own.me().communicator(), &tensor, 1, &options,
                                     &plans_[static_cast<size_t>(own.rank())]),
              HETCOMM_OK)
        << hetcomm_last_error();
    EXPECT_EQ(hetcomm_layout_destroy(from), HETCOMM_OK);
    EXPECT_EQ(hetcomm_layout_destroy(to), HETCOMM_OK);
  }
  hetcomm_request_t* start(Rank& own) override {
    hetcomm_request_t* request = nullptr;
    const hetcomm_operation_options_t options = own.options();
    const uint64_t half = own.bytes() / 2;
    const hetcomm_buffer_t source = own.on_device(0, half);
    const hetcomm_buffer_t target = own.on_device(half, half);
    EXPECT_EQ(hetcomm_reshard_start(plans_[static_cast<size_t>(own.rank())], &source,
                                    own.rank() == 1 ? &target : nullptr, &options, &request),
              HETCOMM_OK)
        << hetcomm_last_error();
    return request;
  }
  void tear_down(Rank& own) override {
    EXPECT_EQ(hetcomm_reshard_destroy(plans_[static_cast<size_t>(own.rank())]), HETCOMM_OK)
        << hetcomm_last_error();
  }

 private:
  const bool converts_;
  std::array<hetcomm_reshard_t*, 2> plans_{};
};

struct Row {
  const char* name;
  std::function<std::unique_ptr<Kind>()> make;
  bool needs_thread = false;
  const char* settings = "";
  bool unified = false;
  uint64_t bytes = kBytes;
};

std::vector<Row> rows() {
  return {
      {"message", [] { return std::make_unique<Messages>(kBytes, false); }},
      {"short message", [] { return std::make_unique<Messages>(512, false); }},
      {"pieces", [] { return std::make_unique<Messages>(kBytes, true); }},
      {"put", [] { return std::make_unique<Accesses>(true); }},
      {"get", [] { return std::make_unique<Accesses>(false); }},
      {"queue", [] { return std::make_unique<Items>(); }, true},
      {"broadcast", [] { return std::make_unique<Collectives>(false); }},
      {"allreduce", [] { return std::make_unique<Collectives>(true); }},
      {"sums on devices", [] { return std::make_unique<Collectives>(true); }, false,
       "DEVICE_SUMS=on;COLLECTIVE_SHARED=0;"},
      {"mixed sums", [] { return std::make_unique<Collectives>(true, true); }, false,
       "DEVICE_SUMS=on;COLLECTIVE_SHARED=0;"},
      {"long allreduce", [] { return std::make_unique<Collectives>(true); }, false, "", true,
       32u << 20},
      {"redistribution", [] { return std::make_unique<Redistributions>(); }},
      {"converted redistribution", [] { return std::make_unique<Redistributions>(true); }},
  };
}

// Runs one round: rank |hanging|'s device hangs after some copies. Returns whether a copy has hung.
struct Round {
  const Row& row;
  int32_t hanging;
  Way way;
  int64_t copies;
  bool lets_go;  // releases the copy before everything is destroyed
  bool by_limit;
};

bool run_round(const CapiCase& given, const Round& round) {
  std::array<HangingDevice, 2> devices{HangingDevice(round.row.unified),
                                       HangingDevice(round.row.unified)};
  CapiCase own = given;
  own.settings += round.row.settings;
  if (round.by_limit) own.settings += "DEVICE_TIMEOUT=100ms;DEVICE_TIMEOUT_ABANDON=on;";
  const std::unique_ptr<Kind> kind = round.row.make();
  std::atomic<uint64_t> hung_at_ns{0};
  std::atomic<bool> has_hung{false};
  std::atomic<bool> is_over{false};
  run_job(own, 2, [&](Member& me) {
    HangingDevice& device = devices[static_cast<size_t>(me.rank())];
    {
      Rank rank(me, device, round.row.bytes);
      kind->set_up(rank);
      if (!me.meet()) return;
      const uint64_t control_ns = round.by_limit ? time_of_word(me) : 0;
      // A hanging device is abandoned at the limit, and its operations end soon after that.
      const auto expect_in_time = [&](uint64_t end_ns) {
        if (!round.by_limit || !has_hung) return;
        EXPECT_LE(end_ns, hung_at_ns + kLimitNs + soon_ns(control_ns)) << "rank " << me.rank();
      };
      const bool hangs = me.rank() == round.hanging;
      if (hangs) device.hang(round.way, round.copies);
      Running running(kind->start(rank));
      const bool starts = running.exists();
      if (hangs) {
        // An owner whose memory others access has no request.
        me.until([&] { return device.hangs() || (starts ? running.is_over() : is_over.load()); });
        hung_at_ns = now_ns();
        has_hung = device.hangs();
        if (has_hung && !round.by_limit) {
          if (running.request() != nullptr) {
            EXPECT_EQ(hetcomm_request_cancel(running.request()), HETCOMM_OK);
            EXPECT_FALSE(me.until([&] { return running.is_over(); }, 20 * kMs));
          }
          rank.abandon();
        }
      }
      if (starts) {
        const Outcome outcome = running.finish_now();
        expect_in_time(now_ns());
        if (hangs && has_hung) {
          EXPECT_EQ(outcome.status, HETCOMM_DEVICE_LOST) << outcome.text;
          EXPECT_NE(outcome.text.find("given up"), std::string::npos) << outcome.text;
        }
        EXPECT_NE(outcome.status, HETCOMM_PENDING);
        is_over = true;
      }
      if (hangs && has_hung) {
        me.until([&] { return is_over.load(); });
        expect_in_time(now_ns());
        EXPECT_FALSE(device.will_write(rank.host().data(), rank.bytes()));
        hetcomm_request_t* refused = nullptr;
        EXPECT_EQ(hetcomm_send(me.communicator(), rank.peer(), 9, rank.on_device(0, 8), nullptr,
                               &refused),
                  HETCOMM_DEVICE_LOST);
        EXPECT_EQ(hetcomm_memory_read(rank.memory(), 0, rank.host().data(), 8),
                  HETCOMM_DEVICE_LOST);
      }
      if (!me.meet()) return;
      // Host memory still works.
      uint64_t word = static_cast<uint64_t>(me.rank());
      const Outcome sent = finish(me.rank() == 0 ? me.send(1, 5, &word, sizeof(word))
                                                 : me.recv(0, 5, &word, sizeof(word)));
      EXPECT_EQ(sent.status, HETCOMM_OK) << sent.text;
      if (hangs && round.lets_go) device.let_go();
      kind->tear_down(rank);
    }
    EXPECT_TRUE(me.meet());
  });
  HangingDevice& hung = devices[static_cast<size_t>(round.hanging)];
  if (!has_hung || round.lets_go) {
    EXPECT_EQ(hung.allocations(), 0u);
    EXPECT_TRUE(hung.is_destroyed());
  } else {
    EXPECT_GT(hung.allocations(), 0u);
    EXPECT_FALSE(hung.is_destroyed());
    hung.let_go();  // the late copies still have valid memory
  }
  EXPECT_TRUE(devices[static_cast<size_t>(1 - round.hanging)].is_destroyed());
  return has_hung;
}

size_t count_of(const std::string& what, const std::string& text) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

class Abandon : public CapiTest {};

TEST_P(Abandon, EndsEveryKindOfOperation) {
  for (const Row& row : rows()) {
    if (row.needs_thread && !GetParam().thread_progress) continue;
    int hung = 0;
    for (const int32_t hanging : {0, 1}) {
      for (const int64_t copies : {0, 1, 3}) {
        SCOPED_TRACE(std::string(row.name) + ", rank " + std::to_string(hanging) + ", after " +
                     std::to_string(copies));
        const Way way = (copies + hanging) % 2 == 0 ? Way::kCopies : Way::kEvents;
        if (run_round(GetParam(), {row, hanging, way, copies, copies == 0, false})) ++hung;
        if (HasFailure()) return;
      }
    }
    EXPECT_GE(hung, 2) << row.name;
  }
}

TEST_P(Abandon, LaterAccessToAnAbandonedDeviceReportsWhy) {
  for (const bool puts : {false, true}) {
    std::array<HangingDevice, 2> devices;
    Accesses accesses(puts);
    run_job(GetParam(), 2, [&](Member& me) {
      Rank rank(me, devices[static_cast<size_t>(me.rank())], kBytes);
      accesses.set_up(rank);
      if (me.rank() == 1) rank.abandon();
      ASSERT_TRUE(me.meet());
      if (me.rank() == 0) {
        const Outcome outcome = finish(accesses.start(rank));
        EXPECT_EQ(outcome.status, HETCOMM_ABORTED)
            << hetcomm_status_name(outcome.status) << " " << outcome.text;
        EXPECT_EQ(count_of("rank 1: DEVICE_LOST", outcome.text), 1U) << outcome.text;
      }
      ASSERT_TRUE(me.meet());
      accesses.tear_down(rank);
      ASSERT_TRUE(me.meet());
    });
  }
}

TEST_P(Abandon, DeviceTimeoutEndsEveryKindOfOperation) {
  for (const Row& row : rows()) {
    if (row.needs_thread && !GetParam().thread_progress) continue;
    for (const int32_t hanging : {0, 1}) {
      SCOPED_TRACE(std::string(row.name) + ", rank " + std::to_string(hanging));
      EXPECT_TRUE(run_round(GetParam(), {row, hanging, Way::kCopies, 0, hanging == 0, true}));
      if (HasFailure()) return;
    }
  }
}

// The action on an operation whose copy hangs, before the copy ends or its device is abandoned.
enum class Try : uint8_t { kNothing, kCancel, kDeadline, kAbortHere, kAbortThere };

// Parameters of one round: the first copy after |copies| of rank |hanging|'s device hangs
// permanently, or until it is released.
struct Hang {
  const Row& row;
  int32_t hanging;
  int64_t copies;
  Try tries;
  bool lets_go;  // the copy ends, and the device is not abandoned
};

constexpr uint64_t kDeadlineNs = 150 * kMs;

bool aborts(const Hang& hang) {
  return hang.tries == Try::kAbortHere || hang.tries == Try::kAbortThere;
}

void expect_end_where_it_hung(const Hang& hang, const Outcome& outcome) {
  if (!hang.lets_go) {
    EXPECT_EQ(outcome.status, HETCOMM_DEVICE_LOST) << outcome.text;
    EXPECT_NE(outcome.text.find("device 1 (hanging) was given up: the test says so"),
              std::string::npos)
        << outcome.text;
    if (hang.tries != Try::kNothing && hang.tries != Try::kCancel) return;
    EXPECT_NE(outcome.text.find("its memory on the device must not be used again"),
              std::string::npos)
        << outcome.text;
    return;
  }
  // All data of the operation may have arrived before.
  const hetcomm_status_t tried = aborts(hang)                   ? HETCOMM_ABORTED
                                 : hang.tries == Try::kDeadline ? HETCOMM_TIMED_OUT
                                 : hang.tries == Try::kCancel   ? HETCOMM_CANCELLED
                                                                : HETCOMM_OK;
  EXPECT_TRUE(outcome.status == HETCOMM_OK || outcome.status == tried)
      << hetcomm_status_name(outcome.status) << " " << outcome.text;
}

// Expects that the rank has learned of the end on the other rank without waiting for its deadline,
// unless it needed nothing more from that rank.
void expect_end_where_nothing_hung(const Hang& hang, const Outcome& outcome) {
  EXPECT_TRUE(outcome.status == HETCOMM_OK || outcome.status == HETCOMM_ABORTED)
      << hetcomm_status_name(outcome.status) << " " << outcome.text;
  if (outcome.status != HETCOMM_ABORTED) return;
  if (aborts(hang)) {
    EXPECT_NE(outcome.text.find("aborted: enough"), std::string::npos) << outcome.text;
    return;
  }
  // An execution of a redistribution may be abandoned on its own.
  const std::string origin = "rank " + std::to_string(hang.hanging);
  EXPECT_TRUE(outcome.text.find(origin + ": ") != std::string::npos ||
              outcome.text.find(origin + " has given up ") != std::string::npos)
      << outcome.text;
}

// Returns false if no copy has hung.
bool run_hang(const CapiCase& given, const Hang& hang) {
  std::array<HangingDevice, 2> devices{HangingDevice(hang.row.unified),
                                       HangingDevice(hang.row.unified)};
  CapiCase own = given;
  own.settings += hang.row.settings;
  const std::unique_ptr<Kind> kind = hang.row.make();
  std::atomic<bool> has_hung{false};
  std::atomic<bool> was_aborted{false};
  run_job(own, 2, [&](Member& me) {
    HangingDevice& device = devices[static_cast<size_t>(me.rank())];
    const bool hangs = me.rank() == hang.hanging;
    {
      Rank rank(me, device, hang.row.bytes);
      kind->set_up(rank);
      if (!me.meet()) return;
      if (hangs) device.hang(Way::kCopies, hang.copies);
      if (hangs && hang.tries == Try::kDeadline) rank.set_timeout(kDeadlineNs);
      Running running(kind->start(rank));
      const bool starts = running.exists();
      if (hangs) {
        me.until([&] { return device.hangs() || running.is_over(); });
        has_hung = device.hangs();
      }
      if (!me.meet()) return;
      if (has_hung && hangs == (hang.tries == Try::kAbortHere) && aborts(hang)) {
        EXPECT_EQ(hetcomm_communicator_abort(me.communicator(), "enough"), HETCOMM_OK)
            << hetcomm_last_error();
        was_aborted = true;
      }
      if (has_hung && hangs) {
        // On a busy machine the other rank may abort late. The first reason is the one reported.
        if (aborts(hang)) me.until([&] { return was_aborted.load(); });
        if (starts && hang.tries == Try::kCancel) {
          EXPECT_EQ(hetcomm_request_cancel(running.request()), HETCOMM_OK);
        }
        if (hang.tries != Try::kNothing) {
          // The operation's memory may still be in use.
          const uint64_t wait_ns = 50 * kMs + (hang.tries == Try::kDeadline ? kDeadlineNs : 0);
          EXPECT_FALSE(me.until([&] { return running.is_over(); }, wait_ns))
              << "it has ended while its copy hangs";
        }
        hang.lets_go ? device.let_go() : rank.abandon();
      }
      if (starts) {
        const Outcome outcome = running.finish_now();
        if (has_hung && hangs) expect_end_where_it_hung(hang, outcome);
        if (has_hung && !hangs) expect_end_where_nothing_hung(hang, outcome);
      }
      if (!me.meet()) return;
      if (aborts(hang)) me.expect_ruin();
      kind->tear_down(rank);
      // Everything can be destroyed even while the copy hangs.
      hetcomm_communicator_t* const communicator = me.release();
      hetcomm_status_t destroyed = HETCOMM_BUSY;
      me.until([&] {
        destroyed = hetcomm_communicator_destroy(communicator);
        return destroyed != HETCOMM_BUSY;
      });
      EXPECT_EQ(destroyed, HETCOMM_OK) << hetcomm_last_error();
    }
    EXPECT_TRUE(me.meet());
  });
  HangingDevice& hung = devices[static_cast<size_t>(hang.hanging)];
  const bool is_well = !has_hung || hang.lets_go;
  EXPECT_EQ(hung.is_destroyed(), is_well);
  EXPECT_EQ(hung.allocations() == 0, is_well);
  if (!is_well) hung.let_go();  // the late copies still have valid memory
  EXPECT_TRUE(devices[static_cast<size_t>(1 - hang.hanging)].is_destroyed());
  return has_hung;
}

// Runs |body| for every row on both ranks, except for memory owners, which have no request.
template <typename Body>
void for_each_row(const CapiCase& given, Body&& body) {
  for (const Row& row : rows()) {
    if (row.needs_thread && !given.thread_progress) continue;
    for (const int32_t hanging : {0, 1}) {
      if (!row.make()->has_request(hanging)) continue;
      SCOPED_TRACE(std::string(row.name) + ", rank " + std::to_string(hanging));
      body(row, hanging);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST_P(Abandon, DeadlineDoesNotEndAHangingCopy) {
  int tried = 0;
  int hung = 0;
  for_each_row(GetParam(), [&](const Row& row, int32_t hanging) {
    // After some copies part of the operation's data has moved.
    for (const int64_t copies : {0, 3}) {
      const bool lets_go = (copies == 0) == (hanging == 0);
      ++tried;
      if (run_hang(GetParam(), {row, hanging, copies, Try::kDeadline, lets_go})) ++hung;
    }
  });
  // A short message has one copy. On a busy machine a deadline may pass before the copy starts.
  EXPECT_GE(hung, tried / 2);
}

TEST_P(Abandon, AbortDoesNotEndAHangingCopy) {
  for_each_row(GetParam(), [](const Row& row, int32_t hanging) {
    for (const Try tries : {Try::kAbortHere, Try::kAbortThere}) {
      EXPECT_TRUE(run_hang(GetParam(), {row, hanging, 0, tries, false}));
    }
    EXPECT_TRUE(run_hang(GetParam(), {row, hanging, 0, Try::kAbortHere, true}));
  });
}

TEST_P(Abandon, ErrorNamesTheMemoryThatMustNotBeReused) {
  for_each_row(GetParam(), [](const Row& row, int32_t hanging) {
    for (const int64_t copies : {0, 2}) {
      static_cast<void>(run_hang(GetParam(), {row, hanging, copies, Try::kNothing, false}));
    }
  });
}

TEST_P(Abandon, ErrorNamesTheMemoryAfterAnEarlierCancel) {
  for_each_row(GetParam(), [](const Row& row, int32_t hanging) {
    EXPECT_TRUE(run_hang(GetParam(), {row, hanging, 0, Try::kCancel, false}));
  });
}

// The other rank of a collective operation while rank 0's device hangs and is abandoned. The times
// of the calls and of abandoning the device vary.
struct Moment {
  uint64_t call_after_us;     // delay of rank 1's call after rank 0's
  uint64_t abandon_after_us;  // delay after a copy has hung, or after the call
  int64_t copies;             // copies that do not hang
  bool joined;                // an earlier operation has determined how the ranks are connected
  bool hangs;                 // the device is abandoned after a copy has hung
};

std::vector<Moment> moments() {
  const bool all = std::getenv("HETCOMM_TEST_LONG") != nullptr;
  constexpr std::array<uint64_t, 6> kCalls = {0, 50, 0, 1000, 0, 4000};
  constexpr std::array<uint64_t, 5> kAbandons = {0, 100, 500, 2000, 10'000};
  constexpr std::array<int64_t, 4> kCopies = {0, 1, 3, 7};
  std::vector<Moment> made;
  const size_t count = all ? 120 : 16;
  for (size_t i = 0; i < count; ++i) {
    const bool joined = i / 2 % 2 == 0;
    made.push_back({kCalls[i % kCalls.size()], kAbandons[i % kAbandons.size()],
                    kCopies[i % kCopies.size()], joined, joined || i % 2 == 0});
  }
  return made;
}

// Uses its own communicator and device. Communication between the ranks in host memory still works.
void end_other_rank(Member& me, HangingDevice& device, Collectives& kind, const Moment& moment,
                    std::atomic<uint64_t>& abandoned_at_ns) {
  Rank rank(me, device, kBytes);
  hetcomm_communicator_t* on = nullptr;
  ASSERT_EQ(hetcomm_communicator_split(me.communicator(), 0, me.rank(), &on), HETCOMM_OK)
      << hetcomm_last_error();
  if (moment.joined) {
    uint64_t word = 1;
    const hetcomm_buffer_t buffer = hetcomm_buffer_host(&word, sizeof(word));
    hetcomm_request_t* request = nullptr;
    EXPECT_EQ(hetcomm_allreduce(on, buffer, buffer, HETCOMM_UINT64, HETCOMM_REDUCE_SUM, nullptr,
                                &request),
              HETCOMM_OK);
    EXPECT_EQ(finish(request).status, HETCOMM_OK);
  }
  const uint64_t control_ns = time_of_word(me);
  if (me.rank() == 0) abandoned_at_ns = 0;
  ASSERT_TRUE(me.meet());
  uint64_t called_at_ns = now_ns();
  Outcome outcome;
  if (me.rank() == 0) {
    device.hang(moment.copies % 2 == 0 ? Way::kCopies : Way::kEvents, moment.copies);
    hetcomm_request_t* const request = kind.start_on(on, rank);
    // The operation may need fewer copies. In that case nothing hangs.
    hetcomm_completion_t completion{};
    hetcomm_status_t status = HETCOMM_PENDING;
    EXPECT_TRUE(me.until([&] {
      if (!moment.hangs || device.hangs()) return true;
      status = hetcomm_request_test(request, &completion);
      return status != HETCOMM_PENDING;
    }));
    me.until([] { return false; }, moment.abandon_after_us * 1000);
    const bool is_over = status != HETCOMM_PENDING;
    abandoned_at_ns = is_over ? UINT64_MAX : now_ns();
    rank.abandon();
    outcome = is_over ? Outcome{.status = completion.status} : finish(request);
  } else {
    me.until([] { return false; }, moment.call_after_us * 1000);
    hetcomm_request_t* const request = kind.start_on(on, rank);
    called_at_ns = now_ns();
    outcome = finish(request);
  }
  const uint64_t end_ns = now_ns();
  ASSERT_TRUE(me.meet());
  if (abandoned_at_ns == UINT64_MAX) {
    EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
  } else if (!moment.hangs && outcome.status == HETCOMM_OK) {
    // If no copy has hung, all data of the operation may have arrived before.
  } else if (me.rank() == 0) {
    EXPECT_EQ(outcome.status, HETCOMM_DEVICE_LOST) << outcome.text;
  } else {
    EXPECT_EQ(outcome.status, HETCOMM_ABORTED)
        << hetcomm_status_name(outcome.status) << " " << outcome.text;
    EXPECT_EQ(count_of("rank 0: DEVICE_LOST: ", outcome.text), 1U) << outcome.text;
  }
  const uint64_t from_ns = std::max(called_at_ns, abandoned_at_ns.load());
  EXPECT_LE(end_ns, hetcomm::deadline_after(from_ns, soon_ns(control_ns)))
      << "rank " << me.rank() << ": " << outcome.text;
  EXPECT_EQ(hetcomm_communicator_destroy(on), HETCOMM_OK) << hetcomm_last_error();
  static_cast<void>(time_of_word(me));
  device.let_go();
  ASSERT_TRUE(me.meet());
}

TEST_P(Abandon, PeerInACollectiveOperationIsReleasedPromptly) {
  for (const bool sums : {true, false}) {
    const std::vector<Moment> all = moments();
    // The devices outlive the contexts.
    std::vector<std::array<HangingDevice, 2>> devices(all.size());
    Collectives kind(sums);
    std::atomic<uint64_t> abandoned_at_ns{0};
    CapiCase own = GetParam();
    // Before the device is abandoned, pinning memory could wait for the hanging copy.
    own.settings += "STAGING_PIN=off;";
    run_job(own, 2, [&](Member& me) {
      for (size_t i = 0; i < all.size(); ++i) {
        SCOPED_TRACE(std::string(sums ? "allreduce" : "broadcast") + ", moment " +
                     std::to_string(i));
        end_other_rank(me, devices[i][static_cast<size_t>(me.rank())], kind, all[i],
                       abandoned_at_ns);
        if (testing::Test::HasFailure()) return;
      }
    });
    for (auto& each : devices) {
      for (HangingDevice& device : each) {
        EXPECT_TRUE(device.is_destroyed());
        EXPECT_EQ(device.allocations(), 0U);
      }
    }
  }
}

// Rank 0's second device still sends while a copy of the first one hangs, through other chunks.
TEST_P(Abandon, ChunksAreReusedOnceTheLateCopyEnds) {
  constexpr uint64_t kMessage = 256u << 10;  // size of one chunk
  constexpr int kMessages = 40;
  std::array<HangingDevice, 4> devices;  // two for each rank
  CapiCase own = GetParam();
  own.settings += "STAGING_PIN=off;STAGING_DEPTH=1;";
  run_job(own, 2, [&](Member& me) {
    const auto first = static_cast<size_t>(2 * me.rank());
    HangingDevice& hung = devices[first];
    HangingDevice& well = devices[first + 1];
    {
      Rank rank(me, hung, kMessage);
      Rank other(me, well, 2 * kMessage);
      const auto send_some = [&] {
        for (int i = 0; i < kMessages; ++i) {
          const Outcome outcome = finish(start_move(me, other.on_device(0, kMessage)));
          EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
        }
      };
      if (!me.meet()) return;
      const std::byte* late = nullptr;
      if (me.rank() == 0) hung.hang(Way::kCopies);
      hetcomm_request_t* const request = start_move(me, rank.on_device(0, kMessage));
      if (me.rank() == 0) {
        me.until([&] { return hung.hangs(); });
        ASSERT_EQ(hung.targets().size(), 1u);
        late = hung.targets().front();
        rank.abandon();
      }
      EXPECT_NE(finish(request).status, HETCOMM_OK);
      send_some();
      const auto uses = [&](const std::byte* chunk) {
        const std::vector<const std::byte*> all = well.targets();
        return std::find(all.begin(), all.end(), chunk) != all.end();
      };
      EXPECT_FALSE(me.rank() == 0 && uses(late));
      if (!me.meet()) return;
      if (me.rank() == 0) hung.let_go();
      // The chunk that was returned last is taken first. Two simultaneous sends therefore also take
      // the late chunk, wherever it is.
      const auto send_two = [&] {
        hetcomm_request_t* const one = start_move(me, other.on_device(0, kMessage));
        hetcomm_request_t* const two = start_move(me, other.on_device(kMessage, kMessage));
        EXPECT_EQ(finish(one).status, HETCOMM_OK);
        EXPECT_EQ(finish(two).status, HETCOMM_OK);
      };
      bool again = false;
      for (int i = 0; i < 20 && !again; ++i) {
        for (int j = 0; j < kMessages / 2; ++j) send_two();
        if (me.rank() == 0) again = uses(late);
        if (!me.meet()) return;
        // Both ranks send and receive the same number of times.
        uint64_t word = again ? 1 : 0;
        EXPECT_EQ(finish(me.rank() == 0 ? me.send(1, 3, &word, 8) : me.recv(0, 3, &word, 8)).status,
                  HETCOMM_OK);
        again = word != 0;
      }
      EXPECT_TRUE(again);
    }
    EXPECT_TRUE(me.meet());
  });
}

// A thread is inside a call.
TEST_P(Abandon, EndsBlockingCalls) {
  for (const bool reads : {true, false}) {
    for (const bool by_limit : {true, false}) {
      SCOPED_TRACE(std::string(reads ? "read" : "write") + (by_limit ? ", by limit" : ""));
      std::array<HangingDevice, 2> devices;
      CapiCase own = GetParam();
      if (by_limit) own.settings += "DEVICE_TIMEOUT=200ms;DEVICE_TIMEOUT_ABANDON=on;";
      run_job(own, 2, [&](Member& me) {
        HangingDevice& device = devices[static_cast<size_t>(me.rank())];
        {
          Rank rank(me, device, 3 * kBytes + 5);
          std::vector<std::byte>& host = rank.host();
          fill_bytes(host, std::byte{7});
          device.hang(me.rank() == 0 ? Way::kCopies : Way::kEvents, 2);
          std::atomic<hetcomm_status_t> status{HETCOMM_PENDING};
          std::thread thread([&] {
            status = reads ? hetcomm_memory_read(rank.memory(), 0, host.data(), host.size())
                           : hetcomm_memory_write(rank.memory(), 0, host.data(), host.size());
          });
          EXPECT_TRUE(me.until([&] { return device.hangs(); }));
          if (!by_limit) {
            me.until([] { return false; }, 20 * kMs);
            EXPECT_EQ(status, HETCOMM_PENDING);
            rank.abandon();
          }
          thread.join();
          EXPECT_EQ(status, HETCOMM_DEVICE_LOST);
          EXPECT_FALSE(device.will_write(host.data(), host.size()));
          if (me.rank() == 0) device.let_go();
          hetcomm_memory_t* refused = nullptr;
          EXPECT_EQ(hetcomm_memory_allocate(me.context(), rank.number(), 8, &refused),
                    HETCOMM_DEVICE_LOST);
        }
        EXPECT_TRUE(me.meet());
      });
      EXPECT_TRUE(devices[0].is_destroyed());
      EXPECT_EQ(devices[0].allocations(), 0u);
      EXPECT_FALSE(devices[1].is_destroyed());
    }
  }
}

// A read returns the right bytes, whatever its length.
TEST_P(Abandon, BlockingCallsCopyEveryByte) {
  std::array<HangingDevice, 2> devices;
  run_job(GetParam(), 2, [&](Member& me) {
    {
      Rank rank(me, devices[static_cast<size_t>(me.rank())], 3 * kBytes);
      for (const uint64_t bytes : {uint64_t{1}, uint64_t{4096}, uint64_t{70'000}, kBytes / 2,
                                   kBytes / 2 + 1, 3 * kBytes - 3}) {
        const std::vector<std::byte> sent = pattern(bytes, bytes);
        EXPECT_EQ(hetcomm_memory_write(rank.memory(), 3, sent.data(), bytes), HETCOMM_OK);
        std::vector<std::byte> read(bytes);
        EXPECT_EQ(hetcomm_memory_read(rank.memory(), 3, read.data(), bytes), HETCOMM_OK);
        EXPECT_EQ(find_mismatch(read, bytes), std::nullopt) << bytes;
      }
    }
    EXPECT_TRUE(me.meet());
  });
}

TEST_P(Abandon, EndsOperationsWaitingForTheDevicesStreams) {
  if (!GetParam().thread_progress) GTEST_SKIP() << "streams need a thread";
  std::array<HangingDevice, 2> devices;
  std::array<std::array<std::byte, 64>, 2> users{};
  run_job(GetParam(), 2, [&](Member& me) {
    HangingDevice& device = devices[static_cast<size_t>(me.rank())];
    {
      Rank rank(me, device, kBytes);
      hetcomm_stream_t* stream = nullptr;
      ASSERT_EQ(hetcomm_stream_create(me.context(), rank.number(), 0, &stream), HETCOMM_OK)
          << hetcomm_last_error();
      void* native = nullptr;
      ASSERT_EQ(hetcomm_stream_native(stream, &native), HETCOMM_OK);
      const hetcomm_device_t own = device.device();
      if (!me.meet()) return;
      device.hang(Way::kCopies);
      // The user's own copy, which hangs.
      void* address = nullptr;
      EXPECT_EQ(hetcomm_memory_address(rank.memory(), &address), HETCOMM_OK);
      EXPECT_EQ(
          own.table->copy_to_host(own.instance, native,
                                  users[static_cast<size_t>(me.rank())].data(), address, 0, 64),
          HETCOMM_OK);
      hetcomm_operation_options_t options{};
      options.struct_size = sizeof(options);
      options.stream = stream;
      std::vector<hetcomm_request_t*> requests(2);
      uint64_t word = 0;
      // One buffer is in host memory, and one is in device memory.
      const hetcomm_buffer_t buffers[] = {hetcomm_buffer_host(&word, 8), rank.on_device(0, 64)};
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(me.rank() == 0
                      ? hetcomm_send(me.communicator(), 1, i, buffers[i], &options, &requests[i])
                      : hetcomm_recv(me.communicator(), 0, i, HETCOMM_EXACT_TAG, buffers[i],
                                     &options, &requests[i]),
                  HETCOMM_OK)
            << hetcomm_last_error();
      }
      me.until([] { return false; }, 20 * kMs);
      for (hetcomm_request_t* const request : requests) EXPECT_TRUE(is_pending(request));
      rank.abandon();
      for (hetcomm_request_t* const request : requests) {
        const Outcome outcome = finish(request);
        EXPECT_EQ(outcome.status, HETCOMM_DEVICE_LOST) << outcome.text;
      }
      hetcomm_request_t* refused = nullptr;
      EXPECT_EQ(hetcomm_send(me.communicator(), rank.peer(), 9, buffers[0], &options, &refused),
                HETCOMM_DEVICE_LOST);
      if (me.rank() == 0) device.let_go();
      EXPECT_EQ(hetcomm_stream_destroy(stream), HETCOMM_OK) << hetcomm_last_error();
    }
    EXPECT_TRUE(me.meet());
  });
  EXPECT_TRUE(devices[0].is_destroyed());
  EXPECT_FALSE(devices[1].is_destroyed());
  devices[1].let_go();
}

// The log lines of each rank.
std::mutex lines_mutex;
std::array<std::string, 2> lines;

void log_line(void* user, int32_t /*level*/, const char* text) {
  const std::lock_guard lock(lines_mutex);
  lines[static_cast<size_t>(*static_cast<const int32_t*>(user))] += std::string(text) + "\n";
}

bool has_logged(size_t rank, const std::string& part) {
  const std::lock_guard lock(lines_mutex);
  return lines[rank].find(part) != std::string::npos;
}

TEST_P(Abandon, LogNamesTheDeviceAndTheCopy) {
  for (std::string& text : lines) text.clear();
  std::array<HangingDevice, 2> devices;
  CapiCase own = GetParam();
  own.settings += "DEVICE_TIMEOUT=200ms;";
  own.log = log_line;
  run_job(own, 2, [&](Member& me) {
    HangingDevice& device = devices[static_cast<size_t>(me.rank())];
    {
      Rank rank(me, device, kBytes);
      if (!me.meet()) return;
      device.hang(Way::kCopies);
      hetcomm_request_t* const request = start_move(me, rank.on_device(0, kBytes));
      if (me.rank() == 0) {
        // A call that waits also drives the stall reports.
        hetcomm_completion_t completion{};
        EXPECT_EQ(hetcomm_request_wait(request, 600 * kMs, &completion), HETCOMM_TIMED_OUT);
        EXPECT_TRUE(me.until([] { return has_logged(0, "no copy has ended for"); }));
        EXPECT_TRUE(has_logged(
            0,
            "device 1 (a device that hangs): no copy has ended for 0.2 s: 262144 bytes to "
            "the host for send to rank 1, tag 0x1"))
            << lines[0];
        EXPECT_TRUE(is_pending(request));
        device.let_go();
      }
      device.let_go();
      EXPECT_EQ(finish(request).status, HETCOMM_OK);
    }
    EXPECT_TRUE(me.meet());
  });
}

// This holds also when a limit would abandon the device.
TEST_P(Abandon, NothingIsReportedOrAbandonedWithoutALimit) {
  for (std::string& text : lines) text.clear();
  std::array<HangingDevice, 2> devices;
  CapiCase own = GetParam();
  own.settings += "DEVICE_TIMEOUT=inf;DEVICE_TIMEOUT_ABANDON=on;";
  own.log = log_line;
  run_job(own, 2, [&](Member& me) {
    HangingDevice& device = devices[static_cast<size_t>(me.rank())];
    {
      Rank rank(me, device, kBytes);
      if (!me.meet()) return;
      if (me.rank() == 0) device.hang(Way::kCopies);
      hetcomm_request_t* const request = start_move(me, rank.on_device(0, kBytes / 2));
      if (me.rank() == 0) {
        EXPECT_TRUE(me.until([&] { return device.hangs(); }));
        // A call that waits also hangs.
        std::atomic<hetcomm_status_t> status{HETCOMM_PENDING};
        std::vector<std::byte> read(kBytes / 2);
        std::thread thread([&] {
          status = hetcomm_memory_read(rank.memory(), kBytes / 2, read.data(), read.size());
        });
        me.until([] { return false; }, 600 * kMs);
        EXPECT_EQ(status, HETCOMM_PENDING);
        EXPECT_TRUE(is_pending(request));
        device.let_go();
        thread.join();
        EXPECT_EQ(status, HETCOMM_OK);
      }
      const Outcome outcome = finish(request);
      EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      // The device works again.
      EXPECT_EQ(hetcomm_memory_read(rank.memory(), 0, rank.host().data(), 8), HETCOMM_OK)
          << hetcomm_last_error();
    }
    EXPECT_TRUE(me.meet());
  });
  for (const size_t rank : {size_t{0}, size_t{1}}) {
    EXPECT_FALSE(has_logged(rank, "no copy has ended")) << lines[rank];
    EXPECT_FALSE(has_logged(rank, "given up")) << lines[rank];
    EXPECT_TRUE(devices[rank].is_destroyed());
    EXPECT_EQ(devices[rank].allocations(), 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Abandon, ::testing::ValuesIn(cases()), capi_case_name);

}  // namespace
}  // namespace hetcomm_test
