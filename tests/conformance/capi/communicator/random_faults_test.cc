// Random jobs in which one thing goes wrong at a random step. Ranks are processes. All ranks draw
// the same steps, settings and fault from the job's seed.
//
//   * every operation ends by its rule: kFaults gives the status, and Rules decides which
//     operations may fail
//   * an operation that fails names the rank where the failure started
//   * nothing is written to an operation's memory after its end: host memory is taken away at that
//     point, and device memory is compared at the end of the job unless its device was abandoned
//   * no rank dies unless it is killed
//
// HETCOMM_TEST_SEED runs only the job with that seed. Every failure prints seed, fault and steps.
// To add a kind of operation, add a row to kOperations; to add a fault, add one to kFaults.
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
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/capi/job.h"
#include "tests/support/hanging_device.h"

namespace hetcomm_test {
namespace {

using hetcomm::test::HangingDevice;

constexpr uint64_t kWindowBytes = 4096;     // size of each rank's memory for each other rank
constexpr uint64_t kQueueBytes = 64 << 10;  // size of the longest item
constexpr uint64_t kTensorElements = 600;   // the most elements of a redistribution
constexpr size_t kMaxSteps = 16;            // includes the last two
constexpr uint64_t kStopNs = 60 * kMs;      // duration of a rank's stop
constexpr uint64_t kHangNs = 30 * kMs;      // a hanging device is abandoned after this time
constexpr uint64_t kMarkerTag = uint64_t{1} << 32;  // plus the step number

// A refusal or differing labels end executions with this status on ranks that learn of it from a
// rank other than the victim. hetcomm/reshard.h: "PEER_LOST or MISMATCH where that is the reason".
constexpr int32_t kToldMismatch = HETCOMM_MISMATCH;

// --- devices ----------------------------------------------------------------

// HangingDevice's table without the calls that pin memory. Such calls wait for a hanging device,
// and abandoning the device ends no call to a vendor.
const hetcomm_device_table_t& table_without_pins(const hetcomm_device_table_t& whole) {
  static const hetcomm_device_table_t table = [&whole] {
    hetcomm_device_table_t made = whole;
    made.pin_host = nullptr;
    made.unpin_host = nullptr;
    return made;
  }();
  return table;
}

// A device added by this rank. It can hang, and is then abandoned.
class OwnDevice {
 public:
  OwnDevice(Member& me, bool has_stream) : me_(me) {
    const hetcomm_device_t whole = device_.device();
    const hetcomm_device_t own{&table_without_pins(*whole.table), whole.instance};
    EXPECT_EQ(hetcomm_device_add(me.context(), &own, &number_), HETCOMM_OK) << hetcomm_last_error();
    EXPECT_EQ(hetcomm_memory_allocate(me.context(), number_, users_.size(), &scratch_), HETCOMM_OK)
        << hetcomm_last_error();
    if (!has_stream) return;
    EXPECT_EQ(hetcomm_stream_create(me.context(), number_, 0, &stream_), HETCOMM_OK)
        << hetcomm_last_error();
  }
  OwnDevice(const OwnDevice&) = delete;
  OwnDevice& operator=(const OwnDevice&) = delete;

  int32_t number() const { return number_; }
  hetcomm_stream_t* stream() const { return stream_; }
  HangingDevice& device() { return device_; }
  bool is_given_up() const { return is_given_up_; }

  // Makes all copies hang, starting with one of the next. In some jobs the user enqueues that copy
  // in the stream.
  void hang(Random& random) {
    const bool by_user = stream_ != nullptr && random.chance(0.5);
    device_.hang(random.chance(0.5) ? HangingDevice::Way::kCopies : HangingDevice::Way::kEvents,
                 by_user ? 0 : static_cast<int64_t>(random.below(4)));
    is_armed_ = true;
    if (!by_user) return;
    void* native = nullptr;
    void* address = nullptr;
    EXPECT_EQ(hetcomm_stream_native(stream_, &native), HETCOMM_OK) << hetcomm_last_error();
    EXPECT_EQ(hetcomm_memory_address(scratch_, &address), HETCOMM_OK) << hetcomm_last_error();
    const hetcomm_device_t own = device_.device();
    EXPECT_EQ(
        own.table->copy_to_host(own.instance, native, users_.data(), address, 0, users_.size()),
        HETCOMM_OK);
  }
  // Abandons the device when it has hung for a while.
  void look() {
    if (!is_armed_ || is_given_up_ || !device_.hangs()) return;
    if (hangs_since_ns_ == 0) hangs_since_ns_ = clock_ns();
    if (clock_ns() - hangs_since_ns_ >= kHangNs) give_up();
  }
  // Abandons the device. Later calls that name it are refused.
  void give_up() {
    if (!is_armed_ || is_given_up_) return;
    is_given_up_ = true;
    EXPECT_EQ(hetcomm_device_abandon(me_.context(), number_, "the test says so"), HETCOMM_OK)
        << hetcomm_last_error();
    hetcomm_request_t* request = nullptr;
    EXPECT_EQ(hetcomm_send(me_.communicator(), me_.rank(), kMarkerTag - 1,
                           hetcomm_buffer_memory(scratch_, 0, 8), nullptr, &request),
              HETCOMM_DEVICE_LOST);
    EXPECT_EQ(hetcomm_memory_read(scratch_, 0, refused_.data(), refused_.size()),
              HETCOMM_DEVICE_LOST);
    hetcomm_memory_t* memory = nullptr;
    EXPECT_EQ(hetcomm_memory_allocate(me_.context(), number_, 8, &memory), HETCOMM_DEVICE_LOST);
  }
  // Releases hanging copies.
  void let_go() { device_.let_go(); }
  // Releases the device, which no operation uses any longer.
  void release() {
    if (stream_ != nullptr) {
      EXPECT_TRUE(me_.until([&] { return hetcomm_stream_destroy(stream_) == HETCOMM_OK; }))
          << hetcomm_last_error();
    }
    EXPECT_EQ(hetcomm_memory_destroy(scratch_), HETCOMM_OK) << hetcomm_last_error();
  }

 private:
  Member& me_;
  // The device outlives the context, which outlives this object. It exists until the process ends.
  HangingDevice& device_ = *new HangingDevice;
  int32_t number_ = -1;
  hetcomm_stream_t* stream_ = nullptr;
  hetcomm_memory_t* scratch_ = nullptr;
  std::array<std::byte, 64> users_{};  // destination of the user's copy
  std::array<std::byte, 64> refused_{};
  bool is_armed_ = false;
  bool is_given_up_ = false;
  uint64_t hangs_since_ns_ = 0;
};

// --- memory -----------------------------------------------------------------

// Memory for one side of an operation, on the host or on a device.
class Region {
 public:
  // |own|: the rank's own device, if |device| refers to it.
  Region(Member& me, int32_t device, uint64_t size, HangingDevice* own = nullptr)
      : size_(size), own_(own) {
    if (device != 0) {
      EXPECT_EQ(
          hetcomm_memory_allocate(me.context(), device, std::max<uint64_t>(size, 1), &memory_),
          HETCOMM_OK)
          << hetcomm_last_error();
      EXPECT_EQ(hetcomm_memory_address(memory_, &address_), HETCOMM_OK) << hetcomm_last_error();
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
      EXPECT_EQ(hetcomm_memory_destroy(memory_), HETCOMM_OK) << hetcomm_last_error();
    }
  }
  hetcomm_buffer_t buffer() const {
    return memory_ != nullptr ? hetcomm_buffer_memory(memory_, 0, size_)
                              : hetcomm_buffer_host(base_, size_);
  }
  uint64_t size() const { return size_; }
  bool is_on_own() const { return own_ != nullptr; }
  void fill(const std::byte* bytes) {
    if (size_ == 0) return;
    if (memory_ == nullptr) {
      std::memcpy(base_, bytes, size_);
    } else if (own_ != nullptr) {
      own_->poke(address_, bytes, size_);
    } else {
      EXPECT_EQ(hetcomm_memory_write(memory_, 0, bytes, size_), HETCOMM_OK);
    }
  }
  std::vector<std::byte> contents() const {
    std::vector<std::byte> bytes(size_);
    if (size_ == 0) return bytes;
    if (memory_ == nullptr) {
      std::memcpy(bytes.data(), base_, size_);
    } else if (own_ != nullptr) {
      own_->peek(address_, bytes.data(), size_);
    } else {
      EXPECT_EQ(hetcomm_memory_read(memory_, 0, bytes.data(), size_), HETCOMM_OK)
          << hetcomm_last_error();
    }
    return bytes;
  }
  // Called when the operation has ended: nothing may access the memory from now on, except late
  // copies of this rank's own abandoned device if |is_quiet| is false.
  void seal(bool is_quiet) {
    if (memory_ == nullptr) {
      EXPECT_EQ(mprotect(base_, pages_, PROT_NONE), 0);
    } else if (is_quiet || own_ == nullptr) {
      sealed_ = contents();
    }
  }
  void check() const {
    if (sealed_) {
      EXPECT_TRUE(contents() == *sealed_) << "memory of a device was written after its operation";
    }
  }

