// Collective operations among ranks as threads and processes, through messages and shared memory:
//
//   * every operation gives its defined result, from 0 bytes up to several chunks, out of place and
//     in place, in host memory, on devices and mixed
//   * all ranks get the same bits; for every algorithm, sums of narrow types equal the float32 sum
//     in rank order, rounded once
//   * many may be in progress at once, including on lists of ranks and in groups
//   * ranks whose arguments differ all end with MISMATCH, and the text names the difference; later
//     calls end immediately, and messages still work
//   * a rank that dies, stalls, cancels or never calls ends the operation on all other ranks in
//     bounded time, with a text
//   * errors visible to one rank are refused; a caller that alone refuses a call tells the other
//     ranks, whose calls end unless they have refused them as well
#include "tests/conformance/capi/collective/collective.h"

#include <array>
#include <bit>
#include <csignal>
#include <cstring>
#include <numeric>
#include <random>

namespace hetcomm_test {
namespace {

std::vector<CapiCase> collective_cases(bool processes) {
  std::vector<CapiCase> cases = {
      {.name = "shm", .transports = "shm", .settings = ""},
      {.name = "shm_messages", .transports = "shm", .settings = "COLLECTIVE_SHARED=0;"},
      {.name = "shm_thread", .transports = "shm", .settings = "", .thread_progress = true},
      {.name = "shm_unchecked", .transports = "shm", .settings = "COLLECTIVE_CHECK=0;"},
      {.name = "shm_tiny",
       .transports = "shm",
       .settings = "COLLECTIVE_SHARED=0;SHM_RING_BYTES=64K;SHM_CHUNK=4K;SHM_EAGER=1K;CREDIT_BYTES="
                   "4K;"},
      {.name = "tcp", .transports = "tcp", .settings = ""},
      {.name = "tcp_tiny",
       .transports = "tcp",
       .settings = "TCP_CHUNK=4K;TCP_EAGER=256;TCP_SOCKET_BUFFER=128K;"},
      {.name = "tcp_thread", .transports = "tcp", .settings = "", .thread_progress = true},
      {.name = "tcp_clusters", .transports = "tcp", .settings = "", .clusters = 2},
  };
  if (processes) cases.resize(3);
  if (processes) cases[2] = {.name = "tcp", .transports = "tcp", .settings = ""};
  for (CapiCase& each : cases) each.processes = processes;
  return cases;
}

constexpr hetcomm_datatype_t kType = HETCOMM_INT64;

// Runs every operation once, with parts of |count| elements.
void run_all(Member& me, size_t count) {
  SCOPED_TRACE(count);
  hetcomm_communicator_t* const c = me.communicator();
  const int32_t n = me.size();
  const int32_t rank = me.rank();
  const auto ranks = static_cast<size_t>(n);
  const auto own = static_cast<size_t>(rank);
  hetcomm_request_t* request = nullptr;
  const std::vector<int64_t> mine = values(rank, count);
  const std::vector<int64_t> parts = values(rank, count * ranks);
  hetcomm_status_t call = hetcomm_barrier(c, nullptr, &request);
  expect_ok(call, request, "barrier");

  for (int32_t root = 0; root < n; ++root) {
    std::vector<int64_t> got = rank == root ? mine : std::vector<int64_t>(count, -1);
    call = hetcomm_broadcast(c, root, buffer(got), kType, nullptr, &request);
    expect_ok(call, request, "broadcast");
    EXPECT_EQ(got, values(root, count)) << "broadcast";

    got.assign(rank == root ? count : 0, -1);
    call = hetcomm_reduce(c, root, buffer(mine), buffer(got), kType, HETCOMM_REDUCE_SUM, nullptr,
                          &request);
    expect_ok(call, request, "reduce");
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], sum(n, i)) << "reduce";

