// Bootstrap from callbacks, by put and get and by allgather. Every rank gets all values. A get
// whose buffer is too small is repeated with a larger one. Values from many ranks are fetched in
// one call if the program provides one, and singly if they are large or that call fails. Callback
// failures are reported with their text. The ranks agree on a secret or are told which ranks
// differ. Two processes that claim one rank are detected. Hostile values are refused. A random key
// does not stay in the store, and the value published for a configured secret is of little use for
// guessing the secret.
#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/bootstrap/bootstrap.h"
#include "src/capi/variables.h"
#include "src/net/hash.h"
#include "src/net/key.h"
#include "src/system/clock.h"
#include "tests/support/callback_world.h"

namespace hetcomm {
namespace {

using test::Caller;
using test::World;
using testing::HasSubstr;
constexpr uint64_t kSecond = 1'000'000'000;

class CallbacksTest : public testing::TestWithParam<bool> {
 protected:
  CallbacksTest() { log_.set_level(LogLevel::kError); }

  hetcomm_bootstrap_options_t options(int rank, int size, Caller& caller) const {
    hetcomm_bootstrap_options_t options = test::options_of(caller, size);
    options.rank = rank;
    if (GetParam()) {
      options.allgather = test::allgather;
    } else {
      options.put = test::put;
      options.get = test::get;
      if (many_) options.get_many = test::get_many;
      if (delete_) options.delete_key = test::delete_key;
    }
    return options;
  }

  Result<std::unique_ptr<Bootstrap>> create(const hetcomm_bootstrap_options_t& options,
                                            const std::string& settings = "") {
    return bootstrap_from_callbacks(Config::load(kVariables, nullptr, settings, log_).value(), log_,
                                    options);
  }

