// Collective operations whose number of ranks is not a power of two or exceeds the first word of a
// table. The ranks are threads of one process, connected through shared memory and by messages.
//
//   * with 9 and 17 ranks every operation gives its defined result, out of place and if possible in
//     place, for lengths that are not multiples of the number of ranks, for elements of one and
//     eight bytes, from a few bytes up to several chunks; nothing outside a result is written
//   * with more than 64 ranks a barrier waits for all and results are right; sleeping ranks are
//     woken
#include <algorithm>

#include "tests/conformance/capi/collective/collective.h"

namespace hetcomm_test {
namespace {

template <typename T>
constexpr hetcomm_datatype_t kTypeOf = sizeof(T) == 1 ? HETCOMM_UINT8 : HETCOMM_INT64;

// Returns the number of barriers of this thread's rank so far, including the one that it has just
// left.
uint64_t count_barrier() {
  static thread_local uint64_t count = 0;
  return ++count;
}

// Calls the operations on one rank, with parts of about |count| elements each, and checks them.
template <typename T>
class Operations {
 public:
  using Elements = std::vector<T>;

  Operations(Member& me, size_t count)
      : me_(me),
        c_(me.communicator()),
        n_(static_cast<size_t>(me.size())),
        own_(static_cast<size_t>(me.rank())),
        count_(count) {}

  void run_all() {
    barrier();
    for (const size_t root : {size_t{1}, n_ - 1}) {
      root_ = root;
      broadcast();
      reduce();
      gather();
      gatherv();
      scatter();
      scatterv();
    }
    allreduce();
    scan();
    allgather();
    allgatherv();
    reduce_scatter();
    reduce_scatterv();
    alltoall();
    alltoallv();
  }

  void barrier() {
    std::atomic<uint64_t>& came = me_.store().word(1);
    came.fetch_add(1);
    call("barrier", hetcomm_barrier(c_, nullptr, &request_));
    EXPECT_GE(came.load(), count_barrier() * n_) << "a rank has not called the barrier yet";
  }

  void broadcast() {
    Elements got = at_root() ? of(root_, count_) : blank(count_);
    call("broadcast", hetcomm_broadcast(c_, root(), buffer(got), kType, nullptr, &request_));
    check("broadcast", got, of(root_, count_));
  }

  void allreduce() {
    const Elements mine = of(own_, count_);
    Elements got = blank(count_);
    call("allreduce", hetcomm_allreduce(c_, buffer(mine), buffer(got), kType, HETCOMM_REDUCE_SUM,
                                        nullptr, &request_));
    check("allreduce", got, sums(n_, 0, count_));
    got = mine;
    call("allreduce in place", hetcomm_allreduce(c_, buffer(got), buffer(got), kType,
                                                 HETCOMM_REDUCE_SUM, nullptr, &request_));
    check("allreduce in place", got, sums(n_, 0, count_));
  }

  void allgather() {
    const Elements mine = of(own_, count_);
    Elements right;
    for (size_t r = 0; r < n_; ++r) append(right, of(r, count_));
    Elements got = blank(count_ * n_);
    call("allgather", hetcomm_allgather(c_, buffer(mine), buffer(got), kType, nullptr, &request_));
    check("allgather", got, right);
    got = blank(count_ * n_);
    put(got, own_ * count_, mine);
    call("allgather in place", hetcomm_allgather(c_, part(got, own_ * count_, count_), buffer(got),
                                                 kType, nullptr, &request_));
    check("allgather in place", got, right);
  }

 private:
  static constexpr hetcomm_datatype_t kType = kTypeOf<T>;
  // Lies between parts that have their own buffers. A write to it is detected.
  static constexpr size_t kGap = 3;
  static constexpr T kBlank = 0x5b;

  struct Parts {
    Elements all;
    std::vector<size_t> starts;
    std::vector<hetcomm_buffer_t> buffers;
  };

