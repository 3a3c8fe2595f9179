// Ranks that make different collective calls, for all pairs of call kinds, among 2 to 4 ranks,
// through shared memory and by messages:
//
//   * the call ends with MISMATCH, or with OK on a rank that does not wait for the other ranks
//   * the next call that all ranks must make ends with MISMATCH on every rank, even if no rank
//     waits between the two calls, and if calls that do not wait for all ranks lie between them
//   * no rank waits for its deadline
//   * if no call follows, the log reports the mismatch when the communicator is destroyed
//
// Rooted operations on one word and on many bytes, among 4 ranks that differ in root or length:
//
//   * only a rank that waits for no rank with a different call ends its own with OK, and its data
//     is then right
//   * the next operation that waits for all ranks ends with MISMATCH on every rank
#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/capi/collective/collective.h"

namespace hetcomm_test {
namespace {

constexpr size_t kCount = 12;  // elements of a buffer that holds all ranks' parts
constexpr int32_t kMaxRanks = 4;

enum class Kind : uint8_t {
  kBarrier,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kAllreduce,
  kAllgather,
  kReduceScatter,
  kAlltoall,
  kScan
};

// Arguments of a call.
struct Arguments {
  const char* name;
  Kind kind;
  int32_t root = 0;
  size_t count = kCount;
  int32_t type = HETCOMM_INT64;
};

const std::vector<Arguments> kCalls = {
    {"barrier", Kind::kBarrier},
    {"broadcast", Kind::kBroadcast},
    {"broadcast from 1", Kind::kBroadcast, 1},
    {"short broadcast", Kind::kBroadcast, 0, 5},
    {"broadcast of unsigned", Kind::kBroadcast, 0, kCount, HETCOMM_UINT64},
    {"reduce", Kind::kReduce},
    {"reduce to 1", Kind::kReduce, 1},
    {"short reduce", Kind::kReduce, 0, 5},
    {"reduce of unsigned", Kind::kReduce, 0, kCount, HETCOMM_UINT64},
    {"gather", Kind::kGather},
    {"gather to 1", Kind::kGather, 1},
    {"gather of unsigned", Kind::kGather, 0, kCount, HETCOMM_UINT64},
    {"scatter", Kind::kScatter},
    {"scatter from 1", Kind::kScatter, 1},
    {"scatter of unsigned", Kind::kScatter, 0, kCount, HETCOMM_UINT64},
    {"allreduce", Kind::kAllreduce},
    {"short allreduce", Kind::kAllreduce, 0, 5},
    {"allgather", Kind::kAllgather},
    {"reduce_scatter", Kind::kReduceScatter},
    {"alltoall", Kind::kAlltoall},
    {"scan", Kind::kScan},
};
// Each of these calls waits for all ranks.
const std::vector<Arguments> kWaiting = {{"barrier", Kind::kBarrier},
                                         {"allreduce", Kind::kAllreduce},
                                         {"allgather", Kind::kAllgather},
                                         {"reduce_scatter", Kind::kReduceScatter},
                                         {"alltoall", Kind::kAlltoall}};

// One call of this rank, with its memory.
class Call {
 public:
  Call(hetcomm_communicator_t* communicator, const Arguments& arguments) {
    const auto& [name, kind, root, count, type] = arguments;
    int32_t rank = 0;
    int32_t size = 0;
    EXPECT_EQ(hetcomm_communicator_rank(communicator, &rank, &size), HETCOMM_OK);
    const hetcomm_buffer_t all = part(sent_, 0, count);
    const hetcomm_buffer_t result = part(received_, 0, count);
    const size_t each = kCount / static_cast<size_t>(size);
    const hetcomm_buffer_t block = part(sent_, 0, each);
    const hetcomm_buffer_t own = part(received_, 0, each);
    constexpr int32_t kSum = HETCOMM_REDUCE_SUM;
    hetcomm_communicator_t* const on = communicator;
    hetcomm_status_t status = HETCOMM_INTERNAL;
    switch (kind) {
      case Kind::kBarrier:
        status = hetcomm_barrier(on, nullptr, &request_);
        break;
      case Kind::kBroadcast:
        status = hetcomm_broadcast(on, root, result, type, nullptr, &request_);
        break;
      case Kind::kReduce:
        status = hetcomm_reduce(on, root, all, result, type, kSum, nullptr, &request_);
        break;
      case Kind::kGather:
        status = hetcomm_gather(on, root, block, result, type, nullptr, &request_);
        break;
      case Kind::kScatter:
        status = hetcomm_scatter(on, root, all, own, type, nullptr, &request_);
        break;
      case Kind::kAllreduce:
        status = hetcomm_allreduce(on, all, result, type, kSum, nullptr, &request_);
        break;
      case Kind::kAllgather:
        status = hetcomm_allgather(on, block, result, type, nullptr, &request_);
        break;
      case Kind::kReduceScatter:
        status = hetcomm_reduce_scatter(on, all, own, type, kSum, nullptr, &request_);
        break;
      case Kind::kAlltoall:
        status = hetcomm_alltoall(on, all, result, type, nullptr, &request_);
        break;
      case Kind::kScan:
        status = hetcomm_scan(on, all, result, type, kSum, nullptr, &request_);
        break;
    }
    EXPECT_EQ(status, HETCOMM_OK) << name << ": " << hetcomm_last_error();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  Outcome end() { return finish(request_); }

 private:
  std::vector<int64_t> sent_ = std::vector<int64_t>(kCount, 1);
  std::vector<int64_t> received_ = std::vector<int64_t>(kCount);
  hetcomm_request_t* request_ = nullptr;
};

void expect_mismatch(Call& call, const char* what) {
  const Outcome outcome = call.end();
  EXPECT_EQ(outcome.status, HETCOMM_MISMATCH) << what << ": " << outcome.text;
}

void expect_mismatch_or_ok(Call& call, const char* what) {
  const Outcome outcome = call.end();
  EXPECT_TRUE(outcome.status == HETCOMM_OK || outcome.status == HETCOMM_MISMATCH)
      << what << ": " << outcome.text;
}

struct Difference {
  const Arguments* one;
  const Arguments* other;
  uint32_t others = 0;   // one bit for each rank that makes the other call
  bool waits = false;    // waits for each call to end before the next one
  bool between = false;  // a call that does not wait for all ranks follows
  const Arguments* next;
};

// Uses its own communicator, because the mismatch makes it unusable.
void differ(Member& me, const Difference& difference) {
  hetcomm_communicator_t* own = nullptr;
  ASSERT_EQ(hetcomm_communicator_split(me.communicator(), 0, me.rank(), &own), HETCOMM_OK)
      << hetcomm_last_error();
  // By this point the ranks know whether they share memory.
  Call before(own, kWaiting[1]);
  EXPECT_EQ(before.end().status, HETCOMM_OK);
  ASSERT_TRUE(me.meet());
  const uint64_t start = clock_ns();
  const bool is_other = (difference.others >> me.rank() & 1) != 0;
  {
    const Arguments& arguments = is_other ? *difference.other : *difference.one;
    Call first(own, arguments);
    if (difference.waits) expect_mismatch_or_ok(first, arguments.name);
    const Arguments& rooted = kCalls[1];
    std::unique_ptr<Call> between;
    if (difference.between) between = std::make_unique<Call>(own, rooted);
    if (difference.waits && between != nullptr) expect_mismatch_or_ok(*between, "between");
    Call next(own, *difference.next);
    expect_mismatch(next, difference.next->name);
    if (!difference.waits) {
      expect_mismatch_or_ok(first, arguments.name);
      if (between != nullptr) expect_mismatch_or_ok(*between, "between");
    }
  }
  EXPECT_LT(clock_ns() - start, 5 * kSec);
  ASSERT_TRUE(me.meet());
  EXPECT_EQ(hetcomm_communicator_destroy(own), HETCOMM_OK) << hetcomm_last_error();
}

// Short runs test each pair once. Long runs test each with every number of ranks, in both ways.
std::vector<Difference> differences(int32_t ranks) {
  const bool all = std::getenv("HETCOMM_TEST_LONG") != nullptr;
  std::vector<Difference> made;
  size_t number = 0;
  for (const Arguments& one : kCalls) {
    for (const Arguments& other : kCalls) {
      if (&one >= &other) continue;
      ++number;
      if (!all && number % (kMaxRanks - 1) != static_cast<size_t>(ranks) - 2) continue;
      const uint32_t groups = (1u << ranks) - 2;  // excludes all and none
      const size_t turn = number / (kMaxRanks - 1);
      for (const bool waits : {false, true}) {
        if (!all && waits != (turn % 2 == 0)) continue;
        made.push_back({&one, &other, 1 + static_cast<uint32_t>(turn * 5) % groups, waits,
                        turn % 3 == 0, &kWaiting[turn % kWaiting.size()]});
      }
    }
  }
  return made;
}

class Differences : public CapiTest {};

TEST_P(Differences, DifferingCallsAreReportedByTheNextCallOnEveryRank) {
  for (int32_t ranks = 2; ranks <= kMaxRanks; ++ranks) {
    run(ranks, [ranks](Member& me) {
      for (const Difference& difference : differences(ranks)) {
        SCOPED_TRACE(testing::Message()
                     << difference.one->name << " and " << difference.other->name << ", ranks "
                     << ranks << ", others " << difference.others << ", then "
                     << difference.next->name << (difference.waits ? ", waits" : "")
                     << (difference.between ? ", one between" : ""));
        differ(me, difference);
        if (testing::Test::HasFailure()) return;
      }
    });
  }
}

// Two ranks send to a rank that makes the same call, and the other two wait for each other. No
// message of one call reaches a rank that makes the other call.
TEST_P(Differences, DifferingCallsOfDisjointRanksAreDetected) {
  run(4, [](Member& me) {
    static const Arguments kToFirst{"gather to 0", Kind::kGather, 0};
    static const Arguments kToThird{"gather to 2", Kind::kGather, 2};
    for (const bool waits : {false, true}) {
      differ(me, {&kToFirst, &kToThird, 0b1100, waits, false, &kWaiting[0]});
    }
  });
}

// --- rooted operations
// ----------------------------------------------------------------------------

constexpr uint64_t kWord = sizeof(int64_t);
constexpr uint64_t kMany = 1u << 20;

enum class RootedKind : uint8_t { kBroadcast, kReduce, kGather, kGatherv, kScatter, kScatterv };
constexpr std::array<RootedKind, 6> kRootedKinds = {RootedKind::kBroadcast, RootedKind::kReduce,
                                                    RootedKind::kGather,    RootedKind::kGatherv,
                                                    RootedKind::kScatter,   RootedKind::kScatterv};
const char* name_of(RootedKind kind) {
  static const char* const kNames[] = {"broadcast", "reduce",  "gather",
                                       "gatherv",   "scatter", "scatterv"};
  return kNames[static_cast<size_t>(kind)];
}

struct RootedCall {
  RootedKind kind;
  int32_t root;
  uint64_t bytes;  // bytes of the buffer, or of each rank's part
  bool operator==(const RootedCall&) const = default;