  void run(
      World& world, const std::vector<int>& ranks, int size,
      const std::function<void(int, Bootstrap&)>& body,
      const std::function<std::string(int)>& settings = [](int) { return std::string(); }) {
    std::vector<std::thread> threads;
    for (const int rank : ranks) {
      threads.emplace_back([&, rank] {
        Caller caller{.world = &world, .rank = static_cast<size_t>(rank)};
        auto bootstrap = create(options(rank, size, caller), settings(rank));
        ASSERT_TRUE(bootstrap.ok()) << bootstrap.status().text();
        body(rank, *bootstrap.value());
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  Log log_;
  bool many_ = false;
  bool delete_ = false;
};

INSTANTIATE_TEST_SUITE_P(Ways, CallbacksTest, testing::Bool(),
                         [](const auto& way) { return way.param ? "allgather" : "put_get"; });

TEST_P(CallbacksTest, EveryRankGetsAllValuesInRepeatedExchanges) {
  World world(5);
  run(world, {0, 1, 2, 3, 4}, 5, [](int rank, Bootstrap& bootstrap) {
    for (const size_t factor : {size_t{0}, size_t{1}, size_t{16'000}}) {
      const std::vector<std::byte> mine(static_cast<size_t>(rank) * factor,
                                        static_cast<std::byte>(rank));
      const auto all = bootstrap.allgather("world", mine, now_ns() + 20 * kSecond);
      ASSERT_TRUE(all.ok()) << all.status().text();
      ASSERT_EQ(all.value().size(), 5u);
      for (size_t other = 0; other < 5; ++other) {
        EXPECT_EQ(all.value()[other],
                  std::vector<std::byte>(other * factor, static_cast<std::byte>(other)));
      }
    }
  });
  EXPECT_EQ(world.probes > 0, !GetParam());
}

TEST_P(CallbacksTest, RanksAgreeOnARandomOrConfiguredSecret) {
  World world(3);
  std::array<Secret, 3> secrets;
  run(world, {0, 1, 2}, 3, [&](int rank, Bootstrap& bootstrap) {
    const Result<Secret> secret = bootstrap.secret(now_ns() + 20 * kSecond);
    ASSERT_TRUE(secret.ok()) << secret.status().text();
    secrets[static_cast<size_t>(rank)] = secret.value();
    EXPECT_EQ(bootstrap.secret(0).value(), secret.value());
  });
  EXPECT_EQ(secrets[0], secrets[1]);
  EXPECT_EQ(secrets[0], secrets[2]);
  EXPECT_NE(secrets[0], Secret{});

  World configured(2);
  run(
      configured, {0, 1}, 2,
      [&](int rank, Bootstrap& bootstrap) {
        secrets[static_cast<size_t>(rank)] = bootstrap.secret(now_ns() + 20 * kSecond).value();
      },
      [](int) { return std::string("SECRET=abc"); });
  EXPECT_EQ(secrets[0], secrets[1]);
  EXPECT_NE(secrets[0], secrets[2]);
}

TEST_P(CallbacksTest, ErrorNamesRanksWithDifferentSecrets) {
  for (const char* other : {"SECRET=b", ""}) {
    World world(3);
    run(
        world, {0, 1, 2}, 3,
        [&](int rank, Bootstrap& bootstrap) {
          ASSERT_TRUE(bootstrap.secret(now_ns() + 20 * kSecond).ok());
          const auto all = bootstrap.allgather("world", {}, now_ns() + 20 * kSecond);
          ASSERT_FALSE(all.ok());
          EXPECT_EQ(all.status().code(), Code::kPermissionDenied);
          EXPECT_THAT(std::string(all.status().text()),
                      HasSubstr(rank == 1 ? "ranks 0, 2 of 3 do not" : "rank 1 of 3 does not"));
        },
        [&](int rank) { return std::string(rank == 1 ? other : "SECRET=a"); });
  }
}

TEST_P(CallbacksTest, DifferentJobNamesAreReported) {
  for (const char* more : {"", ";SECRET=a"}) {
    World world(2);
    run(
        world, {0, 1}, 2,
        [&](int rank, Bootstrap& bootstrap) {
          ASSERT_TRUE(bootstrap.secret(now_ns() + 20 * kSecond).ok());
          const auto all = bootstrap.allgather("world", {}, now_ns() + 20 * kSecond);
          EXPECT_EQ(all.status().code(), Code::kPermissionDenied);
          EXPECT_THAT(std::string(all.status().text()),
                      HasSubstr(fmt::format("rank {} of 2 has another HETCOMM_JOB", 1 - rank)));
        },
        [&](int rank) { return fmt::format("JOB={}{}", rank, more); });
  }
}

TEST_P(CallbacksTest, SecretInOptionsOverridesTheSettings) {
  World world(1);
  Caller caller{.world = &world, .rank = 0};
  hetcomm_bootstrap_options_t options = this->options(0, 1, caller);
  options.secret = "abc";
  options.secret_size = 3;
  auto a = create(options, "SECRET=other");
  options.secret = nullptr;
  auto b = create(options, "SECRET=abc");
  EXPECT_EQ(a.value()->secret(kForever).value(), b.value()->secret(kForever).value());
}

TEST_P(CallbacksTest, JobWithoutARequiredSecretIsRefused) {
  World world(2);
  Caller caller{.world = &world, .rank = 0};
  for (const char* variable : {"REQUIRE_SECRET", "REQUIRE_TLS"}) {
    const auto refused = create(options(0, 2, caller), fmt::format("{}=on", variable));
    EXPECT_EQ(refused.status().code(), Code::kPermissionDenied);
    EXPECT_THAT(std::string(refused.status().text()), HasSubstr(variable));
    EXPECT_THAT(std::string(refused.status().text()), HasSubstr("HETCOMM_SECRET_FILE"));
    EXPECT_TRUE(create(options(0, 2, caller), fmt::format("{}=on;SECRET=a", variable)).ok());
    EXPECT_TRUE(create(options(0, 1, caller), fmt::format("{}=on", variable)).ok());
  }
}

TEST_P(CallbacksTest, CallbackFailureIsReportedWithItsText) {
  World world(2);
  world.fail_put = world.fail_allgather = true;
  run(world, {0, 1}, 2, [&](int /*rank*/, Bootstrap& bootstrap) {
    const auto all = bootstrap.allgather("world", {}, now_ns() + kSecond);
    ASSERT_FALSE(all.ok());
    EXPECT_EQ(all.status().code(), Code::kBootstrapFailed);
    EXPECT_THAT(std::string(all.status().text()),
                HasSubstr(GetParam() ? "allgather callback returned PEER_LOST"
                                     : "put callback for 'hetcomm/world/"));
  });
}

TEST_P(CallbacksTest, InvalidOptionsAreRefused) {
  World world(1);
  Caller caller{.world = &world, .rank = 0};
  const auto refused = [&](const std::function<void(hetcomm_bootstrap_options_t&)>& change) {
    hetcomm_bootstrap_options_t options = this->options(0, 2, caller);
    change(options);
    return create(options).status().code() == Code::kInvalidArgument;
  };
  EXPECT_FALSE(refused([](auto&) {}));
  EXPECT_TRUE(refused([](auto& options) { options.rank = 2; }));
  EXPECT_TRUE(refused([](auto& options) { options.rank = -1; }));
  EXPECT_TRUE(refused([](auto& options) { options.size = 0; }));
  EXPECT_TRUE(refused([](auto& options) { options.secret = ""; }));
  EXPECT_TRUE(refused([](auto& options) {
    options.put = test::put;
    options.get = nullptr;
  }));
  EXPECT_TRUE(refused([](auto& options) {
    options.put = nullptr;
    options.get = nullptr;
    options.allgather = nullptr;
  }));
}

TEST_P(CallbacksTest, OversizedValueIsRefusedBeforeTheExchange) {
  World world(2);
  Caller caller{.world = &world, .rank = 0};
  auto bootstrap = create(options(0, 2, caller));
  const std::vector<std::byte> large(64 * 1024 + 1);
  EXPECT_EQ(bootstrap.value()->allgather("world", large, now_ns() + kSecond).status().code(),
            Code::kInvalidArgument);
}

class PutGetTest : public CallbacksTest {};
INSTANTIATE_TEST_SUITE_P(Way, PutGetTest, testing::Values(false));

TEST_P(PutGetTest, ValuesOfManyRanksAreFetchedInOneCall) {
  many_ = true;
  for (const size_t factor : {size_t{1}, size_t{600}}) {
    World world(5);
    run(world, {0, 1, 2, 3, 4}, 5, [&](int rank, Bootstrap& bootstrap) {
      const std::vector<std::byte> mine(static_cast<size_t>(rank) * factor,
                                        static_cast<std::byte>(rank));
      const auto all = bootstrap.allgather("world", mine, now_ns() + 20 * kSecond);
      ASSERT_TRUE(all.ok()) << all.status().text();
      for (size_t other = 0; other < 5; ++other) {
        EXPECT_EQ(all.value()[other],
                  std::vector<std::byte>(other * factor, static_cast<std::byte>(other)));
      }
    });
    EXPECT_EQ(world.together, 1);
    // The values from ranks 2 to 4 are too large for get_many.
    EXPECT_EQ(world.alone, factor == 1 ? 0 : 3);
  }
}

// The random key must not stay where others could read it.
TEST_P(PutGetTest, RandomKeyIsDeletedAfterTheExchange) {
  for (const bool some_are_missing : {false, true}) {
    World world(3);
    delete_ = true;
    const auto is_stored = [&] { return !world.value("hetcomm/secret/0").empty(); };
    run(world, some_are_missing ? std::vector{0, 1} : std::vector{0, 1, 2}, 3,
        [&](int rank, Bootstrap& bootstrap) {
          const Result<Secret> secret = bootstrap.secret(now_ns() + 20 * kSecond);
          ASSERT_TRUE(secret.ok()) << secret.status().text();
          EXPECT_TRUE(rank != 0 || is_stored());
          const auto all = bootstrap.allgather(
              "world", {}, now_ns() + (some_are_missing ? kSecond : 20 * kSecond));
          EXPECT_EQ(all.ok(), !some_are_missing);
          EXPECT_TRUE(rank != 0 || !is_stored());
        });
  }
}

TEST_P(PutGetTest, FailureToDeleteTheKeyDoesNotFailTheExchange) {
  World world(2);
  delete_ = true;
  world.fail_delete = true;
  run(world, {0, 1}, 2, [&](int /*rank*/, Bootstrap& bootstrap) {
    ASSERT_TRUE(bootstrap.secret(now_ns() + 20 * kSecond).ok());
    EXPECT_TRUE(bootstrap.allgather("world", {}, now_ns() + 20 * kSecond).ok());
  });
}

// A reader of the store can test guesses of the secret, but only slowly and without a precomputed
// table.
TEST_P(PutGetTest, PublishedProofOfASecretIsSaltedAndSlow) {
  constexpr std::string_view kUserSecret = "guess me";
  const Secret secret = secret_from(std::as_bytes(std::span(kUserSecret)));
  std::array<std::string, 2> published;
  for (std::string& text : published) {
    World world(2);
    run(
        world, {0, 1}, 2,
        [&](int /*rank*/, Bootstrap& bootstrap) {
          ASSERT_TRUE(bootstrap.secret(now_ns() + 20 * kSecond).ok());
          ASSERT_TRUE(bootstrap.allgather("world", {}, now_ns() + 20 * kSecond).ok());
        },
        [&](int) { return fmt::format("SECRET={}", kUserSecret); });
    constexpr std::string_view kLabel = "hetcomm secret check 1";
    EXPECT_FALSE(world.holds(hmac_sha256(secret, std::as_bytes(std::span(kLabel)))));
    text = world.value("hetcomm/secret/0");
    ASSERT_EQ(text.size(), 33u);
    const auto salt = std::as_bytes(std::span(text)).subspan(1);
    EXPECT_FALSE(world.holds(hmac_sha256(secret, salt)));
    EXPECT_TRUE(world.holds(slow_digest(secret, salt).value(), "world/all"));
  }
  EXPECT_NE(published[0], published[1]);
}

TEST_P(PutGetTest, ErrorNamesMissingRanksFetchedInOneCall) {
  many_ = true;
  World world(4);
  run(world, {0, 2}, 4, [&](int /*rank*/, Bootstrap& bootstrap) {
    const auto all = bootstrap.allgather("world", {}, now_ns() + kSecond);
    ASSERT_FALSE(all.ok());
    EXPECT_THAT(std::string(all.status().text()), HasSubstr("ranks 1, 3 of 4 did not join"));
  });
  EXPECT_EQ(world.together, 1);
}

TEST_P(PutGetTest, EveryRankReportsTheMissingRanks) {
  World world(4);
  run(world, {0, 2}, 4, [&](int /*rank*/, Bootstrap& bootstrap) {
    const auto all = bootstrap.allgather("world", {}, now_ns() + kSecond);
    ASSERT_FALSE(all.ok());
    EXPECT_EQ(all.status().code(), Code::kBootstrapFailed);
    EXPECT_THAT(std::string(all.status().text()), HasSubstr("ranks 1, 3 of 4 did not join"));
  });
}

TEST_P(PutGetTest, ErrorNamesMissingRankZero) {
  World world(2);
  run(world, {1}, 2, [&](int /*rank*/, Bootstrap& bootstrap) {
    const auto all = bootstrap.allgather("world", {}, now_ns() + kSecond / 5);
    ASSERT_FALSE(all.ok());
    EXPECT_THAT(std::string(all.status().text()), HasSubstr("waiting for rank 0"));
  });
}

TEST_P(PutGetTest, TwoProcessesWithTheSameRankAreDetected) {
  World world(2);
  std::atomic<int> failures = 0;
  run(world, {1, 1, 0}, 2, [&](int /*rank*/, Bootstrap& bootstrap) {
    const auto all = bootstrap.allgather("world", {}, now_ns() + 5 * kSecond);
    if (all.ok()) return;
    ++failures;
    EXPECT_THAT(std::string(all.status().text()), HasSubstr("rank 1"));
  });
  EXPECT_EQ(failures, 1);
}

TEST_P(PutGetTest, CorruptValuesAreRefused) {
  World world(2);
  world.corrupt = true;
  run(world, {0, 1}, 2, [&](int rank, Bootstrap& bootstrap) {
    const std::byte mine[] = {std::byte{1}, std::byte{2}};
    const auto all = bootstrap.allgather("world", mine, now_ns() + 5 * kSecond);
    EXPECT_EQ(all.ok(), rank == 0) << all.status().text();
  });
}

class AllgatherTest : public CallbacksTest {};
INSTANTIATE_TEST_SUITE_P(Way, AllgatherTest, testing::Values(true));

TEST_P(AllgatherTest, MismatchedExchangesAreDetected) {
  World world(2);
  run(world, {0, 1}, 2, [&](int rank, Bootstrap& bootstrap) {
    const auto all = bootstrap.allgather(rank == 0 ? "a" : "b", {}, now_ns() + 5 * kSecond);
    ASSERT_FALSE(all.ok());
    EXPECT_THAT(std::string(all.status().text()), HasSubstr("calls differ"));
  });
}

}  // namespace
}  // namespace hetcomm