  bool at_root() const { return own_ == root_; }
  int32_t root() const { return static_cast<int32_t>(root_); }
  static T element(size_t rank, size_t index) {
    return static_cast<T>(value(static_cast<int32_t>(rank), index));
  }
  static Elements of(size_t rank, size_t count, size_t first = 0) {
    Elements all(count);
    for (size_t i = 0; i < count; ++i) all[i] = element(rank, first + i);
    return all;
  }
  static Elements blank(size_t count) { return Elements(count, kBlank); }
  // Returns the sums of the first |ranks| ranks' elements.
  static Elements sums(size_t ranks, size_t first, size_t count) {
    Elements all(count);
    for (size_t r = 0; r < ranks; ++r) {
      for (size_t i = 0; i < count; ++i) all[i] = static_cast<T>(all[i] + element(r, first + i));
    }
    return all;
  }
  static void append(Elements& all, const Elements& more) {
    all.insert(all.end(), more.begin(), more.end());
  }
  static void put(Elements& all, size_t at, const Elements& what) {
    std::copy(what.begin(), what.end(), all.begin() + static_cast<ptrdiff_t>(at));
  }

  // Returns lengths that all ranks know. Some are zero, and no two neighbours are equal.
  size_t length(size_t rank) const { return (rank * 5 + 3) % 7 * count_ / 3; }
  // Returns lengths that two ranks know.
  size_t length(size_t from, size_t to) const { return (from * 3 + to * 5) % 4 * count_ / 2; }
  // Returns the index of rank |rank|'s first element in the elements for all ranks.
  size_t start(size_t rank) const {
    size_t at = 0;
    for (size_t r = 0; r < rank; ++r) at += length(r);
    return at;
  }
  template <typename Length>
  Parts parts(Length&& length_of) const {
    Parts made;
    size_t at = 0;
    for (size_t r = 0; r < n_; ++r) {
      made.starts.push_back(at);
      at += length_of(r) + kGap;
    }
    made.all = blank(at);
    for (size_t r = 0; r < n_; ++r) {
      made.buffers.push_back(part(made.all, made.starts[r], length_of(r)));
    }
    return made;
  }

  void call(const char* what, hetcomm_status_t status) { expect_ok(status, request_, what); }
  void check(const char* what, const Elements& got, const Elements& right) const {
    ASSERT_EQ(got.size(), right.size());
    const auto [bad, wanted] = std::mismatch(got.begin(), got.end(), right.begin());
    if (bad == got.end()) return;
    ADD_FAILURE() << what << " of " << n_ << " ranks, parts of " << count_ << ", rank " << own_
                  << ": element " << bad - got.begin() << " is " << int64_t{*bad} << ", not "
                  << int64_t{*wanted};
  }
  template <typename Right>
  void check_parts(const char* what, const Parts& got, Right&& right) const {
    Elements all = blank(got.all.size());
    for (size_t r = 0; r < n_; ++r) put(all, got.starts[r], right(r));
    check(what, got.all, all);
  }

  void reduce() {
    const Elements mine = of(own_, count_);
    Elements got = blank(count_);
    call("reduce", hetcomm_reduce(c_, root(), buffer(mine), buffer(got), kType, HETCOMM_REDUCE_SUM,
                                  nullptr, &request_));
    check("reduce", got, at_root() ? sums(n_, 0, count_) : blank(count_));
    got = mine;
    call("reduce in place", hetcomm_reduce(c_, root(), buffer(got), buffer(got), kType,
                                           HETCOMM_REDUCE_SUM, nullptr, &request_));
    check("reduce in place", got, at_root() ? sums(n_, 0, count_) : mine);
  }

  void gather() {
    const Elements mine = of(own_, count_);
    Elements right = blank(count_ * n_);
    for (size_t r = 0; r < n_ && at_root(); ++r) put(right, r * count_, of(r, count_));
    Elements got = blank(count_ * n_);
    call("gather",
         hetcomm_gather(c_, root(), buffer(mine), buffer(got), kType, nullptr, &request_));
    check("gather", got, right);
    got = blank(count_ * n_);
    if (at_root()) put(got, own_ * count_, mine);
    const hetcomm_buffer_t send = at_root() ? part(got, own_ * count_, count_) : buffer(mine);
    call("gather in place",
         hetcomm_gather(c_, root(), send, buffer(got), kType, nullptr, &request_));
    check("gather in place", got, right);
  }