 private:
  static constexpr uint64_t kPage = 4096;
  const uint64_t size_;
  HangingDevice* const own_;
  uint64_t pages_ = 0;
  std::byte* base_ = nullptr;
  hetcomm_memory_t* memory_ = nullptr;
  void* address_ = nullptr;
  std::optional<std::vector<std::byte>> sealed_;
};

// --- jobs -------------------------------------------------------------------

// The role of a rank in an operation.
enum class Role : uint8_t {
  kReceive,
  kSend,
  kPull,
  kPush,
  kAccess,
  kAtomic,
  kFlush,
  kCollective,
  kExecution
};

// The redistributions in a job. In the ring each rank's part goes to the next rank. In the star all
// parts come from one rank.
enum class PlanId : uint8_t { kNone, kRing, kStar };

class Rank;
struct Step;

struct OperationKind {
  const char* name = "";
  void (*start)(Rank& rank, const Step& step) = nullptr;
  bool is_collective = false;    // only one collective operation
  PlanId plan = PlanId::kNone;   // only an execution of this plan
  bool needs_thread = false;     // the operation needs the progress thread
  bool may_be_on_child = false;  // may use the communicator from a split
};

struct Step {
  const OperationKind* kind = nullptr;
  uint32_t number = 0;
  uint32_t form = 0;  // selects the collective operation or the access
  int32_t shift = 0;  // distance of the peer
  int32_t root = 0;
  uint64_t size = 0;
  uint64_t seed = 0;
  bool on_child = false;
  bool on_stream = false;
  bool on_own = false;  // memory and stream may use each rank's own device
  bool waits = false;   // waits for all pending operations before the next step
};

struct Job;

// The steps at which a fault can occur.
enum class Place : uint8_t { kAnyStep, kCollective, kExecution };

// The operations that a fault affects.
enum class Reach : uint8_t {
  kNothing,
  kVictim,  // all operations that the victim takes part in
  kTeam,    // collective operations on the communicator where it occurs
  kPlan,    // executions of the redistribution where it occurs
  kTarget,  // the victim's cancelled operation, and those that fail with it
  kDevice   // operations that involve the victim's own device, and those that fail with them
};

// Statuses with which operations may end, in addition to OK. |here|: operations that the fault ends
// directly. |elsewhere|: operations that other ranks or operations end because of it.
struct Codes {
  int32_t here = HETCOMM_OK;
  int32_t elsewhere = HETCOMM_OK;
};

// A kind of fault.
struct FaultKind {
  const char* name = "";
  // Returns whether the victim still makes the step.
  bool (*happen)(Rank& victim, const Step& step) = nullptr;
  Place place = Place::kAnyStep;
  Reach reach = Reach::kNothing;
  Codes collectives{};
  Codes pairs{};  // messages, items and accesses
  Codes executions{};
  bool tcp_only = false;
  bool kills = false;  // the victim dies
  // The execution ends on its own if no rank can have sent data for it.
  bool ends_alone = false;
  bool names_others = false;  // the victim's texts name the rank from which it differs
  bool waits_before = false;  // all earlier steps have ended on each rank
};

struct Job {
  uint64_t seed = 0;
  int32_t size = 0;
  int32_t child_size = 0;  // the child has the first ranks, with the same numbers
  bool star_on_child = false;
  bool has_own_device = false;
  bool is_labelled = false;
  CapiCase test_case;
  std::vector<Step> steps;
  const FaultKind* fault = nullptr;
  int32_t victim = 0;
  uint32_t fault_step = 0;

  const Step& place() const { return steps[fault_step]; }
  int32_t size_of(bool child) const { return child ? child_size : size; }
  bool has_victim(bool child) const { return victim < size_of(child); }
  // Returns the rank that sends all parts in the star.
  int32_t star_center() const { return has_victim(star_on_child) ? victim : 0; }
};

// Returns whether |text| says that a failure started at |rank|.
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

// Returns whether |text| gives |rank| and |status| as the reason, in one of the two forms.
bool has_reason(const std::string& text, int32_t rank, hetcomm_status_t status) {
  const std::string origin = "rank " + std::to_string(rank);
  const std::string name = hetcomm_status_name(status);
  if (text.find(origin + ": " + name) != std::string::npos) return true;
  const size_t given_up = text.find(origin + " has given up redistribution #");
  return given_up != std::string::npos &&
         text.find(" (" + name + "): ", given_up) != std::string::npos;
}

struct Started {
  hetcomm_request_t* request = nullptr;
  Role role = Role::kReceive;
  uint32_t step = 0;
  const char* what = "";
  // The other rank of a pair. For a receive from any source, this is the rank that sends.
  int32_t peer = -1;
  PlanId plan = PlanId::kNone;
  bool on_child = false;
  bool from_any = false;
  bool on_own = false;     // the other rank's own device may be involved
  bool names_own = false;  // its memory or stream uses this rank's own device
  bool is_target = false;  // this rank cancels it
  bool is_orphan = false;  // its message was never sent
  bool is_prepared = false;
  uint32_t runs_left = 1;
  std::vector<std::unique_ptr<Region>> regions{};
  size_t first_result = 0;            // index into the regions
  std::vector<std::byte> expected{};  // expected results if the operation succeeds

  bool is_pair() const { return role < Role::kCollective; }
};

struct Ended {
  hetcomm_status_t status = HETCOMM_TIMED_OUT;
  int32_t source = -1;
  std::string text{};
};

// The victim's cancelled operation, encoded in one word for all ranks.
struct Target {
  uint32_t step = 0;
  Role role = Role::kReceive;
  PlanId plan = PlanId::kNone;
  int32_t peer = -1;

  uint64_t encode() const {
    return uint64_t{1} << 63 | uint64_t{step} << 24 | static_cast<uint64_t>(peer + 1) << 16 |
           static_cast<uint64_t>(role) << 8 | static_cast<uint64_t>(plan);
  }
  static Target decode(uint64_t word) {
    return {.step = static_cast<uint32_t>(word >> 24),
            .role = static_cast<Role>(word >> 8 & 0xff),
            .plan = static_cast<PlanId>(word & 0xff),
            .peer = static_cast<int32_t>(word >> 16 & 0xff) - 1};
  }
  // Returns the role of the other rank in the pair. Accesses have none, because the owner takes no
  // part.
  std::optional<Role> counterpart() const {
    switch (role) {
      case Role::kReceive:
        return Role::kSend;
      case Role::kSend:
        return Role::kReceive;
      case Role::kPull:
        return Role::kPush;
      case Role::kPush:
        return Role::kPull;
      default:
        return std::nullopt;
    }
  }
};

// Words in the store that all ranks can read.
constexpr size_t kParted = 1;
constexpr size_t kStoppedAt = 2;
constexpr size_t kSignal = 3;
constexpr size_t kTarget = 4;
constexpr size_t kEndedSends = 5;  // one bit per step
constexpr size_t kVerdicts = 6;    // two words: for the whole communicator and for the child
constexpr size_t kPids = 8;
constexpr uint64_t kGoesOn = 1;  // values of a verdict
constexpr uint64_t kHasFailed = 2;

// --- rules ------------------------------------------------------------------

// Rules for the end of one rank's operations.
class Rules {
 public:
  Rules(const Job& job, Member& me) : job_(job), me_(me) {}

  bool is_victim() const { return me_.rank() == job_.victim; }
  // Returns whether the fault itself ends an operation of the victim with this status.
  bool is_own_end(hetcomm_status_t status) const {
    const Reach reach = job_.fault->reach;
    return is_victim() && (reach == Reach::kTarget || reach == Reach::kDevice) &&
           status == job_.fault->pairs.here;
  }
  // Returns whether the operation must fail. An execution cannot succeed if its labels differ or if
  // another of its ranks refuses it.
  bool must_fail(const Started& each) const {
    if (job_.fault->reach != Reach::kPlan || each.step != job_.fault_step ||
        each.role != Role::kExecution) {
      return false;
    }
    return is_victim() || is_beside_victim(each.plan);
  }
  bool allows(const Started& each, const Ended& ended) const {
    // A receive whose message was never sent is cancelled here without a match.
    if (each.is_orphan && ended.status == HETCOMM_CANCELLED) return ended.source == -1;
    if (!may_fail(each)) return false;
    const FaultKind& fault = *job_.fault;
    const bool may_be_unknown = each.role == Role::kAtomic || each.role == Role::kFlush;
    if (may_be_unknown && ended.status == HETCOMM_OUTCOME_UNKNOWN) return true;
    const Codes& codes = each.role == Role::kCollective  ? fault.collectives
                         : each.role == Role::kExecution ? fault.executions
                                                         : fault.pairs;
    if (fault.reach == Reach::kPlan && ended.status == kToldMismatch) return true;
    return (ends_here(each) && ended.status == codes.here) ||
           (ends_elsewhere(each) && ended.status == codes.elsewhere);
  }
  // Returns whether the text names the origin of the failure and, if the status does not show it,
  // the status there.
  bool names_origin(const Started& each, const Ended& ended) const {
    const FaultKind& fault = *job_.fault;
    const int32_t victim = job_.victim;
    if (each.is_orphan && ended.status == HETCOMM_CANCELLED) return !ended.text.empty();
    if (is_own_end(ended.status) ||
        (is_victim() && ended.status == HETCOMM_OUTCOME_UNKNOWN)) {  // this rank is the origin
      const bool says_why = ended.status != HETCOMM_DEVICE_LOST || each.role == Role::kFlush ||
                            !each.names_own || ended.text.find("given up") != std::string::npos;
      return !ended.text.empty() && says_why;
    }
    if (is_victim() && fault.names_others) {
      for (int32_t rank = 0; rank < job_.size; ++rank) {
        if (rank != victim && is_beside(rank, victim, each.plan) && names(ended.text, rank)) {
          return true;
        }
      }
      return false;
    }
    if (!names(ended.text, victim)) return false;
    // A flush reports the outcome of another operation, whose text has the reason.
    const bool has_own_text = each.role != Role::kFlush && fault.reach != Reach::kPlan;
    return ended.status != HETCOMM_ABORTED || !has_own_text ||
           has_reason(ended.text, victim, fault.pairs.here);
  }
  // Returns how a barrier of all ranks ends after the fault. |verdict| is the victim's, used if the
  // seed does not decide.
  hetcomm_status_t last_barrier(bool child, uint64_t verdict) const {
    const FaultKind& fault = *job_.fault;
    if (!job_.has_victim(child)) return HETCOMM_OK;
    switch (fault.reach) {
      case Reach::kVictim:
        return fault.collectives.elsewhere;
      case Reach::kTeam:
        return job_.place().on_child == child ? fault.collectives.elsewhere : HETCOMM_OK;
      case Reach::kTarget:
      case Reach::kDevice:
        return verdict == kHasFailed ? fault.collectives.elsewhere : HETCOMM_OK;
      default:
        return HETCOMM_OK;
    }
  }
  bool needs_verdict(bool child) const {
    const Reach reach = job_.fault->reach;
    return job_.has_victim(child) && (reach == Reach::kTarget || reach == Reach::kDevice);
  }

