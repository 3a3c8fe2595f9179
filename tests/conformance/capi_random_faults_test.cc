// Random jobs in which one thing goes wrong at a random step. Ranks are processes. All ranks draw the
// same steps, settings and fault from the job's seed.
//
//   * every operation ends by its rule: kFaults says in what
//   * an operation that fails names the rank that the failure comes from
//   * nothing is written to the memory of an operation after its end: host memory is taken away then,
//     and memory of devices is compared when the job ends
//   * no rank dies that was not killed
//
// HETCOMM_TEST_SEED runs the job of that seed alone. A further kind of operation is a row of
// kOperations, and a further fault one of kFaults.
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/capi_job.h"

namespace hetcomm_test {
namespace {

constexpr uint64_t kWindowBytes = 4096;  // of each rank's memory that others use, for each of them
constexpr uint64_t kQueueBytes = 64 << 10;  // of the longest item
constexpr uint64_t kTensorElements = 600;   // at most, of a redistribution
constexpr size_t kMostSteps = 14;

// --- memory -----------------------------------------------------------------

// A Region is the memory of one side of an operation, on the host or on a device.
class Region {
 public:
  Region(Member& me, int32_t device, uint64_t size) : size_(size), device_(device) {
    if (device != 0) {
      EXPECT_EQ(hetcomm_memory_allocate(me.context(), device, size, &memory_), HETCOMM_OK)
          << hetcomm_last_error();
      return;
    }
    pages_ = (size + kPage - 1) / kPage * kPage + kPage;
    base_ = static_cast<std::byte*>(
        mmap(nullptr, pages_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED) std::abort();
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() {
    if (base_ != nullptr) munmap(base_, pages_);
    if (memory_ != nullptr) {
      EXPECT_EQ(hetcomm_memory_free(memory_), HETCOMM_OK) << hetcomm_last_error();
    }
  }
  hetcomm_buffer_t buffer() const {
    return memory_ != nullptr ? hetcomm_buffer_memory(memory_, 0, size_)
                              : hetcomm_buffer_host(base_, size_);
  }
  uint64_t size() const { return size_; }
  int32_t device() const { return device_; }
  void fill(const std::vector<std::byte>& bytes) {
    if (bytes.empty()) return;
    if (memory_ == nullptr) {
      std::memcpy(base_, bytes.data(), bytes.size());
    } else {
      EXPECT_EQ(hetcomm_memory_write(memory_, 0, bytes.data(), bytes.size()), HETCOMM_OK);
    }
  }
  std::vector<std::byte> contents() const {
    std::vector<std::byte> bytes(size_);
    if (size_ == 0) return bytes;
    if (memory_ == nullptr) {
      std::memcpy(bytes.data(), base_, size_);
    } else {
      EXPECT_EQ(hetcomm_memory_read(memory_, 0, bytes.data(), size_), HETCOMM_OK)
          << hetcomm_last_error();
    }
    return bytes;
  }
  // Its operation has ended: nobody touches it any more.
  void seal() {
    if (memory_ == nullptr) {
      EXPECT_EQ(mprotect(base_, pages_, PROT_NONE), 0);
    } else {
      sealed_ = contents();
    }
  }
  void check() const {
    if (memory_ != nullptr) {
      EXPECT_TRUE(contents() == sealed_) << "memory of a device was written after its operation";
    }
  }

 private:
  static constexpr uint64_t kPage = 4096;
  const uint64_t size_;
  const int32_t device_;
  uint64_t pages_ = 0;
  std::byte* base_ = nullptr;
  hetcomm_memory_t* memory_ = nullptr;
  std::vector<std::byte> sealed_;
};

// --- jobs -------------------------------------------------------------------

// kAtomic: of a pair, and nobody may know whether it has happened.
enum class Domain : uint8_t { kCollective, kPair, kAtomic, kReshard };

class Rank;
struct Step;

struct OperationKind {
  const char* name;
  Domain domain;
  bool needs_thread;  // it needs the progress thread
  void (*start)(Rank& rank, const Step& step);
};

struct Step {
  const OperationKind* kind = nullptr;
  uint32_t number = 0;
  uint32_t form = 0;  // which collective operation, which access
  int32_t shift = 0;  // distance of the peer
  int32_t root = 0;
  uint64_t size = 0;
  uint64_t seed = 0;
  bool on_stream = false;
  bool waits = false;  // for all that is under way, before the next step
};

struct Job;

// What goes wrong. Codes are those in which operations may end.
struct FaultKind {
  const char* name;
  bool tcp_only;
  bool in_collective;  // it happens in place of a collective operation
  bool kills;          // the victim dies
  // Returns whether the victim makes the step all the same.
  bool (*happen)(Rank& victim, const Step& step);
  int32_t collectives;  // code of collective operations, beside OK
  int32_t pairs;        // of operations with the victim
  int32_t reshards;
  bool all_later;  // collective operations after it fail on all ranks
};

struct Job {
  uint64_t seed = 0;
  int32_t size = 0;
  CapiCase test_case;
  std::vector<Step> steps;
  const FaultKind* fault = nullptr;
  int32_t victim = 0;
  uint32_t fault_step = 0;
};

// Whether |text| says that a failure comes from |rank|.
bool names(const std::string& text, int32_t rank) {
  const std::string number = std::to_string(rank);
  const auto has = [&](const std::string& words) {
    for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) {
      const size_t end = at + words.size();
      if (end == text.size() || std::isdigit(static_cast<unsigned char>(text[end])) == 0)
        return true;
    }
    return false;
  };
  return has("rank " + number) || has("ranks " + number) || has("and " + number);
}

struct Started {
  hetcomm_request_t* request = nullptr;
  Domain domain = Domain::kPair;
  int32_t peer = -1;  // of pairs
  std::string what{};
  std::vector<std::unique_ptr<Region>> regions{};
  std::vector<std::byte> expected{};  // contents of the last region, if the operation ends well
};

// One rank of a job.
class Rank {
 public:
  Rank(Member& me, const Job& job) : me_(me), job_(job) {}
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void run() {
    me_.store().word(kPids + static_cast<size_t>(me_.rank())) = static_cast<uint64_t>(getpid());
    set_up();
    for (const Step& step : job_.steps) {
      if (make(step)) step.kind->start(*this, step);
      if (step.waits) wait_for_all();
    }
    wait_for_all();
    check_that_all_know();
    part();
    clean_up();
  }