  void gatherv() {
    const Elements mine = of(own_, length(own_));
    const auto length_of = [this](size_t r) { return length(r); };
    const auto right = [this](size_t r) { return at_root() ? of(r, length(r)) : blank(length(r)); };
    Parts got = parts(length_of);
    call("gatherv",
         hetcomm_gatherv(c_, root(), buffer(mine), got.buffers.data(), kType, nullptr, &request_));
    check_parts("gatherv", got, right);
    got = parts(length_of);
    if (at_root()) put(got.all, got.starts[own_], mine);
    const hetcomm_buffer_t send = at_root() ? got.buffers[own_] : buffer(mine);
    call("gatherv in place",
         hetcomm_gatherv(c_, root(), send, got.buffers.data(), kType, nullptr, &request_));
    check_parts("gatherv in place", got, right);
  }

  void scatter() {
    Elements all = of(own_, count_ * n_);
    Elements got = blank(count_);
    call("scatter",
         hetcomm_scatter(c_, root(), buffer(all), buffer(got), kType, nullptr, &request_));
    check("scatter", got, of(root_, count_, own_ * count_));
    got = blank(count_);
    const hetcomm_buffer_t receive = at_root() ? part(all, own_ * count_, count_) : buffer(got);
    call("scatter in place",
         hetcomm_scatter(c_, root(), buffer(all), receive, kType, nullptr, &request_));
    check("scatter in place", got, at_root() ? blank(count_) : of(root_, count_, own_ * count_));
    check("scatter in place: what is sent", all, of(own_, count_ * n_));
  }

  void scatterv() {
    const auto length_of = [this](size_t r) { return length(r); };
    Parts all = parts(length_of);
    for (size_t r = 0; r < n_; ++r) put(all.all, all.starts[r], of(own_, length(r), start(r)));
    const Elements right = of(root_, length(own_), start(own_));
    Elements got = blank(length(own_));
    call("scatterv",
         hetcomm_scatterv(c_, root(), all.buffers.data(), buffer(got), kType, nullptr, &request_));
    check("scatterv", got, right);
    got = blank(length(own_));
    const hetcomm_buffer_t receive = at_root() ? all.buffers[own_] : buffer(got);
    call("scatterv in place",
         hetcomm_scatterv(c_, root(), all.buffers.data(), receive, kType, nullptr, &request_));
    check("scatterv in place", got, at_root() ? blank(length(own_)) : right);
  }

  void scan() {
    const Elements mine = of(own_, count_);
    hetcomm_collective_options_t exclusive = no_options();
    exclusive.flags = HETCOMM_COLLECTIVE_EXCLUSIVE;
    for (const hetcomm_collective_options_t* options :
         {static_cast<hetcomm_collective_options_t*>(nullptr), &exclusive}) {
      const size_t ranks = options == nullptr ? own_ + 1 : own_;
      Elements got = blank(count_);
      call("scan", hetcomm_scan(c_, buffer(mine), buffer(got), kType, HETCOMM_REDUCE_SUM, options,
                                &request_));
      check("scan", got, ranks == 0 ? blank(count_) : sums(ranks, 0, count_));
      got = mine;
      call("scan in place", hetcomm_scan(c_, buffer(got), buffer(got), kType, HETCOMM_REDUCE_SUM,
                                         options, &request_));
      check("scan in place", got, ranks == 0 ? mine : sums(ranks, 0, count_));
    }
  }

  void allgatherv() {
    const Elements mine = of(own_, length(own_));
    const auto length_of = [this](size_t r) { return length(r); };
    const auto right = [this](size_t r) { return of(r, length(r)); };
    Parts got = parts(length_of);
    call("allgatherv",
         hetcomm_allgatherv(c_, buffer(mine), got.buffers.data(), kType, nullptr, &request_));
    check_parts("allgatherv", got, right);
    got = parts(length_of);
    put(got.all, got.starts[own_], mine);
    call("allgatherv in place",
         hetcomm_allgatherv(c_, got.buffers[own_], got.buffers.data(), kType, nullptr, &request_));
    check_parts("allgatherv in place", got, right);
  }

  void reduce_scatter() {
    Elements all = of(own_, count_ * n_);
    const Elements right = sums(n_, own_ * count_, count_);
    Elements got = blank(count_);
    call("reduce_scatter", hetcomm_reduce_scatter(c_, buffer(all), buffer(got), kType,
                                                  HETCOMM_REDUCE_SUM, nullptr, &request_));
    check("reduce_scatter", got, right);
    call("reduce_scatter in place",
         hetcomm_reduce_scatter(c_, buffer(all), part(all, own_ * count_, count_), kType,
                                HETCOMM_REDUCE_SUM, nullptr, &request_));
    Elements after = of(own_, count_ * n_);
    put(after, own_ * count_, right);
    check("reduce_scatter in place", all, after);
  }