    got.assign(rank == root ? count * ranks : 0, -1);
    call = hetcomm_gather(c, root, buffer(mine), buffer(got), kType, nullptr, &request);
    expect_ok(call, request, "gather");
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], value(static_cast<int32_t>(i / count), i % count)) << "gather";
    }

    got.assign(count, -1);
    call = hetcomm_scatter(c, root, buffer(parts), buffer(got), kType, nullptr, &request);
    expect_ok(call, request, "scatter");
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], value(root, own * count + i)) << "scatter";
  }

  std::vector<int64_t> got(count, -1);
  call =
      hetcomm_allreduce(c, buffer(mine), buffer(got), kType, HETCOMM_REDUCE_SUM, nullptr, &request);
  expect_ok(call, request, "allreduce");
  for (size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], sum(n, i)) << "allreduce";
  got = mine;
  call =
      hetcomm_allreduce(c, buffer(got), buffer(got), kType, HETCOMM_REDUCE_MAX, nullptr, &request);
  expect_ok(call, request, "allreduce in place");
  EXPECT_EQ(got, values(n - 1, count)) << "allreduce in place";
  got = mine;
  call = hetcomm_allreduce(c, buffer(got), buffer(got), kType, HETCOMM_REDUCE_AVERAGE, nullptr,
                           &request);
  expect_ok(call, request, "average");
  for (size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], sum(n, i) / n) << "average";
  hetcomm_collective_options_t options = no_options();
  options.factor = 3;
  call = hetcomm_allreduce(c, buffer(mine), buffer(got), kType, HETCOMM_REDUCE_PREMUL_SUM, &options,
                           &request);
  expect_ok(call, request, "premul_sum");
  for (size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], 3 * sum(n, i)) << "premul_sum";

  got.assign(count * ranks, -1);
  call = hetcomm_allgather(c, buffer(mine), buffer(got), kType, nullptr, &request);
  expect_ok(call, request, "allgather");
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i], value(static_cast<int32_t>(i / count), i % count)) << "allgather";
  }
  got.assign(count * ranks, -1);
  std::copy(mine.begin(), mine.end(), got.begin() + static_cast<std::ptrdiff_t>(own * count));
  call = hetcomm_allgather(c, part(got, own * count, count), buffer(got), kType, nullptr, &request);
  expect_ok(call, request, "allgather in place");
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i], value(static_cast<int32_t>(i / count), i % count)) << "allgather in place";
  }

  got.assign(count, -1);
  call = hetcomm_reduce_scatter(c, buffer(parts), buffer(got), kType, HETCOMM_REDUCE_SUM, nullptr,
                                &request);
  expect_ok(call, request, "reduce_scatter");
  for (size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], sum(n, own * count + i)) << "reduce_scatter";

  got.assign(count * ranks, -1);
  call = hetcomm_alltoall(c, buffer(parts), buffer(got), kType, nullptr, &request);
  expect_ok(call, request, "alltoall");
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i], value(static_cast<int32_t>(i / count), own * count + i % count))
        << "alltoall";
  }

  got.assign(count, -1);
  call = hetcomm_scan(c, buffer(mine), buffer(got), kType, HETCOMM_REDUCE_SUM, nullptr, &request);
  expect_ok(call, request, "scan");
  for (size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], sum(rank + 1, i)) << "scan";
  got.assign(count, -1);
  options = no_options();
  options.flags = HETCOMM_COLLECTIVE_EXCLUSIVE;
  call = hetcomm_scan(c, buffer(mine), buffer(got), kType, HETCOMM_REDUCE_SUM, &options, &request);
  expect_ok(call, request, "exclusive scan");
  for (size_t i = 0; i < count; ++i) {
    ASSERT_EQ(got[i], rank == 0 ? -1 : sum(rank, i)) << "exclusive scan";
  }

  // Parts have different lengths: rank r sends r * count elements to, or receives them from, each
  // rank.
  std::vector<int64_t> room(count * ranks * ranks, -1);
  std::vector<hetcomm_buffer_t> many;
  size_t start = 0;
  for (size_t r = 0; r < ranks; ++r) {
    many.push_back(part(room, start, r * count));
    start += r * count;
  }
  const std::vector<int64_t> long_mine = values(rank, own * count);
  call = hetcomm_allgatherv(c, buffer(long_mine), many.data(), kType, nullptr, &request);
  expect_ok(call, request, "allgatherv");
  start = 0;
  for (size_t r = 0; r < ranks; ++r) {
    for (size_t i = 0; i < r * count; ++i) {
      ASSERT_EQ(room[start + i], value(static_cast<int32_t>(r), i)) << "allgatherv";
    }
    start += r * count;
  }
  for (size_t i = 0; i < room.size(); ++i) room[i] = value(rank, i);
  got.assign(own * count, -1);
  call = hetcomm_reduce_scatterv(c, many.data(), buffer(got), kType, HETCOMM_REDUCE_SUM, nullptr,
                                 &request);
  expect_ok(call, request, "reduce_scatterv");
  start = own * (own - (own > 0 ? 1 : 0)) / 2 * count;
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], sum(n, start + i)) << "scatterv";
  got.assign(own * count, -1);
  options = no_options();
  options.factor = 3;
  call = hetcomm_reduce_scatterv(c, many.data(), buffer(got), kType, HETCOMM_REDUCE_PREMUL_SUM,
                                 &options, &request);
  expect_ok(call, request, "reduce_scatterv, premul_sum");
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i], 3 * sum(n, start + i)) << "reduce_scatterv, premul_sum";
  }
  got.assign(own * count, -1);
  call = hetcomm_scatterv(c, n - 1, many.data(), buffer(got), kType, nullptr, &request);
  expect_ok(call, request, "scatterv");
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], value(n - 1, start + i)) << "scatterv";
  // Rank r sends r * count elements to this rank, which sends rank * count elements to each.
  std::vector<int64_t> out = values(rank, count * ranks * ranks);
  std::vector<hetcomm_buffer_t> sends;
  for (size_t r = 0; r < ranks; ++r) sends.push_back(part(out, r * own * count, own * count));
  room.assign(room.size(), -1);
  call = hetcomm_alltoallv(c, sends.data(), many.data(), kType, nullptr, &request);
  expect_ok(call, request, "alltoallv");
  start = 0;
  for (size_t r = 0; r < ranks; ++r) {
    for (size_t i = 0; i < r * count; ++i) {
      ASSERT_EQ(room[start + i], value(static_cast<int32_t>(r), own * r * count + i))
          << "alltoallv";
    }
    start += r * count;
  }
  room.assign(room.size(), -1);
  call = hetcomm_gatherv(c, 0, buffer(long_mine), many.data(), kType, nullptr, &request);
  expect_ok(call, request, "gatherv");
  start = 0;
  for (size_t r = 0; r < ranks && rank == 0; ++r) {
    for (size_t i = 0; i < r * count; ++i) {
      ASSERT_EQ(room[start + i], value(static_cast<int32_t>(r), i)) << "gatherv";
    }
    start += r * count;
  }
}

class Collectives : public CapiTest {};