 private:
  // Returns whether the plan has messages between the two ranks.
  bool is_beside(int32_t one, int32_t other, PlanId plan) const {
    if (plan == PlanId::kStar) return one == job_.star_center() || other == job_.star_center();
    return (one + 1) % job_.size == other || (other + 1) % job_.size == one;
  }
  bool is_beside_victim(PlanId plan) const { return is_beside(me_.rank(), job_.victim, plan); }

  bool may_fail(const Started& each) const {
    if (!job_.has_victim(each.on_child)) return false;
    switch (job_.fault->reach) {
      case Reach::kNothing:
        return false;
      case Reach::kVictim:
        return !each.is_pair() || each.peer == job_.victim || each.from_any;
      case Reach::kTeam:
        return each.role == Role::kCollective && each.on_child == job_.place().on_child;
      case Reach::kPlan: {
        if (each.role != Role::kExecution || each.plan != job_.place().kind->plan) return false;
        // Without the center of the star, no data moves.
        const bool is_alone = job_.fault->ends_alone && each.plan == PlanId::kStar;
        return !is_alone || each.step == job_.fault_step;
      }
      case Reach::kTarget:
        return is_hit_by_target(each);
      case Reach::kDevice:
        return is_hit_by_device(each);
    }
    return false;
  }
  bool is_hit_by_target(const Started& each) const {
    const uint64_t word = me_.store().word(kTarget);
    if (word == 0) return false;
    const Target target = Target::decode(word);
    if (target.role == Role::kCollective) {
      return each.role == Role::kCollective && each.on_child == job_.steps[target.step].on_child;
    }
    if (target.role == Role::kExecution) {
      return each.role == Role::kExecution && each.plan == target.plan;
    }
    if (each.is_target) return true;
    // "Its outcome is that of the first of them that failed" (hetcomm_flush).
    const bool is_access = target.role == Role::kAccess || target.role == Role::kAtomic;
    if (is_victim() && each.role == Role::kFlush && is_access && each.peer == target.peer) {
      return true;
    }
    return each.peer == job_.victim && each.step == target.step &&
           target.counterpart() == each.role;
  }
  bool is_hit_by_device(const Started& each) const {
    const bool with_victim = is_victim() || each.peer == job_.victim;
    if (!each.is_pair()) return true;
    if (each.role == Role::kFlush) return with_victim;
    return (is_victim() && each.names_own) || (each.peer == job_.victim && each.on_own);
  }

  // Returns whether the fault ends the operation directly. In that case an execution on the victim
  // ends with the plan's status.
  bool ends_here(const Started& each) const {
    if (!is_victim()) return false;
    const bool follows = each.role == Role::kExecution || each.role == Role::kFlush;
    if (job_.fault->reach == Reach::kTarget) return each.is_target || follows;
    if (job_.fault->reach == Reach::kDevice) return each.names_own || follows;
    return true;
  }
  // Returns whether another operation has ended this one: on another rank, at the other end of a
  // pair with itself, or before it in the collective operations. A neighbour may end the plan of a
  // cancelled execution.
  bool ends_elsewhere(const Started& each) const {
    return !is_victim() || each.peer == job_.victim || each.role == Role::kCollective ||
           (each.role == Role::kExecution && job_.fault->reach == Reach::kTarget);
  }

  const Job& job_;
  Member& me_;
};

// --- ranks ------------------------------------------------------------------

// Each rank's memory, which all ranks access.
struct Window {
  hetcomm_memory_t* memory = nullptr;
  std::vector<hetcomm_remote_memory_t*> of;  // index: rank
};

struct Plan {
  hetcomm_reshard_t* handle = nullptr;
  uint64_t part = 0;          // in bytes, for each rank
  uint64_t source_bytes = 0;  // of this rank
};

// One rank of a job.
class Rank {
 public:
  Rank(Member& me, const Job& job) : me_(me), job_(job), rules_(job, me) {}
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void run() {
    me_.store().word(kPids + static_cast<size_t>(me_.rank())) = static_cast<uint64_t>(getpid());
    set_up();
    for (const Step& step : job_.steps) {
      const bool takes_part = me_.rank() < job_.size_of(step.on_child);
      if (takes_part && make(step)) step.kind->start(*this, step);
      if (step.waits) wait_for_all();
    }
    wait_for_all();
    if (own_) own_->give_up();
    check_that_all_know(false);
    if (child_ != nullptr) check_that_all_know(true);
    take_markers();
    part();
    clean_up();
  }

  Member& me() { return me_; }
  const Job& job() const { return job_; }
  int32_t rank() const { return me_.rank(); }
  int32_t size(const Step& step) const { return job_.size_of(step.on_child); }
  hetcomm_communicator_t* communicator(const Step& step) {
    return step.on_child ? child_ : me_.communicator();
  }
  int32_t after(const Step& step) const { return (rank() + step.shift) % size(step); }
  int32_t before(const Step& step) const {
    return (rank() + size(step) - step.shift % size(step)) % size(step);
  }
  const Window& window(bool on_own) const { return on_own ? own_window_ : window_; }
  bool has_own_device() const { return own_ != nullptr; }
  OwnDevice& own_device() { return *own_; }
  hetcomm_queue_t* pushes() { return pushes_; }
  hetcomm_queue_t* pulls() { return pulls_; }
  const Plan& plan(PlanId id) const { return id == PlanId::kStar ? star_ : ring_; }
  // If a run may fail at only one end, the other rank cannot tell whether to start another run.
  uint32_t runs_of_prepared() const {
    const Reach reach = job_.fault->reach;
    return reach == Reach::kTarget || reach == Reach::kDevice ? 1 : 2;
  }

  Started begin(const Step& step, Role role, int32_t peer, const char* what) const {
    return {.role = role,
            .step = step.number,
            .what = what,
            .peer = peer,
            .on_child = step.on_child,
            .on_own = step.on_own};
  }
  // Adds memory of |size| bytes to |made|, on the host or on a device.
  hetcomm_buffer_t add(Started& made, const Step& step, uint64_t size) {
    Random random(step.seed + (made.regions.size() + 16 * static_cast<size_t>(made.role)) * 77 +
                  static_cast<uint64_t>(rank()) * 1'000'003);
    int32_t device = 0;
    HangingDevice* own = nullptr;
    if (random.chance(0.5)) {
      if (step.on_own && uses_own()) {
        device = own_->number();
        own = &own_->device();
        made.names_own = true;
      } else if (has_devices()) {
        device = static_cast<int32_t>(1 + random.below(2));
      }
    }
    made.regions.push_back(std::make_unique<Region>(me_, device, size, own));
    return made.regions.back()->buffer();
  }
  hetcomm_buffer_t add_filled(Started& made, const Step& step,
                              const std::vector<std::byte>& bytes) {
    const hetcomm_buffer_t buffer = add(made, step, bytes.size());
    made.regions.back()->fill(bytes.data());
    return buffer;
  }
  // Places |made| in the order of the step's stream, and in the group that is being filled.
  hetcomm_operation_options_t options(const Step& step, Started& made) {
    hetcomm_operation_options_t options = with_timeout(0);
    options.group = group_;
    options.stream = stream(step);
    if (own_ != nullptr && options.stream != nullptr && options.stream == own_->stream()) {
      made.names_own = true;
    }
    return options;
  }
  bool fills_group() const { return group_ != nullptr; }
  void open_group(const Step& step) {
    EXPECT_EQ(hetcomm_group_create(communicator(step), &group_), HETCOMM_OK)
        << hetcomm_last_error();
  }
  void start_group() {
    EXPECT_EQ(hetcomm_group_start(group_), HETCOMM_OK) << hetcomm_last_error();
    hetcomm_group_destroy(std::exchange(group_, nullptr));
  }

  // Records the operation. The call that returned |status| has started the operation or was
  // rejected by the same rule.
  void note(hetcomm_status_t status, Started started) {
    if (started.role == Role::kReceive && started.peer == job_.victim) {
      from_victim_ |= uint64_t{1} << started.step;
    }
    if (status == HETCOMM_OK) {
      running_.push_back(std::move(started));
      return;
    }
    finish(std::move(started), {.status = status, .source = -1, .text = hetcomm_last_error()});
  }
  void wait_for_all() {
    uint64_t limit = clock_ns() + 2 * kPatienceNs;
    while (!running_.empty()) {
      for (size_t i = 0; i < running_.size();) {
        Ended ended;
        if (!has_ended(running_[i], i == 0 ? 5 * kMs : HETCOMM_TIMEOUT_POLL, &ended)) {
          ++i;
          continue;
        }
        limit = clock_ns() + 2 * kPatienceNs;
        take(i, ended);
      }
      look_after();
      if (clock_ns() > limit) give_up_waiting();
    }
  }
  // Cancels one of the pending operations, and waits for it to end.
  void cancel_one(Random& random) {
    if (running_.empty()) return;
    const size_t index = random.below(running_.size());
    Started& target = running_[index];
    target.is_target = true;
    const Target told{
        .step = target.step, .role = target.role, .plan = target.plan, .peer = target.peer};
    me_.store().word(kTarget) = told.encode();
    EXPECT_EQ(hetcomm_request_cancel(target.request), HETCOMM_OK) << hetcomm_last_error();
    const uint64_t limit = clock_ns() + 2 * kPatienceNs;
    Ended ended;
    while (!has_ended(running_[index], 20 * kMs, &ended)) {
      if (clock_ns() > limit) give_up_waiting();
    }
    take(index, ended);
  }
  // Stops the victim here. Another rank wakes it.
  void stop(uint64_t signal_after) {
    me_.store().word(kSignal) = signal_after;
    me_.store().word(kStoppedAt) = clock_ns();
    raise(SIGSTOP);
  }

 private:
  void set_up();
  Window make_window(int32_t device, uint32_t rights);
  void make_queues();
  void make_plans();
  void check_that_all_know(bool child);
  void clean_up();
  void release(const Window& window);

  bool has_devices() const { return job_.test_case.settings.find("DEVICES=") != std::string::npos; }
  bool uses_own() const { return own_ != nullptr && !own_->is_given_up(); }
  hetcomm_stream_t* stream(const Step& step) {
    if (!step.on_stream) return nullptr;
    return step.on_own && uses_own() && own_->stream() != nullptr ? own_->stream() : stream_;
  }