  void reduce_scatterv() {
    const auto length_of = [this](size_t r) { return length(r); };
    Parts all = parts(length_of);
    for (size_t r = 0; r < n_; ++r) put(all.all, all.starts[r], of(own_, length(r), start(r)));
    const Elements right = sums(n_, start(own_), length(own_));
    Elements got = blank(length(own_));
    call("reduce_scatterv", hetcomm_reduce_scatterv(c_, all.buffers.data(), buffer(got), kType,
                                                    HETCOMM_REDUCE_SUM, nullptr, &request_));
    check("reduce_scatterv", got, right);
    call("reduce_scatterv in place",
         hetcomm_reduce_scatterv(c_, all.buffers.data(), all.buffers[own_], kType,
                                 HETCOMM_REDUCE_SUM, nullptr, &request_));
    check_parts("reduce_scatterv in place", all,
                [&](size_t r) { return r == own_ ? right : of(own_, length(r), start(r)); });
  }

  void alltoall() {
    const Elements all = of(own_, count_ * n_);
    Elements right;
    for (size_t r = 0; r < n_; ++r) append(right, of(r, count_, own_ * count_));
    Elements got = blank(count_ * n_);
    call("alltoall", hetcomm_alltoall(c_, buffer(all), buffer(got), kType, nullptr, &request_));
    check("alltoall", got, right);
  }

  void alltoallv() {
    Parts all = parts([this](size_t to) { return length(own_, to); });
    for (size_t to = 0; to < n_; ++to) put(all.all, all.starts[to], of(own_, length(own_, to), to));
    Parts got = parts([this](size_t from) { return length(from, own_); });
    call("alltoallv",
         hetcomm_alltoallv(c_, all.buffers.data(), got.buffers.data(), kType, nullptr, &request_));
    check_parts("alltoallv", got,
                [this](size_t from) { return of(from, length(from, own_), own_); });
  }

  Member& me_;
  hetcomm_communicator_t* const c_;
  const size_t n_;
  const size_t own_;
  const size_t count_;
  size_t root_ = 0;
  hetcomm_request_t* request_ = nullptr;
};

class ManyRanks : public CapiTest {};

TEST_P(ManyRanks, NineAndSeventeenRanksGetCorrectResults) {
  for (const int32_t n : {9, 17}) {
    // Over tcp only the grouping of ranks matters, and nine ranks already make uneven groups.
    if (n == 17 && GetParam().clusters > 0) break;
    run(n, [](Member& me) {
      for (const size_t count : {1u, 101u, 5'003u}) {
        Operations<int64_t>(me, count).run_all();
        Operations<uint8_t>(me, count + 2).run_all();
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, ManyRanks,
    ::testing::Values(
        CapiCase{.name = "shm", .transports = "shm", .settings = ""},
        CapiCase{.name = "shm_messages", .transports = "shm", .settings = "COLLECTIVE_SHARED=0;"},
        CapiCase{.name = "tcp_clusters", .transports = "tcp", .settings = "", .clusters = 4}),
    capi_case_name);

class VeryManyRanks : public CapiTest {};

TEST_P(VeryManyRanks, SixtySixRanksGetCorrectResultsAndWakeFromSleep) {
  run(66, [](Member& me) {
    for (const size_t count : {1u, 701u}) {
      Operations<int64_t> operations(me, count);
      operations.broadcast();
      operations.barrier();
      operations.allreduce();
      operations.allgather();
    }
    // The other ranks are asleep by now, including those in the last word of the table.
    for (int round = 0; round < 3; ++round) {
      std::atomic<uint64_t>& called = me.store().word(2);
      if (me.rank() == 0) {
        usleep(100'000);
        called.store(clock_ns());
      }
      Operations<int64_t>(me, 1).barrier();
      EXPECT_LT(clock_ns() - called.load(), 5 * kSec) << "it was not woken";
      ASSERT_TRUE(me.meet());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, VeryManyRanks,
                         ::testing::Values(CapiCase{.name = "shm",
                                                    .transports = "shm",
                                                    .settings = "DETECTION_TIME=30s;"}),
                         capi_case_name);

}  // namespace
}  // namespace hetcomm_test
