// Exchanges by groups of ranks, over the store, from the environment's bootstrap and by put and
// get:
//  * blocks, their leaders and a broadcast to all ranks exchange values in one scope concurrently;
//    groups may have one rank, and may overlap in different scopes;
//  * a rank missing from a group is named, by its rank in the job, to all members of the group and
//    to no other rank; a member that dies may reconnect, and one that does not is named at the
//    deadline;
//  * ranks that disagree on whether there are groups fail immediately with one text, and so do
//    ranks that arrive later; an unused scope is discarded;
//  * a broadcast costs one value per rank, and only the first rank sends one;
//  * no group member is outside the job, whatever a frame claims;
//  * by put and get, leaders put only their own value, differing block secrets are detected, and a
//    random key remains until the last block has read it.
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/bootstrap/bootstrap.h"
#include "src/bootstrap/store.h"
#include "src/bootstrap/store_finder.h"
#include "src/bootstrap/store_table.h"
#include "src/capi/variables.h"
#include "src/net/key.h"
#include "src/system/clock.h"
#include "tests/support/callback_world.h"

namespace hetcomm {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Values = std::vector<std::vector<std::byte>>;
constexpr uint64_t kSecond = 1'000'000'000;

uint64_t in(uint64_t seconds) { return now_ns() + seconds * kSecond; }

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> value_of(int rank) { return bytes_of(fmt::format("value of {}", rank)); }

// Returns the values of |group|'s members, in order.
Values values_of(const RankGroup& group) {
  Values values;
  for (int index = 0; index < group.count; ++index) values.push_back(value_of(group.rank(index)));
  return values;
}

// Returns |rank|'s block in a job of |size| ranks.
RankGroup block_of(int rank, int size, int block) {
  const int first = rank / block * block;
  return {.first = first, .step = 1, .count = std::min(block, size - first)};
}

RankGroup leaders_of(int size, int block) {
  return {.first = 0, .step = block, .count = (size + block - 1) / block};
}

// Runs |body| for each of |ranks| on its own thread.
void run_ranks(const std::vector<int>& ranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (const int rank : ranks) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

std::vector<int> ranks_up_to(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) ranks[static_cast<size_t>(rank)] = rank;
  return ranks;
}

class StoreGroupsTest : public testing::Test {
 protected:
  StoreGroupsTest() {
    log_.set_level(LogLevel::kError);
    const Address address = Address::parse_numeric("127.0.0.1", 0).value();
    auto server = StoreServer::start(log_, {.credentials = credentials_,
                                            .job_key = {},
                                            .hosts = {address},
                                            .ports = {0},
                                            .bounds = {},
                                            .tls = {}});
    EXPECT_TRUE(server.ok()) << server.status().text();
    server_ = std::move(server).value();
  }
  StoreClient::Options options(int rank) const {
    return {.credentials = credentials_, .rank = rank, .addresses = {server_->address()}};
  }
  // Returns the values that |rank| receives in group |group|, which has |size| ranks.
  Result<Values> gather(StoreClient& client, int rank, const RankGroup& group, int size,
                        const std::string& scope = "scope", uint64_t deadline_ns = in(30)) {
    return client.gather(scope, rank, Members::of(group, size), value_of(rank), deadline_ns);
  }