  // Returns whether the step is made here.
  bool make(const Step& step) {
    if (rank() != job_.victim || step.number != job_.fault_step) return true;
    const FaultKind& fault = *job_.fault;
    return fault.happen == nullptr || fault.happen(*this, step);
  }

  // Wakes or kills a stopped rank when its time is up. The next rank does so.
  void look_after_the_stopped() {
    if (rank() != (job_.victim + 1) % job_.size) return;
    const uint64_t since = me_.store().word(kStoppedAt);
    if (since == 0 || clock_ns() - since < kStopNs) return;
    const uint64_t signal = me_.store().word(kSignal).exchange(0);
    if (signal == 0) return;
    if (signal == SIGKILL) me_.store().expect_death(job_.victim);
    kill(static_cast<pid_t>(me_.store().word(kPids + static_cast<size_t>(job_.victim))),
         static_cast<int>(signal));
  }
  // A victim's message that ended before it was sent never arrives. By the time the following
  // marker arrives, either the receive was notified, or it is unmatched and is cancelled.
  void look_after_orphans() {
    for (Started& each : running_) {
      const uint64_t bit = uint64_t{1} << each.step;
      const bool is_orphan = (me_.store().word(kEndedSends) & bit) != 0 &&
                             each.role == Role::kReceive && each.peer == job_.victim;
      if (!is_orphan || each.is_orphan) continue;
      take_marker(each.step);
      each.is_orphan = true;
      EXPECT_EQ(hetcomm_request_cancel(each.request), HETCOMM_OK) << hetcomm_last_error();
    }
  }
  void look_after() {
    look_after_the_stopped();
    if (own_) own_->look();
    look_after_orphans();
  }
  void take_marker(uint32_t step) {
    const uint64_t bit = uint64_t{1} << step;
    if ((taken_markers_ & bit) != 0) return;
    taken_markers_ |= bit;
    uint64_t word = 0;
    const Outcome outcome =
        hetcomm_test::finish(me_.recv(job_.victim, kMarkerTag + step, &word, sizeof(word)));
    EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
  }
  // The victim has sent all markers at this point.
  void take_markers() {
    for (uint32_t step = 0; step < job_.steps.size(); ++step) {
      const uint64_t told = me_.store().word(kEndedSends) & from_victim_;
      if ((told >> step & 1) != 0) take_marker(step);
    }
  }

  // Returns false if the operation is still pending after |timeout_ns|.
  bool has_ended(const Started& each, uint64_t timeout_ns, Ended* ended) {
    hetcomm_completion_t completion{};
    const hetcomm_status_t call = hetcomm_request_wait(each.request, timeout_ns, &completion);
    if (call == HETCOMM_TIMED_OUT) return false;
    EXPECT_EQ(call, HETCOMM_OK) << each.what << ": " << hetcomm_last_error();
    if (call != HETCOMM_OK) give_up_waiting();
    ended->status = completion.status;
    ended->source = completion.source;
    ended->text = completion.text == nullptr ? "" : completion.text;
    return true;
  }
  [[noreturn]] void give_up_waiting() {
    for (const Started& each : running_) {
      ADD_FAILURE() << each.what << " of step " << each.step << " of rank " << rank()
                    << " with rank " << each.peer << " has not ended";
    }
    fflush(nullptr);
    _exit(1);
  }
  void take(size_t index, const Ended& ended) {
    Started done = std::move(running_[index]);
    running_.erase(running_.begin() + static_cast<ptrdiff_t>(index));
    finish(std::move(done), ended);
  }

  void finish(Started each, const Ended& ended) {
    check_end(each, ended);
    if (ended.status == HETCOMM_OK) {
      check_data(each);
      if (--each.runs_left > 0) {
        const hetcomm_status_t status = hetcomm_request_start(each.request);
        note(status, std::move(each));
        return;
      }
    }
    if (each.is_prepared) {
      EXPECT_EQ(hetcomm_request_destroy(each.request), HETCOMM_OK) << hetcomm_last_error();
    }
    for (auto& region : each.regions) {
      region->seal(ended.status != HETCOMM_DEVICE_LOST);
      sealed_.push_back(std::move(region));
    }
    // The receive would have matched a message from a living rank.
    const bool leaves_one = each.from_any && ended.status == HETCOMM_PEER_LOST &&
                            ended.source == -1 && each.peer != job_.victim;
    if (leaves_one) receive_again(each);
    if (!rules_.is_own_end(ended.status)) return;
    if (each.role == Role::kSend) mark(each);
    if (each.role == Role::kReceive && ended.source == -1 && !each.is_orphan) receive_again(each);
  }
  // Checks the end against the rule for the fault.
  void check_end(const Started& each, const Ended& ended) {
    const auto about = [&] {
      return std::string(each.what) + " of step " + std::to_string(each.step) + " of rank " +
             std::to_string(rank()) + " with rank " + std::to_string(each.peer) + ": " +
             hetcomm_status_name(ended.status) + ": " + ended.text;
    };
    if (ended.status == HETCOMM_OK) {
      EXPECT_FALSE(rules_.must_fail(each)) << about();
      if (each.role == Role::kReceive) {
        EXPECT_EQ(ended.source, each.peer) << about();
      }
      return;
    }
    EXPECT_TRUE(rules_.allows(each, ended)) << about();
    EXPECT_TRUE(rules_.names_origin(each, ended)) << about();
    if (each.role == Role::kCollective) have_failed_[each.on_child ? 1 : 0] = true;
  }
  void check_data(const Started& each) const {
    if (each.expected.empty()) return;
    std::vector<std::byte> found;
    for (size_t i = each.first_result; i < each.regions.size(); ++i) {
      const std::vector<std::byte> part = each.regions[i]->contents();
      found.insert(found.end(), part.begin(), part.end());
    }
    EXPECT_TRUE(found == each.expected)
        << each.what << " of step " << each.step << " of rank " << rank() << " has other data";
  }
  // The victim's send has ended early. The victim tells its peer so, whether or not a receive was
  // matched.
  void mark(const Started& send) {
    hetcomm_request_t* const marker =
        me_.send(send.peer, kMarkerTag + send.step, &marker_, sizeof(marker_));
    EXPECT_EQ(hetcomm_request_destroy(marker), HETCOMM_OK) << hetcomm_last_error();
    me_.store().word(kEndedSends).fetch_or(uint64_t{1} << send.step);
  }
  // A receive has ended early without a match ("-1 when no message was matched",
  // hetcomm/request.h). Another receive accepts the message.
  void receive_again(const Started& before) {
    Started made{.role = Role::kReceive,
                 .step = before.step,
                 .what = "second receive",
                 .peer = before.peer,
                 .on_child = before.on_child,
                 .expected = before.expected};
    made.regions.push_back(std::make_unique<Region>(me_, 0, before.expected.size()));
    hetcomm_communicator_t* const on = before.on_child ? child_ : me_.communicator();
    const hetcomm_status_t status = hetcomm_recv(on, before.peer, before.step, HETCOMM_EXACT_TAG,
                                                 made.regions[0]->buffer(), nullptr, &made.request);
    note(status, std::move(made));
  }

  // Waits for all living ranks, and makes progress during the wait.
  void part() {
    if (own_) own_->let_go();
    me_.store().word(kParted).fetch_add(1);
    const uint64_t living = static_cast<uint64_t>(job_.size - (job_.fault->kills ? 1 : 0));
    EXPECT_TRUE(me_.until([&] {
      look_after_the_stopped();
      return me_.store().word(kParted) >= living;
    }));
    // Late messages have arrived by the end of this wait.
    const uint64_t until = clock_ns() + kMs;
    while (clock_ns() < until) EXPECT_EQ(hetcomm_context_progress(me_.context()), HETCOMM_OK);
    for (const auto& region : sealed_) region->check();
  }