  Member& me() { return me_; }
  const Job& job() const { return job_; }
  int32_t rank() const { return me_.rank(); }
  int32_t size() const { return me_.size(); }
  int32_t after(int32_t shift) const { return (rank() + shift) % size(); }
  int32_t before(int32_t shift) const { return (rank() + size() - shift) % size(); }
  std::unique_ptr<Region> region(const Step& step, uint64_t size, uint32_t which) {
    Random random(step.seed + which * 77 + static_cast<uint64_t>(rank()) * 1'000'003);
    const int32_t device =
        has_devices() && random.chance(0.5) ? static_cast<int32_t>(1 + random.below(2)) : 0;
    return std::make_unique<Region>(me_, device, size);
  }
  bool has_devices() const { return job_.test_case.settings.find("DEVICES=") != std::string::npos; }
  hetcomm_stream_t* stream(const Step& step) { return step.on_stream ? stream_ : nullptr; }
  hetcomm_remote_memory_t* window_of(int32_t rank) { return remote_[static_cast<size_t>(rank)]; }
  hetcomm_queue_t* pushes() { return pushes_; }
  hetcomm_queue_t* pulls() { return pulls_; }
  hetcomm_reshard_t* plan() { return plan_; }
  // The call has returned |status|: it has started the operation, or was rejected by the same rule.
  void note(hetcomm_status_t status, Started started) {
    if (status == HETCOMM_OK) {
      running_.push_back(std::move(started));
      return;
    }
    check_end(started, status, hetcomm_last_error());
    for (auto& each : started.regions) each->seal();
    keep(std::move(started));
  }
  void wait_for_all() {
    for (Started& each : running_) end(each);
    running_.clear();
  }
  // The victim stops here, and another rank goes on for it.
  void stop(uint64_t signal_after) {
    me_.store().word(kSignal) = signal_after;
    me_.store().word(kStoppedAt) = clock_ns();
    raise(SIGSTOP);
  }

 private:
  static constexpr size_t kParted = 1;
  static constexpr size_t kStoppedAt = 2;
  static constexpr size_t kSignal = 3;
  static constexpr size_t kPids = 8;

  void set_up();
  void check_that_all_know();
  void clean_up();

  // Whether the step is made here.
  bool make(const Step& step) {
    if (rank() != job_.victim || happened_ || step.number < job_.fault_step) return true;
    const FaultKind& fault = *job_.fault;
    if (fault.happen == nullptr) return true;
    if (fault.in_collective && step.kind->domain != Domain::kCollective) return true;
    happened_ = true;
    return fault.happen(*this, step);
  }