  Log log_;
  const Credentials credentials_{.identity = identity_of("job", "store", 0),
                                 .secret = secret_from(bytes_of("s"))};
  std::unique_ptr<StoreServer> server_;
};

TEST_F(StoreGroupsTest, BlockLeaderAndBroadcastExchangesShareOneScope) {
  for (const auto& [size, block] : {std::pair{12, 4}, {11, 4}, {9, 8}, {5, 1000}}) {
    const std::string scope = fmt::format("{} in blocks of {}", size, block);
    run_ranks(ranks_up_to(size), [&, size = size, block = block](int rank) {
      StoreClient client(log_, options(rank));
      const RankGroup mine = block_of(rank, size, block);
      const Result<Values> values = gather(client, rank, mine, size, scope);
      ASSERT_TRUE(values.ok()) << values.status().text();
      EXPECT_EQ(values.value(), values_of(mine));
      const RankGroup leaders = leaders_of(size, block);
      if (leaders.has(rank)) {
        const Result<Values> led = gather(client, rank, leaders, size, scope);
        ASSERT_TRUE(led.ok()) << led.status().text();
        EXPECT_EQ(led.value(), values_of(leaders));
      }
      const auto told =
          client.broadcast(scope, rank, Members::of({.count = size}, size), value_of(rank), in(30));
      ASSERT_TRUE(told.ok()) << told.status().text();
      EXPECT_EQ(told.value(), value_of(0));
    });
  }
}

TEST_F(StoreGroupsTest, GroupOfOneRankGetsItsOwnValue) {
  run_ranks(ranks_up_to(3), [&](int rank) {
    StoreClient client(log_, options(rank));
    const RankGroup mine{.first = rank, .step = 1, .count = 1};
    EXPECT_EQ(gather(client, rank, mine, 3).value(), values_of(mine));
    EXPECT_EQ(client.broadcast("scope", rank, Members::of(mine, 3), value_of(rank), in(30)).value(),
              value_of(rank));
  });
}

TEST_F(StoreGroupsTest, OverlappingGroupsExchangeConcurrently) {
  run_ranks(ranks_up_to(6), [&](int rank) {
    StoreClient client(log_, options(rank));
    for (int first = 0; first + 3 <= 6; ++first) {
      const RankGroup group{.first = first, .step = 1, .count = 3};
      if (!group.has(rank)) continue;
      const auto values = gather(client, rank, group, 6, fmt::format("from {}", first));
      ASSERT_TRUE(values.ok()) << values.status().text();
      EXPECT_EQ(values.value(), values_of(group));
    }
  });
}

TEST_F(StoreGroupsTest, MissingRankIsReportedOnlyToItsGroup) {
  run_ranks({0, 1, 2, 3, 4, 7, 8, 9, 10, 11}, [&](int rank) {
    StoreClient client(log_, options(rank));
    const RankGroup mine = block_of(rank, 12, 4);
    const auto values = gather(client, rank, mine, 12, "scope", in(1));
    EXPECT_EQ(values.ok(), mine.first != 4);
    if (values.ok()) return;
    EXPECT_THAT(std::string(values.status().text()), HasSubstr("ranks 5-6 of 12 did not join"));
  });
  // The second block's leader is one of three group members.
  run_ranks({0, 8}, [&](int rank) {
    StoreClient client(log_, options(rank));
    const auto values = gather(client, rank, leaders_of(12, 4), 12, "leaders", in(1));
    ASSERT_FALSE(values.ok());
    EXPECT_THAT(std::string(values.status().text()), HasSubstr("rank 4 of 12 did not join"));
  });
  run_ranks({0, 2}, [&](int rank) {
    StoreClient client(log_, options(rank));
    const auto told = client.broadcast("told", rank, Members::all(3), value_of(rank), in(1));
    ASSERT_FALSE(told.ok());
    EXPECT_THAT(std::string(told.status().text()), HasSubstr("rank 1 of 3 did not join"));
  });
}

// The member dies while it waits in the group. Another process may then take its place.
TEST_F(StoreGroupsTest, DeadMemberIsReplacedOrReportedMissing) {
  for (const bool comes_again : {true, false}) {
    const std::string scope = comes_again ? "again" : "gone";
    const RankGroup group{.first = 2, .step = 2, .count = 2};
    {
      Result<FoundStore> socket = find_store(log_, options(4), in(10));
      ASSERT_TRUE(socket.ok());
      const std::vector<std::byte> frame = encode_request({.operation = StoreOperation::kGather,
                                                           .rank = 1,
                                                           .size = 2,
                                                           .timeout_ns = 10 * kSecond,
                                                           .first = 2,
                                                           .step = 2,
                                                           .ranks = 6,
                                                           .form = ExchangeForm::kGroups,
                                                           .key = scope,
                                                           .value = bytes_of("old")});
      ASSERT_EQ(::send(socket->socket.get(), frame.data(), frame.size(), 0),
                static_cast<ssize_t>(frame.size()));
      usleep(100'000);
    }
    usleep(100'000);
    run_ranks(comes_again ? std::vector{2, 4} : std::vector{2}, [&](int rank) {
      StoreClient client(log_, options(rank));
      const auto values = gather(client, rank, group, 6, scope, in(comes_again ? 20 : 1));
      ASSERT_EQ(values.ok(), comes_again) << values.status().text();
      if (comes_again) {
        EXPECT_EQ(values.value(), values_of(group));
      } else {
        EXPECT_THAT(std::string(values.status().text()), HasSubstr("rank 4 of 6 did not join"));
      }
    });
  }
}

// Ranks 0 and 1 of four treat the job as small, or only the last rank does.
TEST_F(StoreGroupsTest, DisagreementOnGroupsFailsOnEveryRank) {
  for (const std::set<int>& small : {std::set<int>{0, 1}, {3}, {1, 2, 3}}) {
    const std::string scope = fmt::format("scope {}", small.size());
    const uint64_t before = now_ns();
    std::mutex mutex;
    std::set<std::string> texts;
    run_ranks(ranks_up_to(4), [&](int rank) {
      StoreClient client(log_, options(rank));
      Status status;
      if (small.contains(rank)) {
        status = client.gather(scope, 4, value_of(rank), in(30)).status();
      } else {
        // A failure in a rank's block does not exclude the rank from later exchanges.
        (void)gather(client, rank, block_of(rank, 4, 2), 4, scope);
        if (rank % 2 == 0) (void)gather(client, rank, leaders_of(4, 2), 4, scope);
        status = client.broadcast(scope, rank, Members::of({.count = 4}, 4), value_of(rank), in(30))
                     .status();
      }
      EXPECT_FALSE(status.ok());
      const std::lock_guard<std::mutex> lock(mutex);
      texts.insert(std::string(status.text()));
    });
    EXPECT_LT(now_ns() - before, 10 * kSecond);
    ASSERT_EQ(texts.size(), 1u) << testing::PrintToString(texts);
    EXPECT_THAT(*texts.begin(),
                AllOf(HasSubstr("the ranks disagree on how large a job is: rank "),
                      HasSubstr(fmt::format("'{}'", scope)), HasSubstr("HETCOMM_SMALL_JOB")));
    // A late rank receives the same error.
    StoreClient late(log_, options(2));
    EXPECT_EQ(gather(late, 2, block_of(2, 4, 2), 4, scope).status().text(), *texts.begin());
  }
}

class CountingSink final : public ReplySink {
 public:
  void on_exchanged(ClientId /*client*/) override {}
  void send_reply(ClientId /*client*/, const Frame& frame) override {
    ++count;
    bytes += frame->size();
    last = decode_reply(ConstByteSpan(*frame).subspan(kFrameHeaderBytes)).status();
  }
  size_t count = 0;
  size_t bytes = 0;
  Status last;
};

StoreRequest request_of(StoreOperation operation, const RankGroup& group, int place,
                        ExchangeForm form, size_t bytes = 0) {
  return {.operation = operation,
          .rank = place,
          .size = group.count,
          .timeout_ns = 10,
          .first = group.first,
          .step = group.step,
          .ranks = 64,
          .form = form,
          .key = "scope",
          .value = std::vector<std::byte>(bytes)};
}

// Unlike an allgather, whose bytes grow with the square of the number of ranks, a broadcast grows
// linearly.
TEST(StoreTableGroupsTest, BroadcastSendsOneValuePerRank) {
  constexpr size_t kBytes = 1000;
  CountingSink sink;
  StoreTable table({}, sink);
  size_t asked = 0;
  for (int rank = 63; rank >= 0; --rank) {
    const StoreRequest request = request_of(StoreOperation::kBroadcast, {.count = 64}, rank,
                                            ExchangeForm::kWhole, rank == 0 ? kBytes : 0);
    asked += encode_request(request).size();
    EXPECT_TRUE(table.handle(static_cast<ClientId>(rank + 1), "a", request, 0));
  }
  EXPECT_EQ(sink.count, 64u);
  EXPECT_TRUE(sink.last.ok());
  EXPECT_EQ(sink.bytes, 64 * (kBytes + kFrameHeaderBytes + sizeof(int32_t)));
  EXPECT_LT(asked, kBytes + 64 * 100);
}

TEST(StoreTableGroupsTest, DisagreementOnTheGroupIsReported) {
  CountingSink sink;
  StoreTable table({}, sink);
  const auto ask = [&](ClientId client, StoreOperation operation, int count, int place) {
    EXPECT_TRUE(table.handle(client, "a",
                             request_of(operation, {.first = 4, .step = 1, .count = count}, place,
                                        ExchangeForm::kGroups),
                             0));
  };
  ask(1, StoreOperation::kGather, 4, 0);
  ask(2, StoreOperation::kGather, 8, 1);
  EXPECT_EQ(sink.count, 2u);
  EXPECT_THAT(std::string(sink.last.text()), HasSubstr("rank 5 (a) takes 'scope' for another"));
}

// The table remembers two completed gathers, together with the form of their scope.
TEST(StoreTableGroupsTest, ScopeIsDroppedWithItsGathers) {
  CountingSink sink;
  StoreTable table({}, sink, {.keys = 4, .bytes = 1000, .ended = 2});
  const auto ask = [&](std::string scope, ExchangeForm form) {
    StoreRequest request = request_of(StoreOperation::kGather, {.count = 1}, 0, form);
    request.ranks = 1;
    request.key = std::move(scope);
    EXPECT_TRUE(table.handle(1, "a", std::move(request), 0));
    return std::string(sink.last.text());
  };
  EXPECT_EQ(ask("scope", ExchangeForm::kWhole), "success");
  EXPECT_THAT(ask("scope", ExchangeForm::kGroups), HasSubstr("disagree"));
  EXPECT_EQ(ask("one", ExchangeForm::kWhole), "success");
  EXPECT_THAT(ask("scope", ExchangeForm::kWhole), HasSubstr("disagree"));
  EXPECT_EQ(ask("two", ExchangeForm::kWhole), "success");
  EXPECT_EQ(ask("scope", ExchangeForm::kGroups), "success");
  // A rank that disconnects before its gather is complete leaves no state behind.
  EXPECT_TRUE(table.handle(
      7, "a",
      request_of(StoreOperation::kGather, {.first = 4, .count = 2}, 0, ExchangeForm::kGroups), 0));
  table.disconnect(7);
  EXPECT_EQ(ask("three", ExchangeForm::kWhole), "success");
  EXPECT_EQ(ask("four", ExchangeForm::kWhole), "success");
  EXPECT_EQ(ask("scope", ExchangeForm::kWhole), "success");
}

TEST(StoreProtocolGroupsTest, MembersOutsideTheJobAreRefused) {
  const auto accepts = [](const std::function<void(StoreRequest&)>& change) {
    StoreRequest request = request_of(StoreOperation::kGather, {.first = 8, .step = 8, .count = 7},
                                      6, ExchangeForm::kGroups, 5);
    change(request);
    const std::vector<std::byte> frame = encode_request(request);
    return decode_request(ConstByteSpan(frame).subspan(kFrameHeaderBytes)).ok();
  };
  constexpr int kMax = std::numeric_limits<int>::max();
  EXPECT_TRUE(accepts([](StoreRequest&) {}));
  EXPECT_FALSE(accepts([](StoreRequest& request) { request.first = -1; }));
  EXPECT_FALSE(accepts([](StoreRequest& request) { request.first = 16; }));
  EXPECT_FALSE(accepts([](StoreRequest& request) { request.first = kMax; }));
  EXPECT_FALSE(accepts([](StoreRequest& request) { request.step = 0; }));
  EXPECT_FALSE(accepts([](StoreRequest& request) { request.step = -8; }));
  EXPECT_FALSE(accepts([](StoreRequest& request) { request.step = 10; }));
  EXPECT_FALSE(accepts([](StoreRequest& request) { request.step = kMax; }));
  EXPECT_FALSE(accepts([](StoreRequest& request) { request.size = 8; }));
  EXPECT_FALSE(accepts([](StoreRequest& request) { request.rank = 7; }));
  EXPECT_FALSE(accepts([](StoreRequest& request) { request.ranks = 0; }));
  EXPECT_FALSE(accepts([](StoreRequest& request) { request.ranks = 56; }));
  EXPECT_FALSE(accepts([](StoreRequest& request) { request.ranks = kMax; }));
  EXPECT_FALSE(accepts([](StoreRequest& request) { request.form = ExchangeForm(2); }));
  EXPECT_FALSE(accepts([](StoreRequest& request) { request.form = ExchangeForm::kWhole; }));
  // Only the first member of a broadcast may send a value.
  EXPECT_FALSE(accepts([](StoreRequest& r) { r.operation = StoreOperation::kBroadcast; }));
  EXPECT_TRUE(accepts([](StoreRequest& request) {
    request.operation = StoreOperation::kBroadcast;
    request.rank = 0;
  }));
  EXPECT_TRUE(accepts([](StoreRequest& request) {
    request.operation = StoreOperation::kBroadcast;
    request.value.clear();
  }));
}

TEST_F(StoreGroupsTest, ClientOutsideItsGroupIsRefused) {
  StoreClient client(log_, options(3));
  for (const RankGroup& group : {RankGroup{.first = 0, .step = 2, .count = 4},
                                 {.first = 4, .step = 1, .count = 4},
                                 {.first = 0, .step = 1, .count = 3},
                                 {.first = 3, .step = 4, .count = 3},
                                 {.first = 3, .step = 0, .count = 1},
                                 {.first = -1, .step = 1, .count = 8},
                                 {.first = 3, .step = 1, .count = 0}}) {
    EXPECT_EQ(gather(client, 3, group, 8).status().code(), Code::kInvalidArgument);
  }
}

// Ranks as threads, by put and get or by allgather.
class CallbackGroupsTest : public testing::Test {
 protected:
  CallbackGroupsTest() { log_.set_level(LogLevel::kError); }

  void run(
      test::World& world, const std::vector<int>& ranks, int size,
      const std::function<void(int, Bootstrap&)>& body,
      const std::function<std::string(int)>& settings = [](int) { return std::string(); }) {
    run_ranks(ranks, [&](int rank) {
      test::Caller caller{.world = &world, .rank = static_cast<size_t>(rank)};
      hetcomm_bootstrap_options_t options = test::options_of(caller, size);
      if (by_allgather_) {
        options.allgather = test::allgather;
      } else {
        options.put = test::put;
        options.get = test::get;
        if (rank % 2 == 0) options.get_many = test::get_many;
        options.delete_key = test::delete_key;
      }
      auto bootstrap = bootstrap_from_callbacks(
          Config::load(kVariables, nullptr, settings(rank), log_).value(), log_, options);
      ASSERT_TRUE(bootstrap.ok()) << bootstrap.status().text();
      body(rank, *bootstrap.value());
    });
  }

  Log log_;
  bool by_allgather_ = false;
};

TEST_F(CallbackGroupsTest, BlockLeaderAndBroadcastExchangesShareOneScope) {
  for (const auto& [size, block] : {std::pair{12, 4}, {11, 4}, {9, 8}, {3, 8}}) {
    test::World world(size);
    run(world, ranks_up_to(size), size, [&, size = size, block = block](int rank, Bootstrap& job) {
      ASSERT_TRUE(job.exchanges_by_groups());
      ASSERT_TRUE(job.secret(in(30)).ok());
      for (int round = 0; round < 3; ++round) {
        const RankGroup mine = block_of(rank, size, block);
        const auto values = job.allgather_among("scope", mine, value_of(rank), in(30));
        ASSERT_TRUE(values.ok()) << values.status().text();
        EXPECT_EQ(values.value(), values_of(mine));
        const RankGroup leaders = leaders_of(size, block);
        if (leaders.has(rank)) {
          const auto led = job.allgather_among("scope", leaders, value_of(rank), in(30));
          ASSERT_TRUE(led.ok()) << led.status().text();
          EXPECT_EQ(led.value(), values_of(leaders));
        }
        const auto told = job.broadcast_among("scope", {.count = size}, value_of(rank), in(30));
        ASSERT_TRUE(told.ok()) << told.status().text();
        EXPECT_EQ(told.value(), value_of(0));
      }
    });
  }
}

TEST_F(CallbackGroupsTest, LeadersPutOnlyTheirOwnValue) {
  test::World world(8);
  run(world, ranks_up_to(8), 8, [&](int rank, Bootstrap& job) {
    if (rank % 2 != 0) return;
    const std::vector<std::byte> large(60'000, static_cast<std::byte>(rank));
    const auto led = job.allgather_among("scope", leaders_of(8, 2), large, in(30));
    ASSERT_TRUE(led.ok()) << led.status().text();
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(led.value()[i], std::vector<std::byte>(60'000, static_cast<std::byte>(2 * i)));
    }
  });
  EXPECT_LT(world.largest, 61'000u);
}

TEST_F(CallbackGroupsTest, ErrorNamesTheMissingRank) {
  test::World world(6);
  run(world, {0, 1, 2}, 6, [&](int rank, Bootstrap& job) {
    const auto values = job.allgather_among("scope", block_of(rank, 6, 2), value_of(rank), in(1));
    EXPECT_EQ(values.ok(), rank < 2);
    if (rank == 1) return;
    if (rank == 2) {
      EXPECT_THAT(std::string(values.status().text()), HasSubstr("rank 3 of 6 did not join"));
    }
    const auto led = job.allgather_among("scope", leaders_of(6, 2), {}, in(4));
    ASSERT_FALSE(led.ok());
    EXPECT_THAT(std::string(led.status().text()), HasSubstr("rank 4 of 6 did not join"));
  });
}

TEST_F(CallbackGroupsTest, FailureInRankZerosBlockIsNotReportedInAnotherBlock) {
  test::World world(6);
  run(world, {0, 3}, 6, [&](int rank, Bootstrap& job) {
    const auto values =
        job.allgather_among("scope", block_of(rank, 6, 2), value_of(rank), in(rank == 0 ? 1 : 3));
    ASSERT_FALSE(values.ok());
    const std::string text(values.status().text());
    EXPECT_THAT(text, HasSubstr(rank == 0 ? "rank 1 of 6 did not join" : "waiting for rank 2"));
  });
}

TEST_F(CallbackGroupsTest, DisagreementOnGroupsIsReported) {
  for (const std::set<int>& small : {std::set<int>{0, 1}, {0}, {3}, {1, 2, 3}}) {
    test::World world(4);
    run(world, ranks_up_to(4), 4, [&](int rank, Bootstrap& job) {
      Status status;
      const uint64_t deadline = in(2);
      if (small.contains(rank)) {
        status = job.allgather("scope", value_of(rank), deadline).status();
      } else {
        status =
            job.allgather_among("scope", block_of(rank, 4, 2), value_of(rank), deadline).status();
        if (status.ok() && rank % 2 == 0) {
          status =
              job.allgather_among("scope", leaders_of(4, 2), value_of(rank), deadline).status();
        }
        if (status.ok()) {
          status = job.broadcast_among("scope", {.count = 4}, value_of(rank), deadline).status();
        }
      }
      // Rank 0 has received nothing from the others when the leaders exchange.
      if (!small.contains(0) && !small.contains(1) && rank < 2) return;
      EXPECT_THAT(std::string(status.text()), HasSubstr("HETCOMM_SMALL_JOB")) << rank;
    });
  }
}

// Each block agrees internally.
TEST_F(CallbackGroupsTest, LeadersReportABlockWithAnotherSecret) {
  test::World world(4);
  run(
      world, ranks_up_to(4), 4,
      [&](int rank, Bootstrap& job) {
        ASSERT_TRUE(job.secret(in(30)).ok());
        const auto values =
            job.allgather_among("scope", block_of(rank, 4, 2), value_of(rank), in(30));
        ASSERT_TRUE(values.ok()) << values.status().text();
        EXPECT_EQ(values.value(), values_of(block_of(rank, 4, 2)));
        if (rank % 2 != 0) return;
        const auto led = job.allgather_among("scope", leaders_of(4, 2), value_of(rank), in(30));
        ASSERT_EQ(led.status().code(), Code::kPermissionDenied);
        EXPECT_THAT(std::string(led.status().text()),
                    HasSubstr(fmt::format("rank {} of 4 does not have the job secret", 2 - rank)));
      },
      [](int rank) { return fmt::format("SECRET={}", rank / 2); });
}

TEST_F(CallbackGroupsTest, RandomKeyStaysUntilEveryBlockHasIt) {
  test::World world(4);
  run(world, ranks_up_to(4), 4, [&](int rank, Bootstrap& job) {
    // The second block arrives late.
    if (rank >= 2) usleep(300'000);
    ASSERT_TRUE(job.secret(in(30)).ok());
    const auto values = job.allgather_among("scope", block_of(rank, 4, 2), {}, in(30));
    ASSERT_TRUE(values.ok()) << values.status().text();
    if (rank % 2 != 0) return;
    ASSERT_TRUE(job.allgather_among("scope", leaders_of(4, 2), {}, in(30)).ok());
    if (rank == 0) {
      EXPECT_EQ(world.value("hetcomm/secret/0"), "");
    }
  });
}

TEST_F(CallbackGroupsTest, AllgatherCallbackDoesNotSupportGroups) {
  by_allgather_ = true;
  test::World world(2);
  run(world, {0, 1}, 2, [&](int rank, Bootstrap& job) {
    EXPECT_FALSE(job.exchanges_by_groups());
    const RankGroup mine{.first = rank, .step = 1, .count = 1};
    EXPECT_EQ(job.allgather_among("scope", mine, {}, in(5)).status().code(), Code::kUnsupported);
    EXPECT_EQ(job.broadcast_among("scope", mine, {}, in(5)).status().code(), Code::kUnsupported);
    EXPECT_TRUE(job.allgather("scope", {}, in(5)).ok());
  });
}

}  // namespace
}  // namespace hetcomm