  Member& me_;
  const Job& job_;
  const Rules rules_;
  std::vector<Started> running_;
  std::vector<std::unique_ptr<Region>> sealed_;
  std::array<bool, 2> have_failed_{};  // collective operations on all ranks, and on the child
  uint64_t from_victim_ = 0;           // one bit per step in which the victim sends to this rank
  uint64_t taken_markers_ = 0;         // one bit per step
  uint64_t marker_ = 0;
  hetcomm_communicator_t* child_ = nullptr;
  hetcomm_group_t* group_ = nullptr;
  Window window_;
  Window own_window_;
  hetcomm_queue_t* pushes_ = nullptr;
  hetcomm_queue_t* pulls_ = nullptr;
  Plan ring_;
  Plan star_;
  hetcomm_stream_t* stream_ = nullptr;
  std::unique_ptr<OwnDevice> own_;
};

// --- messages ---------------------------------------------------------------

uint64_t seed_of(const Step& step, int32_t rank) {
  return step.seed * 31 + static_cast<uint64_t>(rank);
}

using Sizes = std::vector<uint64_t>;

// Splits |size| into one to four pieces.
Sizes cut(uint64_t size, Random& random) {
  Sizes cuts{0, size};
  for (uint64_t more = random.below(4); more > 0; --more) cuts.push_back(random.between(0, size));
  std::sort(cuts.begin(), cuts.end());
  Sizes sizes;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) sizes.push_back(cuts[i + 1] - cuts[i]);
  return sizes;
}

Started make_receive(Rank& rank, const Step& step, const Sizes& sizes,
                     std::vector<hetcomm_buffer_t>* buffers) {
  Started made = rank.begin(step, Role::kReceive, rank.before(step), "receive");
  for (const uint64_t size : sizes) buffers->push_back(rank.add(made, step, size));
  made.expected = pattern(step.size, seed_of(step, made.peer));
  return made;
}

Started make_send(Rank& rank, const Step& step, const Sizes& sizes,
                  std::vector<hetcomm_buffer_t>* buffers) {
  Started made = rank.begin(step, Role::kSend, rank.after(step), "send");
  const std::vector<std::byte> all = pattern(step.size, seed_of(step, rank.rank()));
  const std::byte* next = all.data();
  for (const uint64_t size : sizes) {
    buffers->push_back(rank.add(made, step, size));
    made.regions.back()->fill(next);
    next += size;
  }
  return made;
}

// A single receive does not use a stream's order: a later send in the same stream would wait for
// its end.
void start_receive(Rank& rank, const Step& step, const Sizes& sizes, bool from_any = false) {
  std::vector<hetcomm_buffer_t> buffers;
  Started made = make_receive(rank, step, sizes, &buffers);
  made.from_any = from_any;
  hetcomm_operation_options_t options =
      rank.fills_group() ? rank.options(step, made) : with_timeout(0);
  // If a rank dies, the remaining ranks could still send.
  const bool may_lose_any = rank.job().fault->kills || step.form % 2 == 0;
  if (from_any && may_lose_any) options.flags = HETCOMM_OPERATION_FAIL_ON_ANY_LOSS;
  const int32_t source = from_any ? HETCOMM_ANY_SOURCE : made.peer;
  hetcomm_communicator_t* const on = rank.communicator(step);
  const hetcomm_status_t status =
      buffers.size() == 1 ? hetcomm_recv(on, source, step.number, HETCOMM_EXACT_TAG, buffers[0],
                                         &options, &made.request)
                          : hetcomm_recvv(on, source, step.number, HETCOMM_EXACT_TAG,
                                          buffers.data(), buffers.size(), &options, &made.request);
  rank.note(status, std::move(made));
}

void start_send(Rank& rank, const Step& step, const Sizes& sizes) {
  std::vector<hetcomm_buffer_t> buffers;
  Started made = make_send(rank, step, sizes, &buffers);
  const hetcomm_operation_options_t options = rank.options(step, made);
  hetcomm_communicator_t* const on = rank.communicator(step);
  const hetcomm_status_t status =
      buffers.size() == 1
          ? hetcomm_send(on, made.peer, step.number, buffers[0], &options, &made.request)
          : hetcomm_sendv(on, made.peer, step.number, buffers.data(), buffers.size(), &options,
                          &made.request);
  rank.note(status, std::move(made));
}

void start_messages(Rank& rank, const Step& step) {
  start_receive(rank, step, {step.size});
  start_send(rank, step, {step.size});
}

void start_lists(Rank& rank, const Step& step) {
  Random random(step.seed + static_cast<uint64_t>(rank.rank()));
  start_receive(rank, step, cut(step.size, random));
  start_send(rank, step, cut(step.size, random));
}

void start_from_any(Rank& rank, const Step& step) {
  start_receive(rank, step, {step.size}, true);
  start_send(rank, step, {step.size});
}

// Requests that are restarted after a successful run.
void start_prepared(Rank& rank, const Step& step) {
  hetcomm_communicator_t* const on = rank.communicator(step);
  for (const bool sends : {false, true}) {
    std::vector<hetcomm_buffer_t> buffers;
    Started made = sends ? make_send(rank, step, {step.size}, &buffers)
                         : make_receive(rank, step, {step.size}, &buffers);
    const hetcomm_operation_options_t options = sends ? rank.options(step, made) : with_timeout(0);
    made.is_prepared = true;
    made.runs_left = rank.runs_of_prepared();
    hetcomm_status_t status =
        sends ? hetcomm_send_prepare(on, made.peer, step.number, buffers.data(), 1, &options,
                                     &made.request)
              : hetcomm_recv_prepare(on, made.peer, step.number, HETCOMM_EXACT_TAG, buffers.data(),
                                     1, &options, &made.request);
    EXPECT_EQ(status, HETCOMM_OK) << hetcomm_last_error();
    if (status == HETCOMM_OK) status = hetcomm_request_start(made.request);
    rank.note(status, std::move(made));
  }
}

// --- collective operations ----------------------------------------------------

constexpr int32_t kType = HETCOMM_UINT64;
constexpr int32_t kSum = HETCOMM_REDUCE_SUM;

// One call of a collective operation. Sizes are in whole elements.
struct Call {
  Call(Rank& of, const Step& which, const char* what)
      : rank(of),
        step(which),
        on(of.communicator(which)),
        size(of.size(which)),
        own(of.rank()),
        root(which.root % size),
        part(which.size / 8 * 8),
        whole(part * static_cast<uint64_t>(size)),
        made(of.begin(which, Role::kCollective, -1, what)) {
    const hetcomm_operation_options_t order = of.options(which, made);
    options.struct_size = sizeof(options);
    options.group = order.group;
    options.stream = order.stream;
  }

  hetcomm_buffer_t memory(uint64_t bytes) { return rank.add(made, step, bytes); }
  hetcomm_buffer_t filled(const std::vector<std::byte>& bytes) {
    return rank.add_filled(made, step, bytes);
  }
  // Memory for results is added from this point.
  void begin_results() { made.first_result = made.regions.size(); }
  void expect(const std::vector<std::byte>& bytes) {
    made.expected.insert(made.expected.end(), bytes.begin(), bytes.end());
  }
  // Returns the length of part |index| in the forms with lists: at least one element, so that
  // differences are detected.
  uint64_t length(int32_t index) const {
    return 8 * (1 + (step.size / 8 + 3 * static_cast<uint64_t>(index)) % 150);
  }
  std::vector<hetcomm_buffer_t> memories() {
    std::vector<hetcomm_buffer_t> all;
    for (int32_t each = 0; each < size; ++each) all.push_back(memory(length(each)));
    return all;
  }

  Rank& rank;
  const Step& step;
  hetcomm_communicator_t* const on;
  const int32_t size;
  const int32_t own;
  const int32_t root;
  const uint64_t part;
  const uint64_t whole;
  Started made;
  hetcomm_collective_options_t options{};
};

hetcomm_status_t barrier(Call& call) {
  return hetcomm_barrier(call.on, &call.options, &call.made.request);
}

hetcomm_status_t broadcast(Call& call) {
  const hetcomm_buffer_t buffer = call.memory(call.part);
  call.expect(pattern(call.part, seed_of(call.step, call.root)));
  if (call.own == call.root) call.made.regions[0]->fill(call.made.expected.data());
  return hetcomm_broadcast(call.on, call.root, buffer, kType, &call.options, &call.made.request);
}

hetcomm_status_t allreduce(Call& call) {
  std::vector<uint64_t> values(call.part / 8);
  std::vector<uint64_t> sums(call.part / 8);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = call.step.seed + i * static_cast<uint64_t>(call.own + 1);
    for (int32_t each = 0; each < call.size; ++each) {
      sums[i] += call.step.seed + i * static_cast<uint64_t>(each + 1);
    }
  }
  const auto bytes_of = [](const std::vector<uint64_t>& words) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(words.data());
    return std::vector<std::byte>(bytes, bytes + words.size() * 8);
  };
  const hetcomm_buffer_t send = call.filled(bytes_of(values));
  call.begin_results();
  call.expect(bytes_of(sums));
  return hetcomm_allreduce(call.on, send, call.memory(call.part), kType, kSum, &call.options,
                           &call.made.request);
}

hetcomm_status_t reduce(Call& call) {
  const hetcomm_buffer_t send = call.memory(call.part);
  return hetcomm_reduce(call.on, call.root, send, call.memory(call.part), kType, kSum,
                        &call.options, &call.made.request);
}

hetcomm_status_t allgather(Call& call) {
  const hetcomm_buffer_t send = call.filled(pattern(call.part, seed_of(call.step, call.own)));
  call.begin_results();
  for (int32_t each = 0; each < call.size; ++each) {
    call.expect(pattern(call.part, seed_of(call.step, each)));
  }
  return hetcomm_allgather(call.on, send, call.memory(call.whole), kType, &call.options,
                           &call.made.request);
}

hetcomm_status_t reduce_scatter(Call& call) {
  const hetcomm_buffer_t send = call.memory(call.whole);
  return hetcomm_reduce_scatter(call.on, send, call.memory(call.part), kType, kSum, &call.options,
                                &call.made.request);
}

hetcomm_status_t alltoall(Call& call) {
  const hetcomm_buffer_t send = call.memory(call.whole);
  return hetcomm_alltoall(call.on, send, call.memory(call.whole), kType, &call.options,
                          &call.made.request);
}

hetcomm_status_t gather(Call& call) {
  const hetcomm_buffer_t send = call.memory(call.part);
  return hetcomm_gather(call.on, call.root, send, call.memory(call.whole), kType, &call.options,
                        &call.made.request);
}

hetcomm_status_t scatter(Call& call) {
  const hetcomm_buffer_t send = call.memory(call.whole);
  return hetcomm_scatter(call.on, call.root, send, call.memory(call.part), kType, &call.options,
                         &call.made.request);
}

hetcomm_status_t scan(Call& call) {
  const hetcomm_buffer_t send = call.memory(call.part);
  return hetcomm_scan(call.on, send, call.memory(call.part), kType, kSum, &call.options,
                      &call.made.request);
}

hetcomm_status_t allgatherv(Call& call) {
  const hetcomm_buffer_t send =
      call.filled(pattern(call.length(call.own), seed_of(call.step, call.own)));
  call.begin_results();
  for (int32_t each = 0; each < call.size; ++each) {
    call.expect(pattern(call.length(each), seed_of(call.step, each)));
  }
  return hetcomm_allgatherv(call.on, send, call.memories().data(), kType, &call.options,
                            &call.made.request);
}

hetcomm_status_t reduce_scatterv(Call& call) {
  const std::vector<hetcomm_buffer_t> sends = call.memories();
  return hetcomm_reduce_scatterv(call.on, sends.data(), call.memory(call.length(call.own)), kType,
                                 kSum, &call.options, &call.made.request);
}

// Two ranks exchange blocks of one length.
hetcomm_status_t alltoallv(Call& call) {
  std::vector<hetcomm_buffer_t> sends;
  std::vector<hetcomm_buffer_t> receives;
  for (int32_t each = 0; each < call.size; ++each) {
    sends.push_back(call.filled(
        pattern(call.length(call.own + each), seed_of(call.step, 100 * call.own + each))));
  }
  call.begin_results();
  for (int32_t each = 0; each < call.size; ++each) {
    const uint64_t length = call.length(each + call.own);
    receives.push_back(call.memory(length));
    call.expect(pattern(length, seed_of(call.step, 100 * each + call.own)));
  }
  return hetcomm_alltoallv(call.on, sends.data(), receives.data(), kType, &call.options,
                           &call.made.request);
}