  bool hands_out() const {
    return kind == RootedKind::kBroadcast || kind == RootedKind::kScatter ||
           kind == RootedKind::kScatterv;
  }
};

// The calls of all ranks, indexed by rank.
using RootedCalls = std::array<RootedCall, kMaxRanks>;

// Returns whether |rank| waits for no rank that has made a different call (hetcomm/collective.h). A
// rank that receives from the root needs the root. The root of a reduction or a gather needs all
// ranks, some of which differ.
bool may_be_ok(const RootedCalls& calls, int32_t rank) {
  const RootedCall& own = calls[static_cast<size_t>(rank)];
  if (!own.hands_out()) return rank != own.root;
  return rank == own.root || calls[static_cast<size_t>(own.root)] == own;
}

// One call of this rank, with its memory.
class Rooted {
 public:
  Rooted(hetcomm_communicator_t* on, int32_t rank, const RootedCall& call)
      : call_(call), rank_(rank) {
    const uint64_t n = kMaxRanks;
    const bool at_root = rank == call.root;
    const uint64_t bytes = call.bytes;
    // The root of these operations has the parts of all ranks, on one side.
    const bool has_parts =
        at_root && call.kind != RootedKind::kBroadcast && call.kind != RootedKind::kReduce;
    sent_.resize(has_parts && call.hands_out() ? n * bytes : bytes);
    received_.resize(has_parts && !call.hands_out() ? n * bytes : bytes);
    fill_pattern(sent_, static_cast<uint64_t>(rank));
    if (call.kind == RootedKind::kBroadcast && at_root) received_ = sent_;
    const hetcomm_buffer_t all_sent = hetcomm_buffer_host(sent_.data(), sent_.size());
    const hetcomm_buffer_t all_received = hetcomm_buffer_host(received_.data(), received_.size());
    std::array<hetcomm_buffer_t, kMaxRanks> sends{};
    std::array<hetcomm_buffer_t, kMaxRanks> receives{};
    for (uint64_t i = 0; i < n && has_parts; ++i) {
      (call.hands_out() ? sends : receives)[i] =
          hetcomm_buffer_host((call.hands_out() ? sent_ : received_).data() + i * bytes, bytes);
    }
    constexpr int32_t kType = HETCOMM_INT64;
    const int32_t root = call.root;
    hetcomm_status_t status = HETCOMM_INTERNAL;
    switch (call.kind) {
      case RootedKind::kBroadcast:
        status = hetcomm_broadcast(on, root, all_received, kType, nullptr, &request_);
        break;
      case RootedKind::kReduce:
        status = hetcomm_reduce(on, root, all_sent, all_received, kType, HETCOMM_REDUCE_SUM,
                                nullptr, &request_);
        break;
      case RootedKind::kGather:
        status = hetcomm_gather(on, root, all_sent, all_received, kType, nullptr, &request_);
        break;
      case RootedKind::kGatherv:
        status = hetcomm_gatherv(on, root, all_sent, at_root ? receives.data() : nullptr, kType,
                                 nullptr, &request_);
        break;
      case RootedKind::kScatter:
        status = hetcomm_scatter(on, root, all_sent, all_received, kType, nullptr, &request_);
        break;
      case RootedKind::kScatterv:
        status = hetcomm_scatterv(on, root, at_root ? sends.data() : nullptr, all_received, kType,
                                  nullptr, &request_);
        break;
    }
    EXPECT_EQ(status, HETCOMM_OK) << name_of(call.kind) << ": " << hetcomm_last_error();
  }
  Rooted(const Rooted&) = delete;
  Rooted& operator=(const Rooted&) = delete;