  // Wakes a rank that has stopped, or kills it, when its time has come. The rank after it does so.
  void look_after_the_stopped() {
    if (rank() != (job_.victim + 1) % size()) return;
    const uint64_t since = me_.store().word(kStoppedAt);
    if (since == 0 || clock_ns() - since < 60 * kMs) return;
    const uint64_t signal = me_.store().word(kSignal).exchange(0);
    if (signal == 0) return;
    if (signal == SIGKILL) me_.store().expect_death(job_.victim);
    kill(static_cast<pid_t>(me_.store().word(kPids + static_cast<size_t>(job_.victim))),
         static_cast<int>(signal));
  }

  void end(Started& each) {
    hetcomm_completion_t completion{};
    hetcomm_status_t status = HETCOMM_TIMED_OUT;
    const uint64_t limit = clock_ns() + 2 * kPatienceNs;
    while (status == HETCOMM_TIMED_OUT && clock_ns() < limit) {
      look_after_the_stopped();
      status = hetcomm_request_wait(each.request, 20 * kMs, &completion);
    }
    if (status == HETCOMM_TIMED_OUT) {
      ADD_FAILURE() << each.what << " of rank " << rank() << " does not end";
      fflush(nullptr);
      _exit(1);
    }
    ASSERT_EQ(status, HETCOMM_OK) << each.what << ": " << hetcomm_last_error();
    check_end(each, completion.status, completion.text == nullptr ? "" : completion.text);
    if (completion.status == HETCOMM_OK && !each.expected.empty()) {
      EXPECT_TRUE(each.regions.back()->contents() == each.expected)
          << each.what << " of rank " << rank() << " has other data";
    }
    for (auto& region : each.regions) region->seal();
    keep(std::move(each));
  }

  void keep(Started&& started) {
    for (auto& region : started.regions) sealed_.push_back(std::move(region));
  }

  // By the rule of the fault.
  void check_end(const Started& each, int32_t status, const std::string& text) {
    if (status == HETCOMM_OK) return;
    const FaultKind& fault = *job_.fault;
    const bool with_victim = each.peer == job_.victim || rank() == job_.victim;
    const int32_t allowed = each.domain == Domain::kCollective ? fault.collectives
                            : each.domain == Domain::kReshard  ? fault.reshards
                            : with_victim                      ? fault.pairs
                                                               : HETCOMM_OK;
    const bool handed_on = each.domain == Domain::kReshard && status == HETCOMM_ABORTED;
    const bool unknown = each.domain == Domain::kAtomic && status == HETCOMM_OUTCOME_UNKNOWN;
    EXPECT_TRUE(status == allowed || (allowed != HETCOMM_OK && (handed_on || unknown)))
        << each.what << " of rank " << rank() << " with rank " << each.peer << ": "
        << hetcomm_status_name(status) << ": " << text;
    if (each.domain != Domain::kReshard) {
      EXPECT_TRUE(names(text, job_.victim)) << each.what << " of rank " << rank() << ": " << text;
    }
  }

  // Waits for all ranks that live, in progress.
  void part() {
    me_.store().word(kParted).fetch_add(1);
    const uint64_t living = static_cast<uint64_t>(size() - (job_.fault->kills ? 1 : 0));
    EXPECT_TRUE(me_.until([&] {
      look_after_the_stopped();
      return me_.store().word(kParted) >= living;
    }));
    // What comes late comes by then.
    const uint64_t until = clock_ns() + kMs;
    while (clock_ns() < until) EXPECT_EQ(hetcomm_context_progress(me_.context()), HETCOMM_OK);
    for (const auto& region : sealed_) region->check();
  }