hetcomm_status_t gatherv(Call& call) {
  const hetcomm_buffer_t send = call.memory(call.length(call.own));
  std::vector<hetcomm_buffer_t> receives;
  if (call.own == call.root) receives = call.memories();
  return hetcomm_gatherv(call.on, call.root, send, receives.empty() ? nullptr : receives.data(),
                         kType, &call.options, &call.made.request);
}

hetcomm_status_t scatterv(Call& call) {
  std::vector<hetcomm_buffer_t> sends;
  if (call.own == call.root) sends = call.memories();
  return hetcomm_scatterv(call.on, call.root, sends.empty() ? nullptr : sends.data(),
                          call.memory(call.length(call.own)), kType, &call.options,
                          &call.made.request);
}

struct CollectiveForm {
  const char* name;
  hetcomm_status_t (*start)(Call& call);
  bool has_size = true;
  bool has_root = false;
};

constexpr CollectiveForm kForms[] = {
    {"barrier", barrier, false},
    {"broadcast", broadcast, true, true},
    {"allreduce", allreduce},
    {"reduce", reduce, true, true},
    {"allgather", allgather},
    {"reduce_scatter", reduce_scatter},
    {"alltoall", alltoall},
    {"gather", gather, true, true},
    {"scatter", scatter, true, true},
    {"scan", scan},
    {"allgatherv", allgatherv},
    {"reduce_scatterv", reduce_scatterv},
    {"alltoallv", alltoallv},
    {"gatherv", gatherv, true, true},
    {"scatterv", scatterv, true, true},
};

void start_collective(Rank& rank, const Step& step) {
  const CollectiveForm& form = kForms[step.form % std::size(kForms)];
  Call call(rank, step, form.name);
  const hetcomm_status_t status = form.start(call);
  rank.note(status, std::move(call.made));
}

// --- accesses, queues, redistributions, groups -----------------------------------

// The window on the rank's own device has no atomics, because the CPU cannot access it.
void start_access(Rank& rank, const Step& step) {
  const int32_t owner = rank.after(step);
  const uint64_t at = static_cast<uint64_t>(rank.rank()) * kWindowBytes;
  const bool is_atomic = step.form % 3 == 2;
  const bool puts = step.form % 3 == 0;
  Started made = is_atomic ? rank.begin(step, Role::kAtomic, owner, "fetch_add")
                           : rank.begin(step, Role::kAccess, owner, puts ? "put" : "get");
  const bool uses_own = !is_atomic && step.on_own && rank.has_own_device() && step.form % 2 == 0;
  made.on_own = uses_own;
  const hetcomm_operation_options_t options = rank.options(step, made);
  if (uses_own && owner == rank.rank()) made.names_own = true;
  hetcomm_remote_memory_t* const window = rank.window(uses_own).of[static_cast<size_t>(owner)];
  hetcomm_status_t status = HETCOMM_INTERNAL;
  if (is_atomic) {
    made.regions.push_back(std::make_unique<Region>(rank.me(), 0, sizeof(uint64_t)));
    auto* const previous = reinterpret_cast<uint64_t*>(made.regions[0]->buffer().offset);
    status = hetcomm_fetch_add(window, at, 1, previous, &options, &made.request);
  } else {
    const hetcomm_buffer_t buffer = rank.add(made, step, std::min(step.size, kWindowBytes));
    status = puts ? hetcomm_put(window, at, buffer, &options, &made.request)
                  : hetcomm_get(window, at, buffer, &options, &made.request);
  }
  rank.note(status, std::move(made));
}

void start_flush(Rank& rank, const Step& step) {
  if (!step.on_child) start_access(rank, step);
  Started made = rank.begin(step, Role::kFlush, rank.after(step), "flush");
  const hetcomm_operation_options_t options = rank.options(step, made);
  const hetcomm_status_t status =
      hetcomm_flush(rank.communicator(step), made.peer, &options, &made.request);
  rank.note(status, std::move(made));
}

// Each rank pushes to the next rank and pulls from the previous one. Neither operation uses a
// stream's order: a push outside of the stream would leave first.
void start_queue(Rank& rank, const Step& step) {
  const int32_t ranks = rank.job().size;
  const uint64_t size = std::clamp<uint64_t>(step.size, 1, kQueueBytes);
  Started pull = rank.begin(step, Role::kPull, (rank.rank() + ranks - 1) % ranks, "pull");
  const hetcomm_buffer_t into = rank.add(pull, step, size);
  pull.expected = pattern(size, seed_of(step, pull.peer));
  hetcomm_status_t status = hetcomm_queue_pull(rank.pulls(), into, nullptr, &pull.request);
  rank.note(status, std::move(pull));
  Started push = rank.begin(step, Role::kPush, (rank.rank() + 1) % ranks, "push");
  const hetcomm_buffer_t from =
      rank.add_filled(push, step, pattern(size, seed_of(step, rank.rank())));
  status = hetcomm_queue_push(rank.pushes(), from, nullptr, &push.request);
  rank.note(status, std::move(push));
}

struct Label {
  uint64_t step = 0;
  uint64_t micro_batch = 0;
};

Label label_of(const Rank& rank, const Step& step) {
  if (!rank.job().is_labelled) return {};
  return {.step = uint64_t{step.number} + 1, .micro_batch = step.form % 3};
}

void start_execution(Rank& rank, const Step& step, PlanId id, const Label& label) {
  const Plan& plan = rank.plan(id);
  const int32_t origin = id == PlanId::kStar ? rank.job().star_center() : rank.before(step);
  Started made = rank.begin(step, Role::kExecution, -1, "redistribution");
  made.plan = id;
  const hetcomm_buffer_t from =
      rank.add_filled(made, step, pattern(plan.source_bytes, seed_of(step, rank.rank())));
  made.first_result = 1;
  const hetcomm_buffer_t to = rank.add(made, step, plan.part);
  const uint64_t at = id == PlanId::kStar ? static_cast<uint64_t>(rank.rank()) * plan.part : 0;
  const std::vector<std::byte> all = pattern(at + plan.part, seed_of(step, origin));
  made.expected.assign(all.begin() + static_cast<ptrdiff_t>(at), all.end());
  hetcomm_operation_options_t options = rank.options(step, made);
  options.step = label.step;
  options.micro_batch = label.micro_batch;
  const hetcomm_status_t status =
      hetcomm_reshard_start(plan.handle, &from, &to, &options, &made.request);
  rank.note(status, std::move(made));
}

// In the ring the parts come from the previous rank.
void start_ring(Rank& rank, const Step& step) {
  Step next = step;
  next.shift = 1;
  start_execution(rank, next, PlanId::kRing, label_of(rank, step));
}

void start_star(Rank& rank, const Step& step) {
  start_execution(rank, step, PlanId::kStar, label_of(rank, step));
}

// Members of different kinds start together.
void start_group(Rank& rank, const Step& step) {
  Random random(step.seed);
  rank.open_group(step);
  start_messages(rank, step);
  if (!step.on_child && random.chance(0.5)) start_access(rank, step);
  if (random.chance(0.5)) start_collective(rank, step);
  const bool has_star = step.on_child == rank.job().star_on_child;
  if (random.chance(0.5)) {
    if (!step.on_child) {
      start_ring(rank, step);
    } else if (has_star) {
      start_star(rank, step);
    }
  }
  rank.start_group();
}

constexpr OperationKind kOperations[] = {
    {.name = "messages", .start = start_messages, .may_be_on_child = true},
    {.name = "lists", .start = start_lists, .may_be_on_child = true},
    {.name = "from any source", .start = start_from_any, .may_be_on_child = true},
    {.name = "prepared", .start = start_prepared, .may_be_on_child = true},
    {.name = "collective",
     .start = start_collective,
     .is_collective = true,
     .may_be_on_child = true},
    {.name = "access", .start = start_access},
    {.name = "flush", .start = start_flush, .may_be_on_child = true},
    {.name = "queue", .start = start_queue, .needs_thread = true},
    {.name = "ring", .start = start_ring, .plan = PlanId::kRing},
    {.name = "star", .start = start_star, .plan = PlanId::kStar},
    {.name = "group", .start = start_group, .may_be_on_child = true},
};

const OperationKind& kind_named(const char* name) {
  return *std::find_if(
      std::begin(kOperations), std::end(kOperations),
      [&](const OperationKind& each) { return std::strcmp(each.name, name) == 0; });
}

// --- faults -----------------------------------------------------------------

bool refuse(Rank& victim, const Step& step) {
  EXPECT_EQ(hetcomm_collective_refuse(victim.communicator(step), "the test refuses"), HETCOMM_OK);
  return false;
}

// Makes a call with another kind, root, or size.
bool differ(Rank& victim, const Step& step) {
  Step other = step;
  const uint32_t form = step.form % std::size(kForms);
  Random random(step.seed);
  if (kForms[form].has_root && random.chance(0.5)) {
    ++other.root;
  } else if (kForms[form].has_size && random.chance(0.5)) {
    other.size += 8;
  } else {
    other.form = (form + 1) % std::size(kForms);
  }
  start_collective(victim, other);
  return false;
}

bool refuse_execution(Rank& victim, const Step& step) {
  EXPECT_EQ(hetcomm_reshard_refuse(victim.plan(step.kind->plan).handle, "the test refuses"),
            HETCOMM_OK)
      << hetcomm_last_error();
  return false;
}

// Executes with another label, with none, or as the only rank with one.
bool mislabel(Rank& victim, const Step& step) {
  Random random(step.seed);
  Label label = label_of(victim, step);
  if (label.step == 0 || random.chance(0.5)) {
    label.step += 1;
  } else if (random.chance(0.5)) {
    label.micro_batch += 1;
  } else {
    label = {};
  }
  Step own = step;
  if (step.kind->plan == PlanId::kRing) own.shift = 1;
  start_execution(victim, own, step.kind->plan, label);
  return false;
}

bool cancel(Rank& victim, const Step& step) {
  Random random(step.seed);
  step.kind->start(victim, step);
  victim.cancel_one(random);
  return false;
}