  // Expects MISMATCH or, if that is possible, OK and the right data.
  void expect_end(bool may_be_ok) {
    const Outcome outcome = finish(request_);
    if (outcome.status != HETCOMM_OK) {
      EXPECT_EQ(outcome.status, HETCOMM_MISMATCH) << name_of(call_.kind) << ": " << outcome.text;
      return;
    }
    EXPECT_TRUE(may_be_ok) << name_of(call_.kind) << " has ended with OK";
    if (!may_be_ok || !call_.hands_out()) return;
    EXPECT_TRUE(received_ == expected()) << name_of(call_.kind) << " has brought wrong data";
  }

 private:
  // Returns the root's bytes for this rank.
  std::vector<std::byte> expected() const {
    const bool is_broadcast = call_.kind == RootedKind::kBroadcast;
    std::vector<std::byte> all(is_broadcast ? call_.bytes : kMaxRanks * call_.bytes);
    fill_pattern(all, static_cast<uint64_t>(call_.root));
    if (is_broadcast) return all;
    const auto begin =
        all.begin() + static_cast<ptrdiff_t>(static_cast<uint64_t>(rank_) * call_.bytes);
    return {begin, begin + static_cast<ptrdiff_t>(call_.bytes)};
  }

  const RootedCall call_;
  const int32_t rank_;
  std::vector<std::byte> sent_;
  std::vector<std::byte> received_;
  hetcomm_request_t* request_ = nullptr;
};

struct RootedDifference {
  RootedCall one;
  RootedCall other;
  uint32_t others;  // one bit for each rank that makes the other call
  bool waits;       // waits for the call to end before the next one
  bool is_first;    // the first operation of the communicator
  const Arguments* next;
};

void differ_in_root_or_length(Member& me, const RootedDifference& difference) {
  hetcomm_communicator_t* own = nullptr;
  ASSERT_EQ(hetcomm_communicator_split(me.communicator(), 0, me.rank(), &own), HETCOMM_OK)
      << hetcomm_last_error();
  if (!difference.is_first) {
    Call before(own, kWaiting[1]);
    EXPECT_EQ(before.end().status, HETCOMM_OK);
  }
  RootedCalls calls{};
  for (uint32_t rank = 0; rank < kMaxRanks; ++rank) {
    calls[rank] = (difference.others >> rank & 1) != 0 ? difference.other : difference.one;
  }
  const bool may_end_well = may_be_ok(calls, me.rank());
  ASSERT_TRUE(me.meet());
  const uint64_t start = clock_ns();
  {
    Rooted first(own, me.rank(), calls[static_cast<size_t>(me.rank())]);
    if (difference.waits) first.expect_end(may_end_well);
    // In these operations only two ranks know the length of a part, and its data may arrive after
    // that of the next call.
    const bool is_listed =
        difference.one.kind == RootedKind::kGatherv || difference.one.kind == RootedKind::kScatterv;
    const bool comes_with_data = is_listed && difference.one.root == difference.other.root;
    Call next(own, *difference.next);
    if (difference.waits || !comes_with_data) {
      expect_mismatch(next, difference.next->name);
    } else {
      expect_mismatch_or_ok(next, difference.next->name);
    }
    if (!difference.waits) first.expect_end(may_end_well);
    ASSERT_TRUE(me.meet());
    Call last(own, *difference.next);
    expect_mismatch(last, difference.next->name);
  }
  EXPECT_LT(clock_ns() - start, 5 * kSec);
  ASSERT_TRUE(me.meet());
  EXPECT_EQ(hetcomm_communicator_destroy(own), HETCOMM_OK) << hetcomm_last_error();
}

// Returns pairs of calls: one length with two roots, and two lengths with one root.
std::vector<std::pair<RootedCall, RootedCall>> rooted_pairs(RootedKind kind, int32_t other_root) {
  std::vector<std::pair<RootedCall, RootedCall>> pairs;
  for (const uint64_t bytes : {kWord, kMany}) {
    pairs.push_back({{kind, 0, bytes}, {kind, other_root, bytes}});
  }
  for (const auto& [bytes, more] :
       {std::pair{kWord, 2 * kWord}, std::pair{kMany, kMany + kWord}, std::pair{kWord, kMany}}) {
    pairs.push_back({{kind, other_root, bytes}, {kind, other_root, more}});
  }
  return pairs;
}

// Short runs try some sets of differing ranks. Long runs try every set, in both ways.
std::vector<RootedDifference> rooted_differences() {
  const bool all = std::getenv("HETCOMM_TEST_LONG") != nullptr;
  constexpr uint32_t kGroups = (1u << kMaxRanks) - 2;  // excludes all and none
  // The next call is a barrier or an allreduce.
  const std::array<const Arguments*, 2> next = {&kWaiting[0], &kWaiting[1]};
  std::vector<RootedDifference> made;
  uint32_t turn = 0;
  for (const RootedKind kind : kRootedKinds) {
    const int32_t other_root = 1 + static_cast<int32_t>(kind) % (kMaxRanks - 1);
    for (const auto& [one, other] : rooted_pairs(kind, other_root)) {
      for (uint32_t i = 0; i < (all ? 2 * kGroups : 3); ++i, ++turn) {
        const uint32_t others = 1 + (all ? i / 2 : turn * 5) % kGroups;
        made.push_back(
            {one, other, others, turn % 2 == 0, turn % 5 == 4, next[(turn / 2) % next.size()]});
      }
    }
  }
  return made;
}

TEST_P(Differences, DifferingRootsAndLengthsAreReportedByTheNextCall) {
  run(kMaxRanks, [](Member& me) {
    for (const RootedDifference& difference : rooted_differences()) {
      SCOPED_TRACE(testing::Message()
                   << name_of(difference.one.kind) << ": " << difference.one.bytes << " bytes to "
                   << difference.one.root << " and " << difference.other.bytes << " bytes to "
                   << difference.other.root << ", others " << difference.others << ", then "
                   << difference.next->name << (difference.waits ? ", waits" : "")
                   << (difference.is_first ? ", first" : ""));
      differ_in_root_or_length(me, difference);
      if (testing::Test::HasFailure()) return;
    }
  });
}

std::mutex lines_mutex;
std::vector<std::string> lines;
void keep_line(void* /*user_data*/, int32_t /*level*/, const char* text) {
  const std::lock_guard lock(lines_mutex);
  lines.emplace_back(text);
}
// Returns how many lines have both parts in them.
size_t count_lines(const std::string& part, const std::string& other_part = "") {
  const std::lock_guard lock(lines_mutex);
  return static_cast<size_t>(std::count_if(lines.begin(), lines.end(), [&](const auto& line) {
    return line.find(part) != std::string::npos && line.find(other_part) != std::string::npos;
  }));
}

// Both ranks send, and neither waits.
TEST(DifferencesAtTheEnd, DifferingFinalCallsAreLogged) {
  lines.clear();
  const CapiCase tcp{.name = "tcp", .transports = "tcp", .settings = "LOG=warn;", .log = keep_line};
  run_job(tcp, 2, [](Member& me) {
    hetcomm_communicator_t* own = nullptr;
    ASSERT_EQ(hetcomm_communicator_split(me.communicator(), 0, me.rank(), &own), HETCOMM_OK);
    Call before(own, kWaiting[1]);
    EXPECT_EQ(before.end().status, HETCOMM_OK);
    ASSERT_TRUE(me.meet());
    Call broadcast(own, {"broadcast from itself", Kind::kBroadcast, me.rank()});
    EXPECT_EQ(broadcast.end().status, HETCOMM_OK) << "a root does not wait";
    EXPECT_TRUE(me.until([] { return count_lines("differ in the root (") >= 2; }));
    ASSERT_TRUE(me.meet());
    EXPECT_EQ(hetcomm_communicator_destroy(own), HETCOMM_OK) << hetcomm_last_error();
  });
  // The communicators of the job have not failed.
  EXPECT_EQ(count_lines("none was called that would have told so: "), 2U);
  EXPECT_EQ(count_lines("none was called that would have told so: ", "differ in the root ("), 2U);
}

INSTANTIATE_TEST_SUITE_P(
    All, Differences,
    ::testing::Values(
        CapiCase{.name = "shm", .transports = "shm", .settings = ""},
        CapiCase{.name = "shm_messages", .transports = "shm", .settings = "COLLECTIVE_SHARED=0;"},
        CapiCase{.name = "tcp", .transports = "tcp", .settings = ""}),
    capi_case_name);

}  // namespace
}  // namespace hetcomm_test