  Member& me_;
  const Job& job_;
  bool happened_ = false;
  std::vector<Started> running_;
  std::vector<std::unique_ptr<Region>> sealed_;
  hetcomm_memory_t* window_ = nullptr;
  std::vector<hetcomm_remote_memory_t*> remote_;
  hetcomm_queue_t* pushes_ = nullptr;
  hetcomm_queue_t* pulls_ = nullptr;
  hetcomm_reshard_t* plan_ = nullptr;
  hetcomm_stream_t* stream_ = nullptr;
};

// --- operations -------------------------------------------------------------

hetcomm_operation_options_t options_of(Rank& rank, const Step& step) {
  hetcomm_operation_options_t options = with_timeout(0);
  options.stream = rank.stream(step);
  return options;
}

uint64_t seed_of(const Step& step, int32_t rank) {
  return step.seed * 31 + static_cast<uint64_t>(rank);
}

// The receive is in no stream's order: the send behind it in one stream would wait for its end.
void start_messages(Rank& rank, const Step& step) {
  const hetcomm_operation_options_t options = options_of(rank, step);
  const int32_t to = rank.after(step.shift);
  const int32_t from = rank.before(step.shift);
  hetcomm_communicator_t* const communicator = rank.me().communicator();
  Started receive{.domain = Domain::kPair, .peer = from, .what = "receive"};
  receive.regions.push_back(rank.region(step, step.size, 0));
  receive.expected = pattern(step.size, seed_of(step, from));
  hetcomm_status_t status = hetcomm_recv(communicator, from, step.number, HETCOMM_EXACT_TAG,
                                         receive.regions[0]->buffer(), nullptr, &receive.request);
  rank.note(status, std::move(receive));
  Started send{.domain = Domain::kPair, .peer = to, .what = "send"};
  send.regions.push_back(rank.region(step, step.size, 1));
  send.regions[0]->fill(pattern(step.size, seed_of(step, rank.rank())));
  status = hetcomm_send(communicator, to, step.number, send.regions[0]->buffer(), &options,
                        &send.request);
  rank.note(status, std::move(send));
}

constexpr uint32_t kCollectiveForms = 10;

// Sizes are of whole elements, and of as many parts as there are ranks.
void start_collective(Rank& rank, const Step& step) {
  constexpr int32_t kType = HETCOMM_UINT64;
  constexpr int32_t kSum = HETCOMM_REDUCE_SUM;
  const uint64_t part = step.size / 8 * 8;
  const uint64_t whole = part * static_cast<uint64_t>(rank.size());
  const auto root = step.root % rank.size();
  const bool at_root = rank.rank() == root;
  hetcomm_communicator_t* const on = rank.me().communicator();
  hetcomm_collective_options_t options{};
  options.struct_size = sizeof(options);
  options.stream = rank.stream(step);
  Started made{.domain = Domain::kCollective};
  hetcomm_request_t** const out = &made.request;
  const auto memory = [&](uint64_t size) {
    made.regions.push_back(rank.region(step, size, static_cast<uint32_t>(made.regions.size())));
    return made.regions.back()->buffer();
  };
  hetcomm_status_t status = HETCOMM_INTERNAL;
  switch (step.form % kCollectiveForms) {
    case 0:
      made.what = "barrier";
      status = hetcomm_barrier(on, &options, out);
      break;
    case 1: {
      made.what = "broadcast";
      const hetcomm_buffer_t buffer = memory(part);
      made.expected = pattern(part, seed_of(step, root));
      if (at_root) made.regions[0]->fill(made.expected);
      status = hetcomm_broadcast(on, root, buffer, kType, &options, out);
      break;
    }
    case 2: {
      made.what = "allreduce";
      const hetcomm_buffer_t send = memory(part);
      const hetcomm_buffer_t receive = memory(part);
      std::vector<uint64_t> values(part / 8);
      std::vector<uint64_t> sums(part / 8);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = step.seed + i * static_cast<uint64_t>(rank.rank() + 1);
        for (int32_t each = 0; each < rank.size(); ++each) {
          sums[i] += step.seed + i * static_cast<uint64_t>(each + 1);
        }
      }
      const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
      made.regions[0]->fill({bytes, bytes + part});
      bytes = reinterpret_cast<const std::byte*>(sums.data());
      made.expected.assign(bytes, bytes + part);
      status = hetcomm_allreduce(on, send, receive, kType, kSum, &options, out);
      break;
    }
    case 3: {
      made.what = "reduce";
      const hetcomm_buffer_t send = memory(part);
      status = hetcomm_reduce(on, root, send, memory(part), kType, kSum, &options, out);
      break;
    }
    case 4: {
      made.what = "allgather";
      const hetcomm_buffer_t send = memory(part);
      made.regions[0]->fill(pattern(part, seed_of(step, rank.rank())));
      const hetcomm_buffer_t receive = memory(whole);
      for (int32_t each = 0; each < rank.size(); ++each) {
        const std::vector<std::byte> block = pattern(part, seed_of(step, each));
        made.expected.insert(made.expected.end(), block.begin(), block.end());
      }
      status = hetcomm_allgather(on, send, receive, kType, &options, out);
      break;
    }
    case 5: {
      made.what = "reduce_scatter";
      const hetcomm_buffer_t send = memory(whole);
      status = hetcomm_reduce_scatter(on, send, memory(part), kType, kSum, &options, out);
      break;
    }
    case 6: {
      made.what = "alltoall";
      const hetcomm_buffer_t send = memory(whole);
      status = hetcomm_alltoall(on, send, memory(whole), kType, &options, out);
      break;
    }
    case 7: {
      made.what = "gather";
      const hetcomm_buffer_t send = memory(part);
      status = hetcomm_gather(on, root, send, memory(whole), kType, &options, out);
      break;
    }
    case 8: {
      made.what = "scatter";
      const hetcomm_buffer_t send = memory(whole);
      status = hetcomm_scatter(on, root, send, memory(part), kType, &options, out);
      break;
    }
    default: {
      made.what = "scan";
      const hetcomm_buffer_t send = memory(part);
      status = hetcomm_scan(on, send, memory(part), kType, kSum, &options, out);
    }
  }
  rank.note(status, std::move(made));
}

void start_access(Rank& rank, const Step& step) {
  const int32_t owner = rank.after(step.shift);
  const uint64_t at = static_cast<uint64_t>(rank.rank()) * kWindowBytes;
  const hetcomm_operation_options_t options = options_of(rank, step);
  Started made{.domain = Domain::kPair, .peer = owner};
  hetcomm_remote_memory_t* const window = rank.window_of(owner);
  hetcomm_status_t status = HETCOMM_INTERNAL;
  if (step.form % 3 == 2) {
    made.what = "fetch_add";
    made.domain = Domain::kAtomic;
    made.regions.push_back(std::make_unique<Region>(rank.me(), 0, sizeof(uint64_t)));
    auto* const previous = reinterpret_cast<uint64_t*>(made.regions[0]->buffer().offset);
    status = hetcomm_fetch_add(window, at, 1, previous, &options, &made.request);
  } else {
    const bool puts = step.form % 3 == 0;
    made.what = puts ? "put" : "get";
    made.regions.push_back(rank.region(step, std::min(step.size, kWindowBytes), 0));
    const hetcomm_buffer_t buffer = made.regions[0]->buffer();
    status = puts ? hetcomm_put(window, at, buffer, &options, &made.request)
                  : hetcomm_get(window, at, buffer, &options, &made.request);
  }
  rank.note(status, std::move(made));
}

// Each rank pushes to the next one, and pulls from the one before. Neither is in a stream's order: a
// push that is in none would leave before.
void start_queue(Rank& rank, const Step& step) {
  const uint64_t size = std::min(step.size, kQueueBytes);
  Started pull{.domain = Domain::kPair, .peer = rank.before(1), .what = "pull"};
  pull.regions.push_back(rank.region(step, size, 0));
  pull.expected = pattern(size, seed_of(step, pull.peer));
  hetcomm_status_t status =
      hetcomm_queue_pull(rank.pulls(), pull.regions[0]->buffer(), nullptr, &pull.request);
  rank.note(status, std::move(pull));
  Started push{.domain = Domain::kPair, .peer = rank.after(1), .what = "push"};
  push.regions.push_back(rank.region(step, size, 1));
  push.regions[0]->fill(pattern(size, seed_of(step, rank.rank())));
  status = hetcomm_queue_push(rank.pushes(), push.regions[0]->buffer(), nullptr, &push.request);
  rank.note(status, std::move(push));
}

void start_reshard(Rank& rank, const Step& step) {
  const uint64_t bytes = kTensorElements / static_cast<uint64_t>(rank.size()) * sizeof(uint32_t);
  Started made{.domain = Domain::kReshard, .what = "redistribution"};
  made.regions.push_back(rank.region(step, bytes, 0));
  made.regions.push_back(rank.region(step, bytes, 1));
  made.regions[0]->fill(pattern(bytes, seed_of(step, rank.rank())));
  made.expected = pattern(bytes, seed_of(step, rank.before(1)));
  const hetcomm_buffer_t from = made.regions[0]->buffer();
  const hetcomm_buffer_t to = made.regions[1]->buffer();
  const hetcomm_status_t status =
      hetcomm_reshard_start(rank.plan(), &from, &to, nullptr, &made.request);
  rank.note(status, std::move(made));
}

constexpr OperationKind kOperations[] = {
    {"messages", Domain::kPair, false, start_messages},
    {"collective", Domain::kCollective, false, start_collective},
    {"access", Domain::kPair, false, start_access},
    {"queue", Domain::kPair, true, start_queue},
    {"reshard", Domain::kReshard, false, start_reshard},
};
constexpr const OperationKind& kCollective = kOperations[1];

// --- faults -----------------------------------------------------------------

bool refuse(Rank& victim, const Step& /*step*/) {
  EXPECT_EQ(hetcomm_collective_refuse(victim.me().communicator(), "the test refuses"), HETCOMM_OK);
  return false;
}

// Another kind, another root, or another size.
bool differ(Rank& victim, const Step& step) {
  Step other = step;
  const uint32_t form = step.form % kCollectiveForms;
  const bool has_root = form == 1 || form == 3 || form == 7 || form == 8;
  Random random(step.seed);
  if (has_root && random.chance(0.5)) {
    ++other.root;
  } else if (form != 0 && random.chance(0.5)) {
    other.size += 8;
  } else {
    other.form = (form + 1) % kCollectiveForms;
  }
  start_collective(victim, other);
  return false;
}

bool die(Rank& victim, const Step& step) {
  Random random(step.seed);
  if (random.chance(0.5)) step.kind->start(victim, step);
  victim.me().die();
}

bool stop_for_a_while(Rank& victim, const Step& /*step*/) {
  victim.stop(SIGCONT);
  return true;
}

bool stop_and_die(Rank& victim, const Step& /*step*/) {
  victim.stop(SIGKILL);
  return true;
}

// Ends connections of this process, as a network may.
bool cut(Rank& /*victim*/, const Step& step) {
  Random random(step.seed);
  for (int fd = 3; fd < 256; ++fd) {
    sockaddr_in peer{};
    socklen_t length = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
    if (peer.sin_family == AF_INET && random.chance(0.5)) shutdown(fd, SHUT_RDWR);
  }
  return true;
}

constexpr FaultKind kFaults[] = {
    {"nothing", false, false, false, nullptr, HETCOMM_OK, HETCOMM_OK, HETCOMM_OK, false},
    {"refusal", false, true, false, refuse, HETCOMM_MISMATCH, HETCOMM_OK, HETCOMM_OK, true},
    {"mismatch", false, true, false, differ, HETCOMM_MISMATCH, HETCOMM_OK, HETCOMM_OK, true},
    {"kill", false, false, true, die, HETCOMM_PEER_LOST, HETCOMM_PEER_LOST, HETCOMM_PEER_LOST,
     true},
    {"stop", false, false, false, stop_for_a_while, HETCOMM_OK, HETCOMM_OK, HETCOMM_OK, false},
    {"stop and kill", false, false, true, stop_and_die, HETCOMM_PEER_LOST, HETCOMM_PEER_LOST,
     HETCOMM_PEER_LOST, true},
    {"cut", true, false, false, cut, HETCOMM_OK, HETCOMM_OK, HETCOMM_OK, false},
};

// --- the parts of a job -----------------------------------------------------

void Rank::set_up() {
  hetcomm_communicator_t* const communicator = me_.communicator();
  const auto ranks = static_cast<size_t>(size());
  const bool by_thread = job_.test_case.thread_progress;
  EXPECT_EQ(hetcomm_memory_allocate(me_.context(), 0, kWindowBytes * ranks, &window_), HETCOMM_OK);
  EXPECT_EQ(hetcomm_memory_register(window_, communicator, HETCOMM_ACCESS_ALL,
                                    by_thread ? 0 : HETCOMM_REGISTER_CALLER_PROGRESS),
            HETCOMM_OK)
      << hetcomm_last_error();
  std::array<std::byte, HETCOMM_EXPORT_MAX_BYTES> own{};
  size_t length = 0;
  EXPECT_EQ(hetcomm_memory_export(window_, own.size(), own.data(), &length), HETCOMM_OK);
  std::vector<std::byte> all(own.size() * ranks);
  hetcomm_request_t* request = nullptr;
  EXPECT_EQ(hetcomm_allgather(communicator, hetcomm_buffer_host(own.data(), own.size()),
                              hetcomm_buffer_host(all.data(), all.size()), HETCOMM_UINT8, nullptr,
                              &request),
            HETCOMM_OK);
  EXPECT_EQ(finish(request).status, HETCOMM_OK);
  remote_.resize(ranks);
  for (size_t each = 0; each < ranks; ++each) {
    EXPECT_EQ(
        hetcomm_memory_import(communicator, all.data() + each * own.size(), length, &remote_[each]),
        HETCOMM_OK)
        << hetcomm_last_error();
  }
  if (by_thread) {
    const hetcomm_queue_options_t terms{.struct_size = sizeof(terms),
                                        .tag = 1,
                                        .max_item_bytes = kQueueBytes,
                                        .depth = 2 * kMostSteps,
                                        .weight = 0,
                                        .max_bytes_per_second = 0};
    EXPECT_EQ(hetcomm_queue_create(communicator, after(1), HETCOMM_QUEUE_PUSH, &terms, &pushes_),
              HETCOMM_OK);
    EXPECT_EQ(hetcomm_queue_create(communicator, before(1), HETCOMM_QUEUE_PULL, &terms, &pulls_),
              HETCOMM_OK);
    if (has_devices()) {
      EXPECT_EQ(hetcomm_stream_create(me_.context(), 1, 0, &stream_), HETCOMM_OK)
          << hetcomm_last_error();
    }
  }
  // Each rank's part goes to the next rank.
  const uint64_t each = kTensorElements / ranks;
  const uint64_t shape = each * ranks;
  hetcomm_layout_t* layouts[2] = {};
  for (size_t side = 0; side < 2; ++side) {
    std::vector<hetcomm_part_t> parts(ranks);
    for (size_t i = 0; i < ranks; ++i) {
      parts[i].rank = static_cast<int32_t>((i + side) % ranks);
      parts[i].begin[0] = i * each;
      parts[i].end[0] = (i + 1) * each;
    }
    EXPECT_EQ(hetcomm_layout_from_parts(1, &shape, parts.data(), ranks, nullptr, &layouts[side]),
              HETCOMM_OK)
        << hetcomm_last_error();
  }
  const hetcomm_reshard_tensor_t tensor{layouts[0], layouts[1], HETCOMM_UINT32, HETCOMM_UINT32};
  hetcomm_reshard_options_t options{};
  options.struct_size = sizeof(options);
  options.in_flight = kMostSteps;
  EXPECT_EQ(hetcomm_reshard_create(communicator, &tensor, 1, &options, &plan_), HETCOMM_OK)
      << hetcomm_last_error();
  for (hetcomm_layout_t* layout : layouts) EXPECT_EQ(hetcomm_layout_destroy(layout), HETCOMM_OK);
  EXPECT_TRUE(me_.meet());
}

// A call of all ranks after the fault fails on all, and names where it comes from. Else it ends well.
void Rank::check_that_all_know() {
  hetcomm_request_t* request = nullptr;
  EXPECT_EQ(hetcomm_barrier(me_.communicator(), nullptr, &request), HETCOMM_OK);
  Started last{.request = request, .domain = Domain::kCollective, .what = "last barrier"};
  hetcomm_completion_t completion{};
  hetcomm_status_t status = HETCOMM_TIMED_OUT;
  for (int i = 0; i < 2000 && status == HETCOMM_TIMED_OUT; ++i) {
    look_after_the_stopped();
    status = hetcomm_request_wait(request, 20 * kMs, &completion);
  }
  ASSERT_EQ(status, HETCOMM_OK) << "the last barrier of rank " << rank() << " does not end";
  check_end(last, completion.status, completion.text == nullptr ? "" : completion.text);
  const FaultKind& fault = *job_.fault;
  EXPECT_EQ(completion.status, fault.all_later ? fault.collectives : HETCOMM_OK)
      << "the last barrier of rank " << rank() << ": " << completion.text;
}

void Rank::clean_up() {
  const bool ruined = job_.fault->kills;
  if (ruined) me_.expect_ruin();
  EXPECT_EQ(hetcomm_reshard_destroy(plan_), HETCOMM_OK) << hetcomm_last_error();
  if (pushes_ != nullptr) {
    EXPECT_EQ(hetcomm_queue_destroy(pushes_), HETCOMM_OK) << hetcomm_last_error();
    EXPECT_EQ(hetcomm_queue_destroy(pulls_), HETCOMM_OK) << hetcomm_last_error();
  }
  for (hetcomm_remote_memory_t* each : remote_) {
    EXPECT_EQ(hetcomm_remote_memory_release(each), HETCOMM_OK) << hetcomm_last_error();
  }
  EXPECT_EQ(hetcomm_memory_unregister(window_, kPatienceNs), HETCOMM_OK) << hetcomm_last_error();
  EXPECT_EQ(hetcomm_memory_free(window_), HETCOMM_OK) << hetcomm_last_error();
  sealed_.clear();
  if (stream_ != nullptr) {
    EXPECT_TRUE(me_.until([&] { return hetcomm_stream_release(stream_) == HETCOMM_OK; }));
  }
}

Job draw(uint64_t seed) {
  Random random(seed * 0x9e3779b97f4a7c15u + 1);
  Job job;
  job.seed = seed;
  job.size = static_cast<int32_t>(random.between(2, 6));
  const bool tcp = random.chance(0.5);
  CapiCase& test_case = job.test_case;
  test_case.name = "random";
  test_case.transports = tcp ? "tcp" : "shm";
  test_case.processes = true;
  test_case.thread_progress = random.chance(0.5);
  if (random.chance(0.4)) test_case.settings += "DEVICES=sim-handle,sim-address;";
  if (random.chance(0.5)) test_case.settings += "COLLECTIVE_SHARED=0;";
  if (random.chance(0.2))
    test_case.settings += "TCP_CHUNK=4K;TCP_EAGER=256;SHM_CHUNK=4K;SHM_EAGER=1K;";
  const bool devices = test_case.settings.find("DEVICES") != std::string::npos;
  do {
    job.fault = &kFaults[random.below(std::size(kFaults))];
  } while (job.fault->tcp_only && !tcp);
  job.victim = static_cast<int32_t>(random.below(static_cast<uint64_t>(job.size)));
  const size_t steps = random.between(3, kMostSteps);
  for (size_t i = 0; i < steps; ++i) {
    Step step;
    // The last one is a collective operation, in which the fault can happen.
    do {
      step.kind =
          i + 1 == steps ? &kCollective : &kOperations[random.below(std::size(kOperations))];
    } while (step.kind->needs_thread && !test_case.thread_progress);
    step.number = static_cast<uint32_t>(i);
    step.form = static_cast<uint32_t>(random.below(1000));
    step.shift = static_cast<int32_t>(random.below(static_cast<uint64_t>(job.size)));
    step.root = static_cast<int32_t>(random.below(static_cast<uint64_t>(job.size)));
    step.size = random.chance(0.2) ? random.below(300'000) : random.below(3000);
    step.seed = random.below(UINT64_MAX);
    step.on_stream = test_case.thread_progress && devices && random.chance(0.3);
    step.waits = random.chance(0.5);
    job.steps.push_back(step);
  }
  job.fault_step = static_cast<uint32_t>(random.below(steps));
  return job;
}

void run(const Job& job) {
  run_job(job.test_case, job.size, [&](Member& me) {
    SCOPED_TRACE(testing::Message() << "HETCOMM_TEST_SEED=" << job.seed << ": " << job.fault->name
                                    << " at step " << job.fault_step << " of rank " << job.victim
                                    << " of " << job.size << ", " << job.test_case.transports
                                    << (job.test_case.thread_progress ? ", thread; " : "; ")
                                    << job.test_case.settings);
    Rank(me, job).run();
  });
}

// Runs jobs in turn, until one fails. They are shared with other processes by |next|.
[[noreturn]] void work(std::atomic<uint64_t>& next, uint64_t first, uint64_t jobs) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(0);
  for (uint64_t i = next.fetch_add(1); i < jobs; i = next.fetch_add(1)) {
    run(draw(first + i));
    if (!::testing::Test::HasFailure()) continue;
    std::fprintf(stderr, "job failed: HETCOMM_TEST_SEED=%lu\n",
                 static_cast<unsigned long>(first + i));
    fflush(nullptr);
    _exit(1);
  }
  fflush(nullptr);
  _exit(0);
}

TEST(RandomFaults, EveryOperationEndsByItsRule) {
  if (const char* const seed = std::getenv("HETCOMM_TEST_SEED"); seed != nullptr) {
    run(draw(std::strtoull(seed, nullptr, 10)));
    return;
  }
  const uint64_t jobs = std::getenv("HETCOMM_TEST_LONG") != nullptr ? 10'000 : 200;
  // Jobs wait most of the time.
  constexpr int kWorkers = 4;
  void* const shared = mmap(nullptr, sizeof(std::atomic<uint64_t>), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto& next = *new (shared) std::atomic<uint64_t>(0);
  fflush(nullptr);
  std::vector<pid_t> workers;
  for (int i = 0; i < kWorkers; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) work(next, 1, jobs);
    workers.push_back(child);
  }
  for (const pid_t worker : workers) {
    int status = 0;
    EXPECT_EQ(waitpid(worker, &status, 0), worker);
    EXPECT_EQ(status, 0) << "a job has failed; the output has its seed";
  }
  EXPECT_GE(next.load(), jobs);
  munmap(shared, sizeof(std::atomic<uint64_t>));
}

}  // namespace
}  // namespace hetcomm_test