bool hang(Rank& victim, const Step& step) {
  Random random(step.seed);
  victim.own_device().hang(random);
  return true;
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

// Ends connections of this process, as a network fault may.
bool cut_connections(Rank& /*victim*/, const Step& step) {
  Random random(step.seed);
  for (int fd = 3; fd < 256; ++fd) {
    sockaddr_in peer{};
    socklen_t length = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
    if (peer.sin_family == AF_INET && random.chance(0.5)) shutdown(fd, SHUT_RDWR);
  }
  return true;
}

constexpr Codes kMismatch{HETCOMM_MISMATCH, HETCOMM_MISMATCH};
constexpr Codes kLost{HETCOMM_PEER_LOST, HETCOMM_PEER_LOST};
constexpr Codes kCancelled{HETCOMM_CANCELLED, HETCOMM_ABORTED};
constexpr Codes kDeviceLost{HETCOMM_DEVICE_LOST, HETCOMM_ABORTED};

constexpr FaultKind kFaults[] = {
    {.name = "nothing"},
    {.name = "refusal",
     .happen = refuse,
     .place = Place::kCollective,
     .reach = Reach::kTeam,
     .collectives = kMismatch},
    {.name = "mismatch",
     .happen = differ,
     .place = Place::kCollective,
     .reach = Reach::kTeam,
     .collectives = kMismatch},
    {.name = "plan refusal",
     .happen = refuse_execution,
     .place = Place::kExecution,
     .reach = Reach::kPlan,
     .executions = kMismatch,
     .ends_alone = true},
    {.name = "label",
     .happen = mislabel,
     .place = Place::kExecution,
     .reach = Reach::kPlan,
     .executions = kMismatch,
     .names_others = true,
     .waits_before = true},
    {.name = "cancel",
     .happen = cancel,
     .reach = Reach::kTarget,
     .collectives = kCancelled,
     .pairs = kCancelled,
     .executions = kCancelled},
    {.name = "hang",
     .happen = hang,
     .reach = Reach::kDevice,
     .collectives = kDeviceLost,
     .pairs = kDeviceLost,
     .executions = kDeviceLost},
    {.name = "kill",
     .happen = die,
     .reach = Reach::kVictim,
     .collectives = kLost,
     .pairs = kLost,
     .executions = kLost,
     .kills = true},
    {.name = "stop", .happen = stop_for_a_while},
    {.name = "stop and kill",
     .happen = stop_and_die,
     .reach = Reach::kVictim,
     .collectives = kLost,
     .pairs = kLost,
     .executions = kLost,
     .kills = true},
    {.name = "cut", .happen = cut_connections, .tcp_only = true},
};

// --- the parts of a job -----------------------------------------------------

void Rank::set_up() {
  const bool by_thread = job_.test_case.thread_progress;
  if (job_.has_own_device) own_ = std::make_unique<OwnDevice>(me_, by_thread);
  const int32_t color = rank() < job_.child_size ? 0 : HETCOMM_NO_COLOR;
  EXPECT_EQ(hetcomm_communicator_split(me_.communicator(), color, rank(), &child_), HETCOMM_OK)
      << hetcomm_last_error();
  window_ = make_window(0, HETCOMM_ACCESS_ALL);
  if (own_) own_window_ = make_window(own_->number(), HETCOMM_ACCESS_PUT | HETCOMM_ACCESS_GET);
  if (by_thread) make_queues();
  // Calls for device memory may wait for streams that are held back. The thread that abandons a
  // device must not wait for operations that only abandoning the device ends.
  if (by_thread && has_devices() && job_.fault->reach != Reach::kDevice) {
    EXPECT_EQ(hetcomm_stream_create(me_.context(), 1, 0, &stream_), HETCOMM_OK)
        << hetcomm_last_error();
  }
  make_plans();
  EXPECT_TRUE(me_.meet());
}

Window Rank::make_window(int32_t device, uint32_t rights) {
  hetcomm_communicator_t* const communicator = me_.communicator();
  const auto ranks = static_cast<size_t>(job_.size);
  Window made;
  EXPECT_EQ(hetcomm_memory_allocate(me_.context(), device, kWindowBytes * ranks, &made.memory),
            HETCOMM_OK)
      << hetcomm_last_error();
  EXPECT_EQ(hetcomm_memory_register(
                made.memory, communicator, rights,
                job_.test_case.thread_progress ? 0 : HETCOMM_REGISTER_CALLER_PROGRESS),
            HETCOMM_OK)
      << hetcomm_last_error();
  std::array<std::byte, HETCOMM_EXPORT_MAX_BYTES> own{};
  size_t length = 0;
  EXPECT_EQ(hetcomm_memory_export(made.memory, own.size(), own.data(), &length), HETCOMM_OK);
  std::vector<std::byte> all(own.size() * ranks);
  hetcomm_request_t* request = nullptr;
  EXPECT_EQ(hetcomm_allgather(communicator, hetcomm_buffer_host(own.data(), own.size()),
                              hetcomm_buffer_host(all.data(), all.size()), HETCOMM_UINT8, nullptr,
                              &request),
            HETCOMM_OK);
  EXPECT_EQ(hetcomm_test::finish(request).status, HETCOMM_OK);
  made.of.resize(ranks);
  for (size_t each = 0; each < ranks; ++each) {
    EXPECT_EQ(
        hetcomm_memory_import(communicator, all.data() + each * own.size(), length, &made.of[each]),
        HETCOMM_OK)
        << hetcomm_last_error();
  }
  return made;
}

void Rank::make_queues() {
  const hetcomm_queue_options_t terms{.struct_size = sizeof(terms),
                                      .tag = 1,
                                      .max_item_bytes = kQueueBytes,
                                      .depth = kMaxSteps,
                                      .weight = 0,
                                      .max_bytes_per_second = 0};
  const int32_t next = (rank() + 1) % job_.size;
  const int32_t before = (rank() + job_.size - 1) % job_.size;
  EXPECT_EQ(hetcomm_queue_create(me_.communicator(), next, HETCOMM_QUEUE_PUSH, &terms, &pushes_),
            HETCOMM_OK)
      << hetcomm_last_error();
  EXPECT_EQ(hetcomm_queue_create(me_.communicator(), before, HETCOMM_QUEUE_PULL, &terms, &pulls_),
            HETCOMM_OK)
      << hetcomm_last_error();
}

// Makes a plan that moves a tensor with equal parts. |sources| and |destinations| are the ranks
// that hold the parts, in order.
hetcomm_reshard_t* make_plan(hetcomm_communicator_t* communicator, uint64_t elements,
                             const std::vector<int32_t>& sources,
                             const std::vector<int32_t>& destinations, int32_t strategy) {
  hetcomm_layout_t* layouts[2] = {};
  for (const bool is_source : {true, false}) {
    const std::vector<int32_t>& ranks = is_source ? sources : destinations;
    std::vector<hetcomm_part_t> parts(ranks.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i].rank = ranks[i];
      parts[i].begin[0] = elements / ranks.size() * i;
      parts[i].end[0] = elements / ranks.size() * (i + 1);
    }
    EXPECT_EQ(hetcomm_layout_from_parts(1, &elements, parts.data(), parts.size(), nullptr,
                                        &layouts[is_source ? 0 : 1]),
              HETCOMM_OK)
        << hetcomm_last_error();
  }
  const hetcomm_reshard_tensor_t tensor{layouts[0], layouts[1], HETCOMM_UINT32, HETCOMM_UINT32};
  hetcomm_reshard_options_t options{};
  options.struct_size = sizeof(options);
  options.in_flight = kMaxSteps;
  options.strategy = strategy;
  hetcomm_reshard_t* plan = nullptr;
  EXPECT_EQ(hetcomm_reshard_create(communicator, &tensor, 1, &options, &plan), HETCOMM_OK)
      << hetcomm_last_error();
  for (hetcomm_layout_t* layout : layouts) EXPECT_EQ(hetcomm_layout_destroy(layout), HETCOMM_OK);
  return plan;
}

// The strategy is direct if Rules are consulted, because they know which ranks exchange messages in
// a direct plan.
void Rank::make_plans() {
  const int32_t strategy =
      job_.fault->reach == Reach::kPlan ? HETCOMM_STRATEGY_DIRECT : HETCOMM_STRATEGY_AUTO;
  const auto ranks = static_cast<uint64_t>(job_.size);
  std::vector<int32_t> own;
  std::vector<int32_t> next;
  for (int32_t each = 0; each < job_.size; ++each) {
    own.push_back(each);
    next.push_back((each + 1) % job_.size);
  }
  const uint64_t ring_part = kTensorElements / ranks;
  ring_ = {.handle = make_plan(me_.communicator(), ring_part * ranks, own, next, strategy),
           .part = ring_part * sizeof(uint32_t),
           .source_bytes = ring_part * sizeof(uint32_t)};
  const int32_t members = job_.size_of(job_.star_on_child);
  if (rank() >= members) return;
  const uint64_t star_part = kTensorElements / static_cast<uint64_t>(members);
  const uint64_t elements = star_part * static_cast<uint64_t>(members);
  own.resize(static_cast<size_t>(members));
  star_ = {.handle = make_plan(job_.star_on_child ? child_ : me_.communicator(), elements,
                               {job_.star_center()}, own, HETCOMM_STRATEGY_DIRECT),
           .part = star_part * sizeof(uint32_t),
           .source_bytes = rank() == job_.star_center() ? elements * sizeof(uint32_t) : 0};
}

// Expects that a call by all ranks after the fault fails on all of them if the rule demands it, and
// names the origin. Otherwise the call succeeds.
void Rank::check_that_all_know(bool child) {
  std::atomic<uint64_t>& verdict = me_.store().word(kVerdicts + (child ? 1 : 0));
  if (rules_.needs_verdict(child) && rules_.is_victim()) {
    verdict = have_failed_[child ? 1 : 0] ? kHasFailed : kGoesOn;
  }
  Started last{.role = Role::kCollective,
               .step = static_cast<uint32_t>(job_.steps.size()),
               .what = child ? "last barrier of the child" : "last barrier",
               .on_child = child};
  hetcomm_communicator_t* const on = child ? child_ : me_.communicator();
  EXPECT_EQ(hetcomm_barrier(on, nullptr, &last.request), HETCOMM_OK) << hetcomm_last_error();
  running_.push_back(std::move(last));
  Ended ended;
  const uint64_t limit = clock_ns() + 2 * kPatienceNs;
  while (!has_ended(running_[0], 20 * kMs, &ended)) {
    look_after_the_stopped();
    if (clock_ns() > limit) give_up_waiting();
  }
  take(0, ended);
  if (rules_.needs_verdict(child)) {
    EXPECT_TRUE(me_.until([&] { return verdict != 0; }));
  }
  EXPECT_EQ(ended.status, rules_.last_barrier(child, verdict))
      << "the last barrier of rank " << rank() << (child ? " in the child: " : ": ") << ended.text;
}

