// Ranks whose collective calls differ in one argument, through shared memory and by messages, in a
// team's first operation and in a later one:
//
//   * a difference in operation, length, part lengths, type, operator, factor, root, algorithm or
//     flags ends with MISMATCH on all ranks, and the text names the argument
#include <functional>

#include "tests/conformance/capi/collective/collective.h"

namespace hetcomm_test {
namespace {

constexpr int32_t kRanks = 3;
constexpr size_t kCount = 12;  // elements of a buffer that holds all ranks' parts

// Arguments of one call.
struct Call {
  explicit Call(hetcomm_communicator_t* made_on) : communicator(made_on), data(kCount, 1) {}

  hetcomm_communicator_t* communicator;
  std::vector<int64_t> data;
  std::vector<int64_t> result = std::vector<int64_t>(kCount);
  size_t elements = kCount;
  int32_t type = HETCOMM_INT64;
  int32_t reduction = HETCOMM_REDUCE_SUM;
  int32_t root = 0;
  std::vector<size_t> lengths{4, 4, 4};
  hetcomm_collective_options_t options = no_options();
  hetcomm_request_t* request = nullptr;

  // Returns the length of the caller's part.
  size_t own_length() const {
    int32_t rank = 0;
    int32_t size = 0;
    EXPECT_EQ(hetcomm_communicator_rank(communicator, &rank, &size), HETCOMM_OK);
    return lengths[static_cast<size_t>(rank)];
  }
  hetcomm_buffer_t sent() const { return part(data, 0, elements); }
  hetcomm_buffer_t received() const { return part(result, 0, elements); }
  // Returns parts with the given lengths.
  std::vector<hetcomm_buffer_t> parts(const std::vector<int64_t>& whole) const {
    std::vector<hetcomm_buffer_t> all;
    size_t at = 0;
    for (const size_t length : lengths) {
      all.push_back(part(whole, at, length));
      at += length;
    }
    return all;
  }
};

hetcomm_status_t allreduce(Call& call) {
  return hetcomm_allreduce(call.communicator, call.sent(), call.received(), call.type,
                           call.reduction, &call.options, &call.request);
}
hetcomm_status_t broadcast(Call& call) {
  return hetcomm_broadcast(call.communicator, call.root, call.sent(), call.type, &call.options,
                           &call.request);
}
hetcomm_status_t reduce(Call& call) {
  return hetcomm_reduce(call.communicator, call.root, call.sent(), call.received(), call.type,
                        call.reduction, &call.options, &call.request);
}
hetcomm_status_t scan(Call& call) {
  return hetcomm_scan(call.communicator, call.sent(), call.received(), call.type, call.reduction,
                      &call.options, &call.request);
}
// Both calls take the same buffers, type and operator. The call is a scan if the root is not the
// usual one.
hetcomm_status_t scan_or_allreduce(Call& call) {
  return call.root == 0 ? allreduce(call) : scan(call);
}
hetcomm_status_t barrier(Call& call) {
  return hetcomm_barrier(call.communicator, &call.options, &call.request);
}
hetcomm_status_t alltoall(Call& call) {
  return hetcomm_alltoall(call.communicator, call.sent(), call.received(), call.type, &call.options,
                          &call.request);
}
hetcomm_status_t allgatherv(Call& call) {
  return hetcomm_allgatherv(call.communicator, part(call.data, 0, call.own_length()),
                            call.parts(call.result).data(), call.type, &call.options,
                            &call.request);
}
hetcomm_status_t reduce_scatterv(Call& call) {
  return hetcomm_reduce_scatterv(call.communicator, call.parts(call.data).data(),
                                 part(call.result, 0, call.own_length()), call.type, call.reduction,
                                 &call.options, &call.request);
}

struct Difference {
  const char* in;  // name of the argument in the text
  std::function<hetcomm_status_t(Call&)> make;
  std::function<void(Call&)> on_all;  // changes that all ranks make
  std::function<void(Call&)> on_one;  // changes that one rank makes
};

void nothing(Call& /*call*/) {}
void premultiplied(Call& call) {
  call.reduction = HETCOMM_REDUCE_PREMUL_SUM;
  call.options.factor = 2;
}
void with_other_factor(Call& call) { call.options.factor = 2.5; }
void by_ring(Call& call) { call.options.algorithm = "ring"; }

std::vector<Difference> differences() {
  const auto shorter = [](Call& call) { call.elements = 9; };
  const auto other_root = [](Call& call) { call.root = 1; };
  // The differing rank's part has the same length as before, and so do all parts together.
  const auto other_parts = [](Call& call) { call.lengths = {5, 4, 3}; };
  const auto parts_backwards = [](Call& call) { call.lengths = {3, 4, 5}; };
  return {
      {"operation", scan_or_allreduce, nothing, [](Call& call) { call.root = 1; }},
      {"size", allreduce, nothing, shorter},
      {"size", broadcast, nothing, shorter},
      {"size", alltoall, nothing, shorter},
      {"type", allreduce, nothing, [](Call& call) { call.type = HETCOMM_UINT64; }},
      {"operator", scan, nothing, [](Call& call) { call.reduction = HETCOMM_REDUCE_MAX; }},
      {"factor", allreduce, premultiplied, with_other_factor},
      {"factor", reduce_scatterv, premultiplied, with_other_factor},
      {"root", broadcast, nothing, other_root},
      {"root", reduce, nothing, other_root},
      {"in the lengths of the parts of", allgatherv, nothing, other_parts},
      {"in the lengths of the parts of", reduce_scatterv, nothing, other_parts},
      {"in the lengths of the parts of", allgatherv, other_parts, parts_backwards},
      {"algorithm", allreduce, by_ring,
       [](Call& call) { call.options.algorithm = "recursive_doubling"; }},
      {"algorithm", allreduce, nothing, by_ring},
      {"flags", scan, nothing,
       [](Call& call) { call.options.flags = HETCOMM_COLLECTIVE_EXCLUSIVE; }},
      {"flags", barrier, nothing,
       [](Call& call) { call.options.flags = HETCOMM_COLLECTIVE_MONITORED; }},
  };
}

// Uses its own communicator, because the mismatch makes it unusable. |later|: other operations have
// run before.
void differ(Member& me, const Difference& difference, bool later) {
  hetcomm_communicator_t* own = nullptr;
  ASSERT_EQ(hetcomm_communicator_split(me.communicator(), 0, me.rank(), &own), HETCOMM_OK)
      << hetcomm_last_error();
  if (later) {
    Call before(own);
    hetcomm_status_t call = allreduce(before);
    expect_ok(call, before.request, "allreduce");
    call = barrier(before);
    expect_ok(call, before.request, "barrier");
  }
  ASSERT_TRUE(me.meet());  // a failure ends unfinished earlier operations
  const uint64_t start = clock_ns();
  Call mine(own);
  difference.on_all(mine);
  if (me.rank() == 1) difference.on_one(mine);
  const hetcomm_status_t status = difference.make(mine);
  ASSERT_EQ(status, HETCOMM_OK) << hetcomm_last_error();
  Outcome outcome = finish(mine.request);
  // A rank that only sends has left the operation already.
  if (outcome.status == HETCOMM_OK) outcome = first_failure(own);
  EXPECT_EQ(outcome.status, HETCOMM_MISMATCH) << outcome.text;
  EXPECT_NE(outcome.text.find(difference.in), std::string::npos) << outcome.text;
  EXPECT_LT(clock_ns() - start, 5 * kSec);
  ASSERT_TRUE(me.meet());
  EXPECT_EQ(hetcomm_communicator_destroy(own), HETCOMM_OK) << hetcomm_last_error();
}

class Mismatch : public CapiTest {};

TEST_P(Mismatch, DifferingArgumentIsNamedOnAllRanks) {
  for (const bool later : {false, true}) {
    run(kRanks, [later](Member& me) {
      for (const Difference& difference : differences()) {
        SCOPED_TRACE(std::string(difference.in) + (later ? ", later" : ", at first"));
        differ(me, difference, later);
        if (::testing::Test::HasFatalFailure()) return;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Mismatch,
    ::testing::Values(
        CapiCase{.name = "shm", .transports = "shm", .settings = ""},
        CapiCase{.name = "shm_messages", .transports = "shm", .settings = "COLLECTIVE_SHARED=0;"},
        CapiCase{.name = "tcp", .transports = "tcp", .settings = ""}),
    capi_case_name);

}  // namespace
}  // namespace hetcomm_test