TEST_P(Collectives, EveryOperationGivesTheCorrectResult) {
  for (const int32_t n : {1, 2, 3, 4}) {
    run(n, [](Member& me) {
      // 8,194 elements leave a remainder of 16 bytes after a chunk.
      for (const size_t count : {0u, 1u, 5u, 100u, 2'000u, 8'194u, 70'001u}) run_all(me, count);
    });
  }
}

float number(uint16_t bfloat16) { return std::bit_cast<float>(uint32_t{bfloat16} << 16); }
uint16_t rounded(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
// Returns |rank|'s numbers. Their float32 sum loses digits, and their bfloat16 sum loses many.
std::vector<uint16_t> narrow_values(int32_t rank, size_t count) {
  std::mt19937 random(static_cast<uint32_t>(rank) + 1);
  std::vector<uint16_t> all(count);
  for (uint16_t& each : all) {
    const auto sign = static_cast<uint16_t>((random() & 1u) << 15);
    each = static_cast<uint16_t>(sign | (0x3a00u + random() % 0x0b00u));
  }
  return all;
}

// Returns the sums of the elements |first|, |first| + 1, ... of the first |ranks| of |size|.
std::vector<uint16_t> narrow_sums(hetcomm_reduction_t op, double factor, int32_t ranks,
                                  int32_t size, size_t first, size_t count) {
  std::vector<float> sums(count);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const std::vector<uint16_t> terms = narrow_values(rank, first + count);
    for (size_t i = 0; i < count; ++i) {
      float term = number(terms[first + i]);
      if (op == HETCOMM_REDUCE_PREMUL_SUM) term *= static_cast<float>(factor);
      sums[i] = rank == 0 ? term : op == HETCOMM_REDUCE_PRODUCT ? sums[i] * term : sums[i] + term;
    }
  }
  std::vector<uint16_t> all(count);
  for (size_t i = 0; i < count; ++i) {
    if (op == HETCOMM_REDUCE_AVERAGE) sums[i] /= static_cast<float>(size);
    all[i] = rounded(sums[i]);
  }
  return all;
}

// Runs all reductions of parts of |count| elements that |algorithm| supports.
void reduce_narrow(Member& me, size_t count, hetcomm_reduction_t op, const char* algorithm) {
  SCOPED_TRACE(std::string(algorithm == nullptr ? "chosen" : algorithm) + ", " +
               std::to_string(count) + ", operator " + std::to_string(op));
  hetcomm_communicator_t* const c = me.communicator();
  const int32_t n = me.size();
  const auto ranks = static_cast<size_t>(n);
  const auto own = static_cast<size_t>(me.rank());
  constexpr hetcomm_datatype_t kNarrow = HETCOMM_BFLOAT16;
  hetcomm_collective_options_t options = no_options();
  options.factor = 0.37;
  options.algorithm = algorithm;
  const auto sums = [&](int32_t of, size_t first) {
    return narrow_sums(op, options.factor, of, n, first, count);
  };
  const std::vector<uint16_t> parts = narrow_values(me.rank(), count * ranks);
  const std::vector<uint16_t> mine(parts.begin(), parts.begin() + static_cast<ptrdiff_t>(count));
  hetcomm_request_t* request = nullptr;
  // Returns false if there is no such algorithm.
  const auto goes = [&](hetcomm_status_t call, const char* what) {
    if (call == HETCOMM_UNSUPPORTED && algorithm != nullptr) return false;
    expect_ok(call, request, what);
    return true;
  };
  std::vector<uint16_t> got = mine;
  if (goes(hetcomm_allreduce(c, buffer(got), buffer(got), kNarrow, op, &options, &request),
           "allreduce")) {
    EXPECT_EQ(got, sums(n, 0)) << "allreduce";
  }
  const int32_t root = n / 2;
  got.assign(me.rank() == root ? count : 0, 0);
  if (goes(hetcomm_reduce(c, root, buffer(mine), buffer(got), kNarrow, op, &options, &request),
           "reduce") &&
      me.rank() == root) {
    EXPECT_EQ(got, sums(n, 0)) << "reduce";
  }
  got.assign(count, 0);
  if (goes(hetcomm_reduce_scatter(c, buffer(parts), buffer(got), kNarrow, op, &options, &request),
           "reduce_scatter")) {
    EXPECT_EQ(got, sums(n, own * count)) << "reduce_scatter";
  }
  if (goes(hetcomm_scan(c, buffer(mine), buffer(got), kNarrow, op, &options, &request), "scan")) {
    EXPECT_EQ(got, sums(me.rank() + 1, 0)) << "scan";
  }
  options.flags = HETCOMM_COLLECTIVE_EXCLUSIVE;
  if (goes(hetcomm_scan(c, buffer(mine), buffer(got), kNarrow, op, &options, &request), "scan") &&
      me.rank() > 0) {
    EXPECT_EQ(got, sums(me.rank(), 0)) << "exclusive scan";
  }
}

TEST_P(Collectives, LowPrecisionReductionsAreRoundedOnce) {
  for (const int32_t n : {2, 3, 16}) {
    run(n, [n](Member& me) {
      for (const char* const algorithm : {static_cast<const char*>(nullptr), "recursive_doubling",
                                          "ring", "binomial", "pairwise", "two_level"}) {
        for (const size_t count : {1u, 7u, 500u, 9'001u}) {
          reduce_narrow(me, count, HETCOMM_REDUCE_SUM, algorithm);
        }
        // This length has several segments.
        if (n == 3) reduce_narrow(me, 600'001, HETCOMM_REDUCE_SUM, algorithm);
        for (const hetcomm_reduction_t op :
             {HETCOMM_REDUCE_AVERAGE, HETCOMM_REDUCE_PREMUL_SUM, HETCOMM_REDUCE_PRODUCT}) {
          reduce_narrow(me, 500, op, algorithm);
        }
      }
    });
  }
}

// Each rank has 30000 in float16, whose largest number is 65504.
TEST_P(Collectives, AverageIsCorrectIfTheSumWouldOverflow) {
  run(4, [](Member& me) {
    const std::vector<uint16_t> mine(1'000, 0x7753);
    std::vector<uint16_t> got(mine.size());
    hetcomm_request_t* request = nullptr;
    const hetcomm_status_t call =
        hetcomm_allreduce(me.communicator(), buffer(mine), buffer(got), HETCOMM_FLOAT16,
                          HETCOMM_REDUCE_AVERAGE, nullptr, &request);
    expect_ok(call, request, "average");
    EXPECT_EQ(got, mine);
  });
}

// Some parts are empty, and some are many times as long as others. Operations of other kinds and
// lengths follow immediately.
TEST_P(Collectives, PartsOfDifferentLengthsArriveIntact) {
  run(3, [](Member& me) {
    hetcomm_communicator_t* const c = me.communicator();
    const auto ranks = static_cast<size_t>(me.size());
    const auto own = static_cast<size_t>(me.rank());
    constexpr size_t kRounds = 12;
    std::mt19937 random(5);  // the same on all ranks
    std::vector<std::vector<int64_t>> data;
    std::vector<hetcomm_request_t*> requests;
    std::vector<std::pair<size_t, std::vector<int64_t>>> right;  // positions and data
    const auto length = [&random] {
      const size_t most = std::array<size_t, 4>{1, 10, 3'000, 40'000}[random() % 4];
      return random() % 3 == 0 ? 0 : random() % most;
    };
    const auto add = [&data](std::vector<int64_t> elements) {
      data.push_back(std::move(elements));
      return buffer(data.back());
    };
    const auto start = [&requests](hetcomm_status_t call, hetcomm_request_t* request) {
      ASSERT_EQ(call, HETCOMM_OK) << hetcomm_last_error();
      requests.push_back(request);
    };
    const auto expect = [&data, &right](std::vector<int64_t> elements) {
      right.emplace_back(data.size() - 1, std::move(elements));
    };
    // The |index|-th element that goes from one rank to another.
    const auto element = [](size_t from, size_t to, size_t index) {
      return value(static_cast<int32_t>(from * 16 + to), index);
    };
    const auto elements = [&element](size_t from, size_t to, size_t count) {
      std::vector<int64_t> all(count);
      for (size_t i = 0; i < count; ++i) all[i] = element(from, to, i);
      return all;
    };
    for (size_t round = 0; round < kRounds; ++round) {
      std::vector<size_t> lengths(ranks * ranks);  // index: from * ranks + to
      for (size_t& each : lengths) each = length();
      std::vector<hetcomm_buffer_t> sends;
      std::vector<hetcomm_buffer_t> receives;
      for (size_t r = 0; r < ranks; ++r) {
        sends.push_back(add(elements(own, r, lengths[own * ranks + r])));
      }
      for (size_t r = 0; r < ranks; ++r) {
        receives.push_back(add(std::vector<int64_t>(lengths[r * ranks + own], -1)));
        expect(elements(r, own, lengths[r * ranks + own]));
      }
      hetcomm_request_t* request = nullptr;
      hetcomm_status_t call =
          hetcomm_alltoallv(c, sends.data(), receives.data(), kType, nullptr, &request);
      start(call, request);
      const size_t root = round % ranks;
      receives.clear();
      for (size_t r = 0; r < ranks && own == root; ++r) {
        receives.push_back(add(std::vector<int64_t>(lengths[r * ranks + root], -1)));
        expect(elements(r, root, lengths[r * ranks + root]));
      }
      call = hetcomm_gatherv(c, static_cast<int32_t>(root), sends[root],
                             own == root ? receives.data() : nullptr, kType, nullptr, &request);
      start(call, request);
      const hetcomm_buffer_t scattered = add(std::vector<int64_t>(lengths[root * ranks + own], -1));
      expect(elements(root, own, lengths[root * ranks + own]));
      call = hetcomm_scatterv(c, static_cast<int32_t>(root), own == root ? sends.data() : nullptr,
                              scattered, kType, nullptr, &request);
      start(call, request);
      const hetcomm_buffer_t total = add(std::vector<int64_t>(1 + lengths[0], 1));
      expect(std::vector<int64_t>(1 + lengths[0], me.size()));
      call = hetcomm_allreduce(c, total, total, kType, HETCOMM_REDUCE_SUM, nullptr, &request);
      start(call, request);
    }
    for (hetcomm_request_t* const request : requests) {
      const Outcome outcome = finish(request);
      ASSERT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
    }
    for (const auto& [index, wanted] : right) ASSERT_EQ(data[index], wanted);
  });
}

// Only their two ranks know the length of these parts.
TEST_P(Collectives, PartOfUnexpectedLengthGivesAnError) {
  using Lengths = std::pair<size_t, size_t>;  // sent and expected lengths
  for (const Lengths& lengths : {Lengths{4, 7}, {7, 4}, {0, 4}, {4, 0}}) {
    SCOPED_TRACE(lengths.first);
    run(3, [lengths](Member& me) {
      hetcomm_communicator_t* const c = me.communicator();
      std::vector<int64_t> from(30, 1);
      std::vector<int64_t> to(30, 1);
      std::vector<hetcomm_buffer_t> sends;
      std::vector<hetcomm_buffer_t> receives;
      for (size_t r = 0; r < 3; ++r) {
        // Rank 2 expects another length than rank 0 has.
        const bool sends_odd = me.rank() == 0 && r == 2;
        const bool odd = me.rank() == 2 && r == 0;
        sends.push_back(part(from, r * 10, sends_odd ? lengths.first : 4));
        receives.push_back(part(to, r * 10, odd ? lengths.second : 4));
      }
      hetcomm_request_t* request = nullptr;
      ASSERT_EQ(hetcomm_alltoallv(c, sends.data(), receives.data(), kType, nullptr, &request),
                HETCOMM_OK);
      Outcome outcome = finish(request);
      if (me.rank() == 2) {
        EXPECT_EQ(outcome.status, HETCOMM_MISMATCH);
        const std::string expected = lengths.first < lengths.second
                                         ? "rank 0 sent " + std::to_string(lengths.first * 8) +
                                               " bytes, and " + std::to_string(lengths.second * 8)
                                         : "bytes";
        EXPECT_NE(outcome.text.find(expected), std::string::npos) << outcome.text;
      }
      if (outcome.status == HETCOMM_OK) outcome = first_failure(c);
      EXPECT_EQ(outcome.status, HETCOMM_MISMATCH) << outcome.text;
      me.meet();
    });
  }
}

TEST_P(Collectives, EightRanksGetCorrectResults) {
  run(8, [](Member& me) {
    for (const size_t count : {1u, 3'000u}) run_all(me, count);
    hetcomm_request_t* request = nullptr;
    for (int i = 0; i < 200; ++i) {
      int64_t word = me.rank() + i;
      const hetcomm_status_t call = hetcomm_allreduce(
          me.communicator(), hetcomm_buffer_host(&word, 8), hetcomm_buffer_host(&word, 8), kType,
          HETCOMM_REDUCE_SUM, nullptr, &request);
      expect_ok(call, request, "allreduce");
      ASSERT_EQ(word, 28 + 8 * i);
    }
  });
}

// Runs every algorithm with an operator whose result depends on the order.
TEST_P(Collectives, FloatSumsAreBitIdenticalOnAllRanks) {
  run(3, [](Member& me) {
    for (const char* algorithm :
         {static_cast<const char*>(nullptr), "recursive_doubling", "ring", "two_level"}) {
      for (const size_t count : {1u, 1'000u, 50'000u}) {
        hetcomm_collective_options_t options = no_options();
        options.algorithm = algorithm;
        std::vector<float> send(count);
        for (size_t i = 0; i < count; ++i) {
          send[i] = 1.0f / static_cast<float>(3 + me.rank() * 7 + static_cast<int32_t>(i % 1000));
        }
        std::vector<float> got(count);
        hetcomm_request_t* request = nullptr;
        hetcomm_status_t call =
            hetcomm_allreduce(me.communicator(), buffer(send), buffer(got), HETCOMM_FLOAT32,
                              HETCOMM_REDUCE_SUM, &options, &request);
        expect_ok(call, request, "allreduce");
        std::vector<float> first = got;
        call = hetcomm_broadcast(me.communicator(), 0, buffer(first), HETCOMM_FLOAT32, nullptr,
                                 &request);
        expect_ok(call, request, "broadcast");
        EXPECT_EQ(std::memcmp(first.data(), got.data(), count * sizeof(float)), 0);
      }
    }
  });
}

TEST_P(Collectives, ManyOperationsRunConcurrentlyAndInGroups) {
  run(4, [](Member& me) {
    hetcomm_communicator_t* const c = me.communicator();
    const int32_t pair[] = {me.rank() & ~1, me.rank() | 1};
    const int32_t cross[] = {(me.rank() + 2) % 4, me.rank()};
    const int32_t across[] = {std::min(cross[0], cross[1]), std::max(cross[0], cross[1])};
    hetcomm_group_t* group = nullptr;
    ASSERT_EQ(hetcomm_group_create(c, &group), HETCOMM_OK);
    for (const bool grouped : {false, true}) {
      std::vector<hetcomm_request_t*> requests;
      std::list<std::vector<int64_t>> buffers;
      std::vector<std::pair<std::vector<int64_t>*, int64_t>> expected;
      for (int round = 0; round < 30; ++round) {
        const size_t count = round % 3 == 0 ? 40'000 : 4;
        for (int which = 0; which < 3; ++which) {
          hetcomm_collective_options_t options = no_options();
          if (grouped) options.group = group;
          int64_t total = 6 + 4 * round;
          if (which > 0) {
            options.ranks = which == 1 ? pair : across;
            options.rank_count = 2;
            total = options.ranks[0] + options.ranks[1] + 2 * round;
          }
          buffers.emplace_back(count, me.rank() + round);
          hetcomm_request_t* request = nullptr;
          ASSERT_EQ(hetcomm_allreduce(c, buffer(buffers.back()), buffer(buffers.back()), kType,
                                      HETCOMM_REDUCE_SUM, &options, &request),
                    HETCOMM_OK)
              << hetcomm_last_error();
          requests.push_back(request);
          expected.emplace_back(&buffers.back(), total);
        }
      }
      if (grouped) {
        ASSERT_EQ(hetcomm_group_start(group), HETCOMM_OK);
      }
      finish_all(requests);
      for (const auto& [got, total] : expected) {
        ASSERT_EQ(*got, std::vector<int64_t>(got->size(), total));
      }
    }
    hetcomm_group_destroy(group);
  });
}

// In each iteration the ranks' calls differ in one way.
TEST_P(Collectives, DifferingArgumentsAreReportedOnAllRanks) {
  if (GetParam().settings.find("CHECK=0") != std::string::npos) GTEST_SKIP() << "they do not look";
  for (int which = 0; which < 6; ++which) {
    SCOPED_TRACE(which);
    run(3, [which](Member& me) {
      hetcomm_communicator_t* const c = me.communicator();
      hetcomm_request_t* request = nullptr;
      expect_ok(hetcomm_barrier(c, nullptr, &request), request, "barrier");
      me.meet();  // the operation has ended on all ranks
      std::vector<int64_t> data(64, 1);
      const bool odd = me.rank() == 1;
      const hetcomm_buffer_t all = buffer(data);
      const hetcomm_buffer_t half = part(data, 0, 32);
      hetcomm_status_t call = HETCOMM_INTERNAL;
      const char* expected = "";
      if (which == 0) {
        call = odd ? hetcomm_broadcast(c, 0, all, kType, nullptr, &request)
                   : hetcomm_allreduce(c, all, all, kType, HETCOMM_REDUCE_SUM, nullptr, &request);
        expected = "operation";
      } else if (which == 1) {
        const hetcomm_buffer_t mine = odd ? half : all;
        call = hetcomm_allreduce(c, mine, mine, kType, HETCOMM_REDUCE_SUM, nullptr, &request);
        expected = "size";
      } else if (which == 2) {
        call = hetcomm_allreduce(c, all, all, odd ? HETCOMM_UINT64 : kType, HETCOMM_REDUCE_SUM,
                                 nullptr, &request);
        expected = "type";
      } else if (which == 3) {
        call = hetcomm_allreduce(c, all, all, kType, odd ? HETCOMM_REDUCE_MAX : HETCOMM_REDUCE_SUM,
                                 nullptr, &request);
        expected = "operator";
      } else if (which == 4) {
        call = hetcomm_broadcast(c, odd ? 1 : 0, all, kType, nullptr, &request);
        expected = "root";
      } else {
        // The ranks call in different orders.
        call = odd ? hetcomm_barrier(c, nullptr, &request)
                   : hetcomm_broadcast(c, 2, all, kType, nullptr, &request);
        expected = "operation";
      }
      ASSERT_EQ(call, HETCOMM_OK) << hetcomm_last_error();
      const uint64_t begin = clock_ns();
      hetcomm_request_t* behind = nullptr;
      ASSERT_EQ(hetcomm_barrier(c, nullptr, &behind), HETCOMM_OK);
      const Outcome outcome = finish(request);
      // A root may have ended with OK already. It learns of the mismatch in the next operation.
      if (outcome.status != HETCOMM_OK) {
        EXPECT_EQ(outcome.status, HETCOMM_MISMATCH) << outcome.text;
        EXPECT_NE(outcome.text.find(expected), std::string::npos) << outcome.text;
        EXPECT_NE(outcome.text.find("ank"), std::string::npos) << outcome.text;
      }
      // The barrier, which all have called, may complete through messages before the mismatch is
      // found.
      Outcome next = finish(behind);
      if (next.status == HETCOMM_OK) next = first_failure(c);
      EXPECT_EQ(next.status, HETCOMM_MISMATCH) << next.text;
      EXPECT_LT(clock_ns() - begin, 5 * kSec);
      // The next barrier ends immediately.
      ASSERT_EQ(hetcomm_barrier(c, nullptr, &behind), HETCOMM_OK);
      const uint64_t start = clock_ns();
      EXPECT_EQ(finish(behind).status, HETCOMM_MISMATCH);
      EXPECT_LT(clock_ns() - start, 10 * kSec);
      // Messages still work.
      uint64_t word = 0;
      const auto own = static_cast<uint64_t>(me.rank());
      hetcomm_request_t* receive = me.recv((me.rank() + 2) % 3, 5, &word, 8);
      EXPECT_EQ(finish(me.send((me.rank() + 1) % 3, 5, &own, 8)).status, HETCOMM_OK);
      EXPECT_EQ(finish(receive).status, HETCOMM_OK);
      me.meet();
    });
  }
}

TEST_P(Collectives, OperationWithAMissingRankFailsOnAllRanks) {
  run(3, [](Member& me) {
    hetcomm_communicator_t* const c = me.communicator();
    hetcomm_request_t* request = nullptr;
    expect_ok(hetcomm_barrier(c, nullptr, &request), request, "barrier");
    if (me.rank() == 2) {
      me.meet();
    } else {
      hetcomm_collective_options_t options = no_options();
      options.timeout_ns = 200 * kMs;
      int64_t word = 1;
      const uint64_t start = clock_ns();
      ASSERT_EQ(hetcomm_allreduce(c, hetcomm_buffer_host(&word, 8), hetcomm_buffer_host(&word, 8),
                                  kType, HETCOMM_REDUCE_SUM, &options, &request),
                HETCOMM_OK);
      const Outcome outcome = finish(request);
      EXPECT_TRUE(outcome.status == HETCOMM_TIMED_OUT || outcome.status == HETCOMM_ABORTED)
          << outcome.status << outcome.text;
      EXPECT_NE(outcome.text.find("allreduce"), std::string::npos) << outcome.text;
      EXPECT_LT(clock_ns() - start, 5 * kSec);
      me.meet();
    }
    // The late rank learns of the failure. If it already has all data for the first operation, it
    // learns in the next one.
    int64_t word = 1;
    ASSERT_EQ(hetcomm_allreduce(c, hetcomm_buffer_host(&word, 8), hetcomm_buffer_host(&word, 8),
                                kType, HETCOMM_REDUCE_SUM, nullptr, &request),
              HETCOMM_OK);
    Outcome late = finish(request);
    if (late.status == HETCOMM_OK) late = first_failure(c);
    EXPECT_EQ(late.status, HETCOMM_ABORTED) << late.text;
    EXPECT_NE(late.text.find("allreduce"), std::string::npos) << late.text;
    me.meet();
  });
}

TEST_P(Collectives, MonitoredBarrierNamesTheMissingRanks) {
  run(4, [](Member& me) {
    hetcomm_communicator_t* const c = me.communicator();
    hetcomm_collective_options_t options = no_options();
    options.flags = HETCOMM_COLLECTIVE_MONITORED | HETCOMM_COLLECTIVE_WAIT_ALL;
    hetcomm_request_t* request = nullptr;
    expect_ok(hetcomm_barrier(c, &options, &request), request, "monitored barrier");
    if (me.rank() < 2) {
      options.timeout_ns = (me.rank() == 0 ? 200 : 5000) * kMs;
      ASSERT_EQ(hetcomm_barrier(c, &options, &request), HETCOMM_OK);
      const Outcome outcome = finish(request);
      EXPECT_EQ(outcome.status, me.rank() == 0 ? HETCOMM_TIMED_OUT : HETCOMM_ABORTED);
      EXPECT_NE(outcome.text.find("rank 2, rank 3"), std::string::npos) << outcome.text;
    }
    me.meet();
  });
}

TEST_P(Collectives, CancelOrAbortEndsTheOperation) {
  for (const bool abort : {false, true}) {
    run(2, [abort](Member& me) {
      hetcomm_communicator_t* const c = me.communicator();
      hetcomm_request_t* request = nullptr;
      expect_ok(hetcomm_barrier(c, nullptr, &request), request, "barrier");
      me.meet();  // an abort may overtake the barrier's messages
      std::vector<int64_t> data(100'000);
      if (me.rank() == 0) {
        ASSERT_EQ(hetcomm_allreduce(c, buffer(data), buffer(data), kType, HETCOMM_REDUCE_SUM,
                                    nullptr, &request),
                  HETCOMM_OK);
        (void)me.until([] { return false; }, 5 * kMs);
        if (abort) {
          EXPECT_EQ(hetcomm_communicator_abort(c, "enough"), HETCOMM_OK);
        } else {
          EXPECT_EQ(hetcomm_request_cancel(request), HETCOMM_OK);
        }
        const Outcome outcome = finish(request);
        EXPECT_EQ(outcome.status, abort ? HETCOMM_ABORTED : HETCOMM_CANCELLED) << outcome.text;
      }
      me.meet();
      ASSERT_EQ(hetcomm_allreduce(c, buffer(data), buffer(data), kType, HETCOMM_REDUCE_SUM, nullptr,
                                  &request),
                HETCOMM_OK);
      EXPECT_EQ(finish(request).status, HETCOMM_ABORTED);
      me.meet();
    });
  }
}

TEST_P(Collectives, AllreduceAcrossDevicesGivesTheCorrectResult) {
  CapiCase with_devices = GetParam();
  with_devices.settings += "DEVICES=sim-handle,sim-address;";
  run_job(with_devices, 3, [](Member& me) {
    for (const size_t count : {1u, 3'000u, 60'000u}) {
      const uint64_t bytes = count * sizeof(int64_t);
      hetcomm_memory_t* send = nullptr;
      hetcomm_memory_t* recv = nullptr;
      // Each rank uses another device, and one rank uses the host.
      ASSERT_EQ(hetcomm_memory_allocate(me.context(), me.rank(), bytes, &send), HETCOMM_OK);
      ASSERT_EQ(hetcomm_memory_allocate(me.context(), (me.rank() + 1) % 3, bytes, &recv),
                HETCOMM_OK);
      const std::vector<int64_t> mine = values(me.rank(), count);
      ASSERT_EQ(hetcomm_memory_write(send, 0, mine.data(), bytes), HETCOMM_OK);
      hetcomm_request_t* request = nullptr;
      const hetcomm_status_t call = hetcomm_allreduce(
          me.communicator(), hetcomm_buffer_memory(send, 0, bytes),
          hetcomm_buffer_memory(recv, 0, bytes), kType, HETCOMM_REDUCE_SUM, nullptr, &request);
      expect_ok(call, request, "allreduce");
      std::vector<int64_t> got(count);
      ASSERT_EQ(hetcomm_memory_read(recv, 0, got.data(), bytes), HETCOMM_OK);
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], sum(3, i));
      const hetcomm_status_t again = hetcomm_broadcast(
          me.communicator(), 1, hetcomm_buffer_memory(send, 0, bytes), kType, nullptr, &request);
      expect_ok(again, request, "broadcast");
      ASSERT_EQ(hetcomm_memory_read(send, 0, got.data(), bytes), HETCOMM_OK);
      EXPECT_EQ(got, values(1, count));
      EXPECT_EQ(hetcomm_memory_destroy(send), HETCOMM_OK);
      EXPECT_EQ(hetcomm_memory_destroy(recv), HETCOMM_OK);
    }
  });
}

TEST_P(Collectives, InvalidCallsAreRefusedAndLaterOnesSucceed) {
  run(2, [](Member& me) {
    hetcomm_communicator_t* const c = me.communicator();
    hetcomm_request_t* request = nullptr;
    std::vector<int64_t> data(8);
    const hetcomm_buffer_t all = buffer(data);
    const hetcomm_buffer_t half = part(data, 0, 4);
    const auto allreduce = [&](hetcomm_buffer_t send, hetcomm_buffer_t recv, int32_t type,
                               int32_t op, const hetcomm_collective_options_t* options) {
      return hetcomm_allreduce(c, send, recv, type, op, options, &request);
    };
    EXPECT_EQ(allreduce(all, half, kType, 0, nullptr), HETCOMM_INVALID_ARGUMENT);
    EXPECT_EQ(allreduce(all, all, 77, 0, nullptr), HETCOMM_INVALID_ARGUMENT);
    EXPECT_EQ(allreduce(all, all, kType, 9, nullptr), HETCOMM_INVALID_ARGUMENT);
    EXPECT_EQ(allreduce(all, all, HETCOMM_FLOAT32, HETCOMM_REDUCE_AND, nullptr),
              HETCOMM_UNSUPPORTED);
    const hetcomm_buffer_t uneven = hetcomm_buffer_host(data.data(), 7);
    EXPECT_EQ(allreduce(uneven, uneven, kType, 0, nullptr), HETCOMM_INVALID_ARGUMENT);
    const hetcomm_buffer_t null = hetcomm_buffer_host(nullptr, 8);
    EXPECT_EQ(allreduce(null, null, kType, 0, nullptr), HETCOMM_INVALID_ARGUMENT);
    hetcomm_collective_options_t options = no_options();
    options.algorithm = "magic";
    EXPECT_EQ(allreduce(all, all, kType, 0, &options), HETCOMM_UNSUPPORTED);
    EXPECT_NE(std::string(hetcomm_last_error()).find("ring"), std::string::npos);
    options = no_options();
    options.flags = HETCOMM_COLLECTIVE_EXCLUSIVE;
    EXPECT_EQ(allreduce(all, all, kType, 0, &options), HETCOMM_INVALID_ARGUMENT);
    for (const auto& list : {std::vector<int32_t>{0, 0}, std::vector<int32_t>{0, 5},
                             std::vector<int32_t>{1 - me.rank()}}) {
      options = no_options();
      options.ranks = list.data();
      options.rank_count = list.size();
      EXPECT_NE(allreduce(all, all, kType, 0, &options), HETCOMM_OK);
    }
    EXPECT_EQ(hetcomm_alltoall(c, all, all, kType, nullptr, &request), HETCOMM_INVALID_ARGUMENT);
    EXPECT_EQ(hetcomm_alltoall(c, half, part(data, 3, 4), kType, nullptr, &request),
              HETCOMM_INVALID_ARGUMENT);
    hetcomm_memory_t* named = nullptr;  // another name for the same bytes
    ASSERT_EQ(hetcomm_memory_wrap(me.context(), HETCOMM_DEVICE_HOST, data.data(), 32, &named),
              HETCOMM_OK);
    EXPECT_EQ(
        hetcomm_alltoall(c, half, hetcomm_buffer_memory(named, 0, 32), kType, nullptr, &request),
        HETCOMM_INVALID_ARGUMENT);
    EXPECT_EQ(hetcomm_memory_destroy(named), HETCOMM_OK);
    const hetcomm_buffer_t around[] = {part(data, 0, 2), part(data, 6, 2)};
    const hetcomm_buffer_t between[] = {part(data, 2, 2), part(data, 5, 2)};
    EXPECT_EQ(hetcomm_alltoallv(c, around, between, kType, nullptr, &request),
              HETCOMM_INVALID_ARGUMENT);
    // Other operations work in place, but both sides must not overlap in any other way.
    const int32_t root = me.rank();  // nothing is sent: each rank refuses its own call
    const int wrong = HETCOMM_INVALID_ARGUMENT;
    EXPECT_EQ(allreduce(part(data, 0, 4), part(data, 2, 4), kType, 0, nullptr), wrong);
    EXPECT_EQ(allreduce(part(data, 1, 4), part(data, 0, 4), kType, 0, nullptr), wrong);
    EXPECT_EQ(
        hetcomm_reduce(c, root, part(data, 0, 4), part(data, 1, 4), kType, 0, nullptr, &request),
        wrong);
    EXPECT_EQ(hetcomm_scan(c, part(data, 0, 4), part(data, 3, 4), kType, 0, nullptr, &request),
              wrong);
    const uint64_t other = 4 * static_cast<uint64_t>(1 - me.rank());
    EXPECT_EQ(hetcomm_allgather(c, part(data, other, 4), all, kType, nullptr, &request), wrong);
    EXPECT_EQ(hetcomm_gather(c, root, part(data, 2, 4), all, kType, nullptr, &request), wrong);
    EXPECT_EQ(hetcomm_scatter(c, root, all, part(data, other, 4), kType, nullptr, &request), wrong);
    EXPECT_EQ(hetcomm_reduce_scatter(c, all, part(data, 2, 4), kType, 0, nullptr, &request), wrong);
    const hetcomm_buffer_t halves[] = {part(data, 0, 4), part(data, 4, 4)};
    EXPECT_EQ(hetcomm_allgatherv(c, part(data, other, 4), halves, kType, nullptr, &request), wrong);
    EXPECT_EQ(hetcomm_scatterv(c, root, halves, part(data, 2, 4), kType, nullptr, &request), wrong);
    EXPECT_EQ(hetcomm_broadcast(c, 2, all, kType, nullptr, &request), HETCOMM_OUT_OF_RANGE);
    EXPECT_EQ(hetcomm_barrier(nullptr, nullptr, &request), HETCOMM_INVALID_ARGUMENT);
    EXPECT_EQ(hetcomm_barrier(c, nullptr, nullptr), HETCOMM_INVALID_ARGUMENT);
    size_t size = 0;
    EXPECT_EQ(hetcomm_datatype_size(HETCOMM_COMPLEX128, &size), HETCOMM_OK);
    EXPECT_EQ(size, 16u);
    EXPECT_EQ(hetcomm_datatype_size(-1, &size), HETCOMM_INVALID_ARGUMENT);
    // These refusals do not count, and adjacent buffers are accepted.
    const hetcomm_buffer_t apart[] = {part(data, 2, 2), part(data, 4, 2)};
    expect_ok(hetcomm_alltoallv(c, around, apart, kType, nullptr, &request), request, "alltoallv");
    expect_ok(allreduce(all, all, kType, 0, nullptr), request, "allreduce");
    expect_ok(allreduce(half, part(data, 4, 4), kType, 0, nullptr), request, "allreduce");
    const hetcomm_buffer_t mine = halves[me.rank()];
    expect_ok(hetcomm_allgather(c, mine, all, kType, nullptr, &request), request, "allgather");
    expect_ok(hetcomm_allgatherv(c, mine, halves, kType, nullptr, &request), request, "allgatherv");
    expect_ok(hetcomm_reduce_scatter(c, all, mine, kType, 0, nullptr, &request), request,
              "reduce_scatter");
    expect_ok(hetcomm_gather(c, 1, mine, all, kType, nullptr, &request), request, "gather");
    expect_ok(hetcomm_gatherv(c, 0, mine, halves, kType, nullptr, &request), request, "gatherv");
    expect_ok(hetcomm_scatter(c, 0, all, mine, kType, nullptr, &request), request, "scatter");
    expect_ok(hetcomm_scatterv(c, 1, halves, mine, kType, nullptr, &request), request, "scatterv");
  });
}

// Refuses before and after the other ranks have called.
TEST_P(Collectives, RefusalOnOneRankEndsTheCallOnTheOthers) {
  for (const bool late : {false, true}) {
    run(3, [late](Member& me) {
      std::vector<float> values(5, 1.0F);
      const auto sum = [&] {
        hetcomm_request_t* request = nullptr;
        EXPECT_EQ(hetcomm_allreduce(me.communicator(), buffer(values), buffer(values),
                                    HETCOMM_FLOAT32, HETCOMM_REDUCE_SUM, nullptr, &request),
                  HETCOMM_OK);
        return finish(request);
      };
      EXPECT_EQ(sum().status, HETCOMM_OK);
      // A refusal also ends earlier operations on ranks that have not completed them.
      me.meet();
      if (late == (me.rank() == 1)) usleep(50'000);
      if (me.rank() == 1) {
        EXPECT_EQ(hetcomm_collective_refuse(me.communicator(), "a result\nof no use"), HETCOMM_OK);
        me.meet();
      } else {
        const uint64_t start = clock_ns();
        const Outcome outcome = sum();
        EXPECT_LT(clock_ns() - start, 10 * kSec);
        EXPECT_EQ(outcome.status, HETCOMM_MISMATCH) << outcome.text;
        EXPECT_NE(outcome.text.find("rank 1 does not take part in operation #2"), std::string::npos)
            << outcome.text;
        EXPECT_NE(outcome.text.find("a result\\x0aof no use"), std::string::npos) << outcome.text;
        me.meet();
      }
      if (me.test_case().settings.find("COLLECTIVE_CHECK=0") == std::string::npos) {
        // The call fails even if rank 1 has not learned of the refusal.
        hetcomm_request_t* request = nullptr;
        EXPECT_EQ(hetcomm_barrier(me.communicator(), nullptr, &request), HETCOMM_OK);
        EXPECT_EQ(finish(request).status, HETCOMM_MISMATCH);
      } else {
        EXPECT_EQ(first_failure(me.communicator()).status, HETCOMM_MISMATCH);
      }
      me.meet();
    });
  }
}

TEST_P(Collectives, CallRefusedOnAllRanksHasNoEffect) {
  run(3, [](Member& me) {
    std::vector<float> values(5, 1.0F);
    for (int round = 0; round < 50; ++round) {
      for (int i = 0; i < round % 4; ++i) {
        // The ranks refuse at different times.
        if (round % 3 == me.rank()) usleep(300);
        EXPECT_EQ(hetcomm_collective_refuse(me.communicator(), "as everybody"), HETCOMM_OK);
      }
      hetcomm_request_t* request = nullptr;
      ASSERT_EQ(hetcomm_allreduce(me.communicator(), buffer(values), buffer(values),
                                  HETCOMM_FLOAT32, HETCOMM_REDUCE_MAX, nullptr, &request),
                HETCOMM_OK);
      const Outcome outcome = finish(request);
      ASSERT_EQ(outcome.status, HETCOMM_OK) << round << ": " << outcome.text;
    }
    me.meet();
    // One rank refuses once more than the other ranks.
    for (int i = 0; i < (me.rank() == 2 ? 2 : 1); ++i) {
      EXPECT_EQ(hetcomm_collective_refuse(me.communicator(), "once too often"), HETCOMM_OK);
    }
    if (me.rank() != 2) {
      hetcomm_request_t* request = nullptr;
      ASSERT_EQ(hetcomm_allreduce(me.communicator(), buffer(values), buffer(values),
                                  HETCOMM_FLOAT32, HETCOMM_REDUCE_MAX, nullptr, &request),
                HETCOMM_OK);
      const Outcome outcome = finish(request);
      EXPECT_EQ(outcome.status, HETCOMM_MISMATCH) << outcome.text;
    }
    me.meet();
  });
}

INSTANTIATE_TEST_SUITE_P(All, Collectives, ::testing::ValuesIn(collective_cases(false)),
                         capi_case_name);

// Messages carry 16 bits of their operation's number, and the ranks remember some numbers. Here one
// rank is so far ahead that its 16 bits name another operation on the other rank.
class CollectivesFarAhead : public ::testing::Test {
 protected:
  static CapiCase over() {
    return {.name = "tcp",
            .transports = "tcp",
            .settings = "CREDIT_BYTES=64M;",
            .thread_progress = true};
  }
  // Runs broadcasts from rank 0 in sequence.
  static void broadcast(Member& me, uint64_t count) {
    for (uint64_t i = 0; i < count && !::testing::Test::HasFailure(); ++i) {
      uint64_t value = me.rank() == 0 ? i : ~uint64_t{0};
      hetcomm_request_t* request = nullptr;
      const hetcomm_status_t call = start(me, &value, &request);
      expect_ok(call, request, "broadcast");
      EXPECT_EQ(value, i);
    }
  }
  static hetcomm_status_t start(Member& me, uint64_t* value, hetcomm_request_t** request) {
    return hetcomm_broadcast(me.communicator(), 0, hetcomm_buffer_host(value, sizeof(*value)),
                             HETCOMM_UINT64, nullptr, request);
  }
  // Waits until disputes are over: a rank that believes that another rank differs reports it after
  // a second.
  static void wait_for_disputes(Member& me) {
    me.meet();
    me.until([] { return false; }, 3 * kSec / 2);
  }
};

TEST_F(CollectivesFarAhead, RootCanRunThousandsOfCallsAhead) {
  run_job(over(), 2, [](Member& me) {
    constexpr uint64_t kAhead = 66'000;
    broadcast(me, 100);
    me.meet();
    if (me.rank() == 0) broadcast(me, kAhead);
    wait_for_disputes(me);
    if (me.rank() == 1) broadcast(me, kAhead);
    me.meet();
  });
}

TEST_F(CollectivesFarAhead, ReceiverCanRunThousandsOfCallsAhead) {
  run_job(over(), 2, [](Member& me) {
    constexpr size_t kAhead = 33'000;
    std::vector<uint64_t> values(kAhead);
    std::vector<hetcomm_request_t*> requests(kAhead);
    if (me.rank() == 1) {
      for (size_t i = 0; i < kAhead; ++i) {
        EXPECT_EQ(start(me, &values[i], &requests[i]), HETCOMM_OK) << hetcomm_last_error();
      }
    }
    me.meet();
    if (me.rank() == 0) broadcast(me, kAhead);
    if (me.rank() == 1) finish_all(requests);
    broadcast(me, kAhead);
    wait_for_disputes(me);
    broadcast(me, 1);
    me.meet();
  });
}

class CollectiveLoss : public CapiTest {};

// A rank is killed in the middle of many operations.
TEST_P(CollectiveLoss, KilledRankFailsAllreduceWithPeerLost) {
  for (const size_t count : {1u, 200'000u}) {
    run(3, [count](Member& me) {
      std::vector<int64_t> data(count, 1);
      uint64_t start = clock_ns();
      Outcome outcome;
      for (int i = 0; i < 1'000'000; ++i) {
        hetcomm_request_t* request = nullptr;
        ASSERT_EQ(hetcomm_allreduce(me.communicator(), buffer(data), buffer(data), kType,
                                    HETCOMM_REDUCE_MAX, nullptr, &request),
                  HETCOMM_OK);
        if (me.rank() == 2 && clock_ns() - start > 100 * kMs) me.die();
        outcome = finish(request);
        if (outcome.status != HETCOMM_OK) break;
        if (clock_ns() - start > 15 * kSec) break;
      }
      EXPECT_EQ(outcome.status, HETCOMM_PEER_LOST) << outcome.text;
      // The loss of the rank may have been detected between two operations.
      const char* const named = outcome.text.find("failed before") == std::string::npos
                                    ? "allreduce"
                                    : "rank 2 is missing";
      EXPECT_NE(outcome.text.find(named), std::string::npos) << outcome.text;
      start = clock_ns();
      hetcomm_request_t* request = nullptr;
      ASSERT_EQ(hetcomm_barrier(me.communicator(), nullptr, &request), HETCOMM_OK);
      EXPECT_EQ(finish(request).status, HETCOMM_PEER_LOST);
      EXPECT_LT(clock_ns() - start, 10 * kSec);
      me.store().word(9).fetch_add(1);
      EXPECT_TRUE(me.until([&] { return me.store().word(9).load() == 2; }));
    });
  }
}

// The other ranks wait for a stalled rank until the deadline.
TEST_P(CollectiveLoss, BarrierWithAStalledRankTimesOut) {
  run(2, [](Member& me) {
    hetcomm_communicator_t* const c = me.communicator();
    hetcomm_request_t* request = nullptr;
    expect_ok(hetcomm_barrier(c, nullptr, &request), request, "barrier");
    if (me.rank() == 1) {
      me.store().word(8).store(static_cast<uint64_t>(getpid()));
      raise(SIGSTOP);
    } else {
      EXPECT_TRUE(me.until([&] { return me.store().word(8).load() != 0; }));
      usleep(20'000);
      const auto peer = static_cast<pid_t>(me.store().word(8).load());
      hetcomm_collective_options_t options = no_options();
      options.timeout_ns = 300 * kMs;
      const uint64_t start = clock_ns();
      ASSERT_EQ(hetcomm_barrier(c, &options, &request), HETCOMM_OK);
      const Outcome outcome = finish(request);
      EXPECT_EQ(outcome.status, HETCOMM_TIMED_OUT) << outcome.text;
      EXPECT_NE(outcome.text.find("rank 1"), std::string::npos) << outcome.text;
      EXPECT_LT(clock_ns() - start, 10 * kSec);
      kill(peer, SIGCONT);
    }
    me.meet();
    EXPECT_EQ(first_failure(c).status, HETCOMM_ABORTED);
    me.meet();
  });
}

INSTANTIATE_TEST_SUITE_P(All, CollectiveLoss, ::testing::ValuesIn(collective_cases(true)),
                         capi_case_name);
INSTANTIATE_TEST_SUITE_P(Processes, Collectives, ::testing::ValuesIn(collective_cases(true)),
                         capi_case_name);

}  // namespace
}  // namespace hetcomm_test