void Rank::release(const Window& window) {
  EXPECT_EQ(hetcomm_memory_unregister(window.memory, kPatienceNs), HETCOMM_OK)
      << hetcomm_last_error();
  EXPECT_EQ(hetcomm_memory_destroy(window.memory), HETCOMM_OK) << hetcomm_last_error();
}

void Rank::clean_up() {
  const bool ruined = job_.fault->kills;
  if (ruined) me_.expect_ruin();
  for (const Plan& plan : {ring_, star_}) {
    EXPECT_EQ(hetcomm_reshard_destroy(plan.handle), HETCOMM_OK) << hetcomm_last_error();
  }
  EXPECT_EQ(hetcomm_queue_destroy(pushes_), HETCOMM_OK) << hetcomm_last_error();
  EXPECT_EQ(hetcomm_queue_destroy(pulls_), HETCOMM_OK) << hetcomm_last_error();
  for (const Window* window : {&window_, &own_window_}) {
    for (hetcomm_remote_memory_t* each : window->of) {
      EXPECT_EQ(hetcomm_remote_memory_destroy(each), HETCOMM_OK) << hetcomm_last_error();
    }
  }
  release(window_);
  if (own_) release(own_window_);
  // Calls that free device memory may wait for the device's streams.
  if (stream_ != nullptr) {
    EXPECT_TRUE(me_.until([&] { return hetcomm_stream_destroy(stream_) == HETCOMM_OK; }));
  }
  if (own_) own_->release();
  sealed_.clear();
  const hetcomm_status_t status = hetcomm_communicator_destroy(child_);
  EXPECT_TRUE(status == HETCOMM_OK || (ruined && status != HETCOMM_BUSY)) << hetcomm_last_error();
}

// --- drawing ----------------------------------------------------------------

CapiCase draw_case(Random& random) {
  CapiCase test_case;
  test_case.name = "random";
  test_case.transports = random.chance(0.5) ? "tcp" : "shm";
  test_case.processes = true;
  test_case.thread_progress = random.chance(0.5);
  if (random.chance(0.4)) test_case.settings += "DEVICES=sim-handle,sim-address;";
  if (random.chance(0.5)) test_case.settings += "COLLECTIVE_SHARED=0;";
  if (random.chance(0.2))
    test_case.settings += "TCP_CHUNK=4K;TCP_EAGER=256;SHM_CHUNK=4K;SHM_EAGER=1K;";
  if (random.chance(0.3)) test_case.settings += "STAGING_CHUNK=16K;";
  return test_case;
}

// |is_last|: the fault can occur in this step.
const OperationKind& draw_kind(const Job& job, bool is_last, Random& random) {
  if (is_last) {
    if (job.fault->place != Place::kExecution) return kind_named("collective");
    const bool is_star = job.has_victim(job.star_on_child) && random.chance(0.5);
    return kind_named(is_star ? "star" : "ring");
  }
  const OperationKind* kind = nullptr;
  do {
    kind = &kOperations[random.below(std::size(kOperations))];
  } while (kind->needs_thread && !job.test_case.thread_progress);
  return *kind;
}

Step draw_step(const Job& job, const OperationKind& kind, bool is_last, Random& random) {
  const bool hangs = job.fault->reach == Reach::kDevice;
  const bool has_devices = job.test_case.settings.find("DEVICES=") != std::string::npos;
  Step step;
  step.kind = &kind;
  step.number = static_cast<uint32_t>(job.steps.size());
  step.form = static_cast<uint32_t>(random.below(1000));
  step.shift = static_cast<int32_t>(random.below(static_cast<uint64_t>(job.size)));
  step.root = static_cast<int32_t>(random.below(static_cast<uint64_t>(job.size)));
  step.size = random.chance(0.2) ? random.below(300'000) : random.below(3000);
  step.seed = random.below(UINT64_MAX);
  step.on_child = kind.may_be_on_child && !is_last && random.chance(0.3);
  if (kind.plan == PlanId::kStar) step.on_child = job.star_on_child;
  step.on_own = job.has_own_device && random.chance(hangs ? 0.6 : 0.3);
  step.on_stream =
      job.test_case.thread_progress && (has_devices || job.has_own_device) && random.chance(0.3);
  step.waits = random.chance(0.5);
  return step;
}

// Returns whether the fault can occur in |step|, which the victim makes.
bool is_place(const Job& job, const Step& step) {
  if (!job.has_victim(step.on_child)) return false;
  switch (job.fault->place) {
    case Place::kCollective:
      return step.kind->is_collective;
    case Place::kExecution:
      return step.kind->plan != PlanId::kNone;
    case Place::kAnyStep:
      break;
  }
  return true;
}

Job draw(uint64_t seed) {
  Random random(seed * 0x9e3779b97f4a7c15u + 1);
  Job job;
  job.seed = seed;
  job.size = static_cast<int32_t>(random.between(2, 6));
  job.child_size = static_cast<int32_t>(random.between(2, static_cast<uint64_t>(job.size)));
  job.star_on_child = random.chance(0.5);
  job.is_labelled = random.chance(0.3);
  job.test_case = draw_case(random);
  do {
    job.fault = &kFaults[random.below(std::size(kFaults))];
  } while (job.fault->tcp_only && job.test_case.transports != "tcp");
  job.has_own_device = job.fault->reach == Reach::kDevice || random.chance(0.3);
  job.victim = static_cast<int32_t>(random.below(static_cast<uint64_t>(job.size)));
  const size_t steps = random.between(3, kMaxSteps - 2);
  for (size_t i = 0; i < steps; ++i) {
    const bool is_last = i + 1 == steps;
    const OperationKind& kind = draw_kind(job, is_last, random);
    job.steps.push_back(draw_step(job, kind, is_last, random));
  }
  job.fault_step = static_cast<uint32_t>(random.below(steps));
  while (!is_place(job, job.place())) ++job.fault_step;
  if (job.fault->waits_before && job.fault_step > 0) job.steps[job.fault_step - 1].waits = true;
  // Redistributions that are still usable are executed.
  for (const char* const name : {"ring", "star"}) {
    job.steps.push_back(draw_step(job, kind_named(name), true, random));
  }
  return job;
}

// Describes the job to a person, who can replay it by its seed.
std::string describe(const Job& job) {
  std::string text =
      "HETCOMM_TEST_SEED=" + std::to_string(job.seed) + ": " + job.fault->name + " at step " +
      std::to_string(job.fault_step) + " of rank " + std::to_string(job.victim) + " of " +
      std::to_string(job.size) + " (child of " + std::to_string(job.child_size) + "), " +
      job.test_case.transports + (job.test_case.thread_progress ? ", thread" : "") +
      (job.has_own_device ? ", own device" : "") + (job.is_labelled ? ", labels" : "") + "; " +
      job.test_case.settings + " steps:";
  for (const Step& step : job.steps) {
    text += " " + std::to_string(step.number) + " " + step.kind->name;
    if (step.kind->is_collective) {
      text += std::string(" ") + kForms[step.form % std::size(kForms)].name;
    }
    text += std::string(step.on_child ? ", child" : "") + (step.on_own ? ", own device" : "") +
            (step.on_stream ? ", stream" : "") + (step.waits ? ", waits;" : ";");
  }
  return text;
}

// The forked ranks inherit the trace.
void run(const Job& job) {
  SCOPED_TRACE(describe(job));
  run_job(job.test_case, job.size, [&](Member& me) { Rank(me, job).run(); });
}

constexpr int kWorkers = 4;  // jobs mostly wait

// Memory shared by the processes that run jobs.
struct Work {
  std::atomic<uint64_t> next{0};
  std::array<std::atomic<uint64_t>, kWorkers> seeds{};  // seed of each worker's current job
};

// Runs successive jobs until one fails.
[[noreturn]] void work(Work& shared, size_t worker, uint64_t first, uint64_t jobs) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(0);
  for (uint64_t i = shared.next.fetch_add(1); i < jobs; i = shared.next.fetch_add(1)) {
    const Job job = draw(first + i);
    shared.seeds[worker] = job.seed;
    run(job);
    if (!::testing::Test::HasFailure()) continue;
    std::fprintf(stderr, "job failed: %s\n", describe(job).c_str());
    fflush(nullptr);
    _exit(1);
  }
  fflush(nullptr);
  _exit(0);
}

TEST(RandomFaults, OperationsEndWithAStatusTheFaultAllows) {
  if (const char* const seed = std::getenv("HETCOMM_TEST_SEED"); seed != nullptr) {
    run(draw(std::strtoull(seed, nullptr, 10)));
    return;
  }
  const uint64_t jobs = std::getenv("HETCOMM_TEST_LONG") != nullptr ? 10'000 : 200;
  void* const memory =
      mmap(nullptr, sizeof(Work), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto& shared = *new (memory) Work;
  fflush(nullptr);
  std::vector<pid_t> workers;
  for (size_t i = 0; i < kWorkers; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) work(shared, i, 1, jobs);
    workers.push_back(child);
  }
  for (size_t i = 0; i < workers.size(); ++i) {
    int status = 0;
    EXPECT_EQ(waitpid(workers[i], &status, 0), workers[i]);
    EXPECT_EQ(status, 0) << "a job has failed: HETCOMM_TEST_SEED=" << shared.seeds[i];
  }
  EXPECT_GE(shared.next.load(), jobs);
  munmap(memory, sizeof(Work));
}

}  // namespace
}  // namespace hetcomm_test
