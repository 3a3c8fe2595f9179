// Digests of all ranks, and rank 0's values for all ranks, in large jobs:
//  * every rank gets the same digest of the cards in rank order, and rank 0's value unchanged, for
//    any number of ranks, and repeatedly on one bootstrap; also through the store and by a caller's
//    allgather;
//  * a rank sends the value about once, and the store sends each rank much less than all cards;
//  * a small job sends the same messages as an allgather and has no relays;
//  * if the digest maker fails, a part is too large, or a rank is missing (a member of a block or
//    its leader), the exchange fails on all ranks with one text, before the deadline;
//  * ranks that disagree on the job size receive an error;
//  * the value reaches all other ranks if a member or the leader of a block is gone, silent, slow
//    or sends other data after its card; data that a rank has made up is not forwarded; a rank
//    receives an error if no rank before it has the value;
//  * a relay neither returns nor accepts a value without a proof of the secret.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <latch>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <thread>

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/base/bytes.h"
#include "src/bootstrap/bootstrap.h"
#include "src/bootstrap/digest_exchange.h"
#include "src/bootstrap/relay.h"
#include "src/bootstrap/relay_chain.h"
#include "src/bootstrap/store_protocol.h"
#include "src/capi/variables.h"
#include "src/net/key.h"
#include "src/net/listening_socket.h"
#include "src/system/clock.h"
#include "tests/support/callback_world.h"
#include "tests/support/certificates.h"
#include "tests/support/pattern.h"

namespace hetcomm {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Bytes = std::vector<std::byte>;
constexpr uint64_t kSecond = 1'000'000'000;
constexpr std::string_view kRefusal = "refuses: ";

uint64_t in(uint64_t seconds) { return now_ns() + seconds * kSecond; }

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Bytes card_of(int rank) { return bytes_of(fmt::format("card of {};", rank)); }

Bytes pattern(size_t size) {
  Bytes bytes(size);
  test::fill_pattern(bytes, 1);
  return bytes;
}

// Makes a digest by concatenating all cards. A card can make the part or the digest fail.
class ListMaker final : public DigestMaker {
 public:
  Result<Bytes> part(int first, const std::vector<Bytes>& cards) const override {
    Bytes all;
    for (size_t i = 0; i < cards.size(); ++i) {
      const std::string text(reinterpret_cast<const char*>(cards[i].data()), cards[i].size());
      if (text.starts_with(kRefusal)) {
        return Status(Code::kUnsupported,
                      fmt::format("rank {} {}", first + static_cast<int>(i), text));
      }
      all.insert(all.end(), cards[i].begin(), cards[i].end());
    }
    return all;
  }
  Result<Bytes> digest(const std::vector<Bytes>& parts) const override {
    Bytes all;
    for (const Bytes& part : parts) all.insert(all.end(), part.begin(), part.end());
    const std::string text(reinterpret_cast<const char*>(all.data()), all.size());
    if (text.find("no digest") != std::string::npos) {
      return Status(Code::kBootstrapFailed, "the cards do not fit each other");
    }
    return all;
  }
};

Bytes digest_of(int size) {
  Bytes all;
  for (int rank = 0; rank < size; ++rank) {
    const Bytes card = card_of(rank);
    all.insert(all.end(), card.begin(), card.end());
  }
  return all;
}

std::vector<int> ranks_up_to(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) ranks[static_cast<size_t>(rank)] = rank;
  return ranks;
}

std::vector<int> all_but(int size, const std::set<int>& missing) {
  std::vector<int> ranks = ranks_up_to(size);
  std::erase_if(ranks, [&](int rank) { return missing.contains(rank); });
  return ranks;
}

class DigestTest : public testing::Test {
 protected:
  DigestTest() { log_.set_level(LogLevel::kError); }

  Config config(const std::string& settings) {
    return Config::load(kVariables, nullptr, "INTERFACE=lo;" + settings, log_).value();
  }

  // Runs ranks as threads, by put and get or by an allgather. Each bootstrap lives until all ranks
  // are done, because a relay ends with its bootstrap, and because creating a communicator waits
  // for all ranks.
  void run(
      test::World& world, const std::vector<int>& ranks, int size,
      const std::function<void(int, Bootstrap&)>& body,
      const std::function<std::string(int)>& settings = [](int) {
        return std::string("SMALL_JOB=1");
      }) {
    std::latch all(static_cast<std::ptrdiff_t>(ranks.size()));
    std::vector<std::thread> threads;
    for (const int rank : ranks) {
      threads.emplace_back([&, rank] {
        test::Caller caller{.world = &world, .rank = static_cast<size_t>(rank)};
        hetcomm_bootstrap_options_t options = test::options_of(caller, size);
        if (by_allgather_) {
          options.allgather = test::allgather;
        } else {
          options.put = test::put;
          options.get = test::get;
          options.get_many = test::get_many;
        }
        auto bootstrap = bootstrap_from_callbacks(config(settings(rank)), log_, options);
        EXPECT_TRUE(bootstrap.ok()) << bootstrap.status().text();
        if (bootstrap.ok()) body(rank, *bootstrap.value());
        all.arrive_and_wait();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  // Adds a failure's text to the set of all failure texts.
  void add_text(const Status& status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    texts_.insert(std::string(status.text()));
  }

  Log log_;
  ListMaker maker_;
  bool by_allgather_ = false;
  std::mutex mutex_;
  std::multiset<std::string> texts_;
};

TEST_F(DigestTest, BlockSizeGrowsWithTheSquareRootOfTheRankCount) {
  for (const auto& [size, block] :
       {std::pair{2, 2}, {35, 2}, {129, 4}, {1024, 16}, {4096, 32}, {65536, 128}}) {
    EXPECT_EQ(block_size_of(size), block) << size;
  }
}

TEST_F(DigestTest, EveryRankGetsTheSameDigestAndValue) {
  for (const int size : {2, 3, 17, 129, 200}) {
    test::World world(size);
    const Bytes large = pattern(size < 100 ? 3'000'001 : 100'000);
    run(world, ranks_up_to(size), size, [&](int rank, Bootstrap& job) {
      for (int round = 0; round < 2; ++round) {
        const auto digest = exchange_digest(job, "world", card_of(rank), maker_, in(50));
        ASSERT_TRUE(digest.ok()) << rank << ": " << digest.status().text();
        EXPECT_EQ(digest.value(), digest_of(size)) << rank;
        const Bytes mine = rank == 0 ? large : bytes_of("not mine");
        const auto value = hand_down(job, "world/value", mine, in(50));
        ASSERT_TRUE(value.ok()) << rank << ": " << value.status().text();
        EXPECT_TRUE(test::same_bytes(value.value(), large));
      }
      for (const size_t length : {size_t{0}, size_t{1}, size_t{256}, size_t{257}, size_t{8192}}) {
        const auto value = hand_down(job, "short", pattern(rank == 0 ? length : 7), in(50));
        ASSERT_TRUE(value.ok()) << value.status().text();
        EXPECT_EQ(value.value(), pattern(length));
      }
    });
  }
}

TEST_F(DigestTest, RelaysPassDigestAndValueOverTls) {
  const test::Certificates files;
  test::World world(9);
  run(
      world, ranks_up_to(9), 9,
      [&](int rank, Bootstrap& job) {
        const auto digest = exchange_digest(job, "world", card_of(rank), maker_, in(30));
        ASSERT_TRUE(digest.ok()) << digest.status().text();
        EXPECT_EQ(digest.value(), digest_of(9));
        const auto value = hand_down(job, "value", pattern(rank == 0 ? 300'000 : 0), in(30));
        ASSERT_TRUE(value.ok()) << value.status().text();
        EXPECT_TRUE(test::same_bytes(value.value(), pattern(300'000)));
      },
      [&](int) { return "SMALL_JOB=1;" + files.settings(); });
}

TEST_F(DigestTest, AllgatherCallbackExchangesTheDigestInOneGroup) {
  by_allgather_ = true;
  test::World world(5);
  run(world, ranks_up_to(5), 5, [&](int rank, Bootstrap& job) {
    const auto digest = exchange_digest(job, "world", card_of(rank), maker_, in(20));
    ASSERT_TRUE(digest.ok()) << digest.status().text();
    EXPECT_EQ(digest.value(), digest_of(5));
    const auto value = hand_down(job, "value", pattern(rank == 0 ? 200'000 : 0), in(20));
    ASSERT_TRUE(value.ok()) << value.status().text();
    EXPECT_TRUE(test::same_bytes(value.value(), pattern(200'000)));
    EXPECT_FALSE(job.relay().contact().exists());
  });
}

TEST_F(DigestTest, SmallJobExchangeSendsAsManyBytesAsAnAllgather) {
  std::array<size_t, 2> in_bytes{};
  for (const bool plain : {false, true}) {
    test::World world(8);
    run(
        world, ranks_up_to(8), 8,
        [&](int rank, Bootstrap& job) {
          if (plain) {
            EXPECT_TRUE(job.allgather("world", card_of(rank), in(20)).ok());
            return;
          }
          const auto digest = exchange_digest(job, "world", card_of(rank), maker_, in(20));
          ASSERT_TRUE(digest.ok()) << digest.status().text();
          EXPECT_EQ(digest.value(), digest_of(8));
          EXPECT_FALSE(job.relay().contact().exists());
        },
        [](int) { return "SMALL_JOB=8"; });
    in_bytes[plain ? 1 : 0] = world.bytes_in;
  }
  EXPECT_EQ(in_bytes[0], in_bytes[1]);
}

// HETCOMM_TEST_RANKS sets another number of ranks. Each rank is a thread with a relay.
TEST_F(DigestTest, EachRankSendsLittleMoreThanOneDigest) {
  const char* wanted = getenv("HETCOMM_TEST_RANKS");
  const int size = wanted != nullptr ? std::stoi(wanted) : 144;
  const auto ranks = static_cast<size_t>(size);
  constexpr size_t kCard = 100;
  const size_t digest_bytes = ranks * kCard;
  test::World world(size);
  std::barrier all(size);
  std::vector<size_t> sent(ranks);
  std::atomic<uint64_t> last_end = 0;
  const uint64_t begin = now_ns();
  run(world, ranks_up_to(size), size, [&](int rank, Bootstrap& job) {
    const auto digest = exchange_digest(job, "world", pattern(kCard), maker_, in(150));
    EXPECT_TRUE(digest.ok()) << digest.status().text();
    last_end = std::max<uint64_t>(last_end, now_ns());
    all.arrive_and_wait();
    sent[static_cast<size_t>(rank)] = job.relay().sent_bytes();
  });
  const auto block = static_cast<size_t>(block_size_of(size));
  const size_t most = digest_bytes + digest_bytes / 10 + 200;
  const size_t total = std::accumulate(sent.begin(), sent.end(), size_t{0});
  printf(
      "%d ranks, blocks of %zu, digest of %zu bytes: a relay sends %zu at most, all %zu; through "
      "the store %zu in, %zu out; %.0f ms\n",
      size, block, digest_bytes, *std::max_element(sent.begin(), sent.end()), total,
      world.bytes_in.load(), world.bytes_out.load(), static_cast<double>(last_end - begin) / 1e6);
  // No rank sends more than |most|, except to ranks for which other sources are too slow.
  EXPECT_LE(*std::max_element(sent.begin(), sent.end()), most);
  EXPECT_LE(total, ranks * (block - 1) / block * most);
  EXPECT_GE(total, ranks * (block - 1) / block * digest_bytes);
  EXPECT_LT(world.bytes_out, ranks * digest_bytes / 2);
  EXPECT_LT(world.bytes_in, 8 * digest_bytes);
}

TEST_F(DigestTest, DigestMakerFailureIsReportedOnEveryRank) {
  for (const char* text : {"refuses: no memory", "no digest"}) {
    texts_.clear();
    test::World world(19);
    const uint64_t before = now_ns();
    run(world, ranks_up_to(19), 19, [&](int rank, Bootstrap& job) {
      const Bytes card = rank == 7 ? bytes_of(text) : card_of(rank);
      const auto digest = exchange_digest(job, "world", card, maker_, in(50));
      EXPECT_FALSE(digest.ok());
      add_text(digest.status());
      // The next exchange is unaffected.
      const auto next = exchange_digest(job, "world", card_of(rank), maker_, in(50));
      EXPECT_TRUE(next.ok()) << next.status().text();
    });
    EXPECT_LT(now_ns() - before, 20 * kSecond);
    EXPECT_EQ(texts_.count(*texts_.begin()), 19u) << testing::PrintToString(texts_);
    EXPECT_THAT(*texts_.begin(), HasSubstr(std::string_view(text).starts_with(kRefusal)
                                               ? "rank 7 refuses: no memory"
                                               : "the cards do not fit each other"));
  }
}

TEST_F(DigestTest, OversizedPartFailsOnEveryRank) {
  test::World world(5);
  run(world, ranks_up_to(5), 5, [&](int rank, Bootstrap& job) {
    const auto digest =
        exchange_digest(job, "world", pattern(rank < 2 ? 10 : 40'000), maker_, in(50));
    EXPECT_FALSE(digest.ok());
    add_text(digest.status());
  });
  EXPECT_EQ(texts_.count(*texts_.begin()), 5u) << testing::PrintToString(texts_);
  EXPECT_THAT(*texts_.begin(), HasSubstr("ranks 2 to 3 say of themselves takes 800"));
}

TEST_F(DigestTest, OversizedValueFailsOnEveryRank) {
  for (const char* settings : {"SMALL_JOB=1", "SMALL_JOB=8"}) {
    test::World world(3);
    const Bytes large(kMaxHandout + 1);
    run(
        world, ranks_up_to(3), 3,
        [&](int rank, Bootstrap& job) {
          const auto value =
              hand_down(job, "value", rank == 0 ? ConstByteSpan(large) : ConstByteSpan(), in(20));
          EXPECT_EQ(value.status().code(), Code::kInvalidArgument);
          EXPECT_THAT(std::string(value.status().text()), HasSubstr("too many to be handed down"));
        },
        [&](int) { return settings; });
  }
}

TEST_F(DigestTest, EveryRankReportsAMissingMemberOrLeader) {
  for (const int missing : {7, 6}) {
    texts_.clear();
    test::World world(11);
    run(world, all_but(11, {missing}), 11, [&](int rank, Bootstrap& job) {
      const uint64_t deadline = in(3);
      const auto digest = exchange_digest(job, "world", card_of(rank), maker_, deadline);
      EXPECT_FALSE(digest.ok());
      EXPECT_LE(now_ns(), deadline + 5 * kSecond / 2) << "the deadline counts twice";
      add_text(digest.status());
    });
    ASSERT_EQ(texts_.size(), 10u);
    EXPECT_EQ(texts_.count(*texts_.begin()), 10u) << testing::PrintToString(texts_);
    EXPECT_THAT(*texts_.begin(), HasSubstr(fmt::format("rank {} of 11 did not join", missing)));
  }
}

TEST_F(DigestTest, DisagreementOnTheSmallJobLimitIsReported) {
  for (const std::set<int>& small : {std::set<int>{0, 1}, {5}, {0, 1, 2, 3, 4, 5, 7}}) {
    test::World world(8);
    run(
        world, ranks_up_to(8), 8,
        [&](int rank, Bootstrap& job) {
          ASSERT_TRUE(job.secret(in(20)).ok());
          const auto digest = exchange_digest(job, "world", card_of(rank), maker_, in(4));
          EXPECT_THAT(std::string(digest.status().text()), HasSubstr("HETCOMM_SMALL_JOB")) << rank;
        },
        [&](int rank) { return small.contains(rank) ? "SMALL_JOB=8" : "SMALL_JOB=7"; });
  }
}

// An address that has no listener, or a silent one.
class DeadPlace {
 public:
  explicit DeadPlace(bool silent)
      : listener_(listen_on(Address::parse_numeric("127.0.0.1", 0).value(), 16).value()) {
    contact_.host.id = read_host_id();
    contact_.host.addresses = {bound_address(listener_.get()).value()};
    if (!silent) listener_.reset();
  }
  const RelayContact& contact() const { return contact_; }

 private:
  UniqueFd listener_;
  RelayContact contact_;
};

// Acts as a rank that sends its part to the other ranks and then becomes unreachable.
void take_part_and_die(Bootstrap& job, int rank, const RelayContact& contact,
                       const DigestMaker& maker) {
  ASSERT_TRUE(job.secret(in(20)).ok());
  const int length = block_size_of(job.size());
  const int first = rank / length * length;
  const RankGroup block{.first = first, .step = 1, .count = std::min(length, job.size() - first)};
  ByteWriter card;
  contact.encode(card);
  const size_t head = card.bytes().size();
  card.write_raw(card_of(rank));
  auto told = job.allgather_among("world", block, card.bytes(), in(20));
  ASSERT_TRUE(told.ok()) << told.status().text();
  if (rank == first) {
    std::vector<Bytes> cards;
    for (int member = first; member < first + block.count; ++member) {
      cards.push_back(card_of(member));
    }
    ByteWriter part;
    part.write_raw(ConstByteSpan(card.bytes()).first(head));
    part.write_raw(*encode_success(maker.part(first, cards).value()));
    const RankGroup leaders{
        .first = 0, .step = length, .count = (job.size() + length - 1) / length};
    ASSERT_TRUE(job.allgather_among("world", leaders, part.bytes(), in(20)).ok());
  }
  ASSERT_TRUE(job.broadcast_among("world", {.count = job.size()}, {}, in(20)).ok());
}

// Uses blocks of 4: the second block loses members, its leader, or all but its last member.
TEST_F(DigestTest, SurvivorsGetTheDigestIfRanksDieAfterSendingCards) {
  for (const bool silent : {false, true}) {
    for (const std::set<int>& dead : {std::set<int>{5}, {4}, {4, 5, 6}, {5, 9, 10}}) {
      test::World world(37);
      ASSERT_EQ(block_size_of(37), 4);
      std::barrier all(37);
      run(world, ranks_up_to(37), 37, [&](int rank, Bootstrap& job) {
        if (dead.contains(rank)) {
          const DeadPlace place(silent);
          take_part_and_die(job, rank, place.contact(), maker_);
          all.arrive_and_wait();
          return;
        }
        const auto digest = exchange_digest(job, "world", card_of(rank), maker_, in(16));
        EXPECT_TRUE(digest.ok()) << rank << ": " << digest.status().text();
        EXPECT_EQ(digest.ok() ? digest.value() : Bytes(), digest_of(37));
        all.arrive_and_wait();
      });
    }
  }
}

// Relays of ranks 0 to 3, and one value.
class RelayChainTest : public DigestTest {
 protected:
  RelayChainTest() : config_(config("")) {
    for (int rank = 0; rank < 4; ++rank) {
      relays_.push_back(std::make_unique<Relay>(config_, log_));
      relays_.back()->start(secret_, rank, {});
      EXPECT_TRUE(relays_.back()->contact().exists());
    }
  }
  RelaySource source(int rank) {
    return {.rank = rank, .contact = relays_[index(rank)]->contact()};
  }
  static size_t index(int rank) { return static_cast<size_t>(rank); }
  Result<Bytes> pull_as_last(const std::vector<RelaySource>& sources, uint64_t deadline) {
    return pull(*relays_[3], handout_of(value_), sources, deadline);
  }
  // Returns the value that |relay| has under |key| now, or fails.
  Result<Bytes> kept(int rank, const std::string& key) {
    auto client = relays_[3]->client_of(rank, relays_[index(rank)]->contact());
    return client.value()->get(key, 100'000'000, in(5));
  }

  const Secret secret_ = secret_from(bytes_of("secret"));
  const Config config_;
  const Bytes value_ = pattern(50'000);
  std::vector<std::unique_ptr<Relay>> relays_;
};

TEST_F(RelayChainTest, ValuePassesFromRankToRank) {
  offer(*relays_[0], value_, in(30));
  EXPECT_EQ(pull(*relays_[1], handout_of(value_), {source(0)}, in(20)).value(), value_);
  EXPECT_EQ(pull(*relays_[2], handout_of(value_), {source(1)}, in(20)).value(), value_);
  EXPECT_EQ(pull_as_last({source(2), source(1), source(0)}, in(20)).value(), value_);
  EXPECT_LT(relays_[0]->sent_bytes(), value_.size() + 1000);
}

// All ranks begin at once and forward pieces as they arrive.
TEST_F(RelayChainTest, RanksThatPullBeforeTheOfferGetTheValue) {
  std::vector<std::thread> threads;
  for (int rank = 1; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      const auto value =
          pull(*relays_[index(rank)], handout_of(value_), {source(rank - 1)}, in(20));
      ASSERT_TRUE(value.ok()) << value.status().text();
      EXPECT_EQ(value.value(), value_);
    });
  }
  usleep(100'000);
  offer(*relays_[0], value_, in(30));
  for (std::thread& thread : threads) thread.join();
}

TEST_F(RelayChainTest, ForgedDataIsNeitherAcceptedNorForwarded) {
  const Handout handout = handout_of(value_);
  Bytes other = value_;
  other[20'000] ^= std::byte{1};
  // First a list for another value; then the right list, and a piece of another value.
  relays_[0]->keep(list_key(handout), pattern(7 * sizeof(Digest)), in(30));
  offer(*relays_[1], value_, in(30));
  relays_[1]->keep(piece_key(handout, 2), {other.begin() + 16384, other.begin() + 24576}, in(30));
  offer(*relays_[2], value_, in(30));
  auto alone = pull_as_last({source(0), source(1)}, in(20));
  ASSERT_FALSE(alone.ok());
  EXPECT_THAT(std::string(alone.status().text()),
              AllOf(HasSubstr("rank 0: it has sent something else"),
                    HasSubstr("rank 1: it has sent something else")));
  EXPECT_TRUE(kept(3, piece_key(handout, 1)).ok());
  EXPECT_FALSE(kept(3, piece_key(handout, 2)).ok());
  EXPECT_EQ(pull_as_last({source(0), source(1), source(2)}, in(20)).value(), value_);
}

TEST_F(RelayChainTest, NextSourceReplacesAMissingSilentOrSlowOne) {
  const DeadPlace gone(false);
  const DeadPlace silent(true);
  offer(*relays_[0], value_, in(30));
  // Rank 1 has the beginning of the value, and receives no more. Rank 2 has nothing.
  const Handout handout = handout_of(value_);
  relays_[1]->keep(list_key(handout), kept(0, list_key(handout)).value(), in(30));
  relays_[1]->keep(piece_key(handout, 0), kept(0, piece_key(handout, 0)).value(), in(30));
  const uint64_t before = now_ns();
  const auto value = pull_as_last({{.rank = 8, .contact = gone.contact()},
                                   {.rank = 7, .contact = silent.contact()},
                                   {.rank = 6, .contact = {}},
                                   source(1),
                                   source(0)},
                                  in(6));
  ASSERT_TRUE(value.ok()) << value.status().text();
  EXPECT_EQ(value.value(), value_);
  EXPECT_LT(now_ns() - before, 5 * kSecond);
}

TEST_F(RelayChainTest, PullWithoutAUsableSourceFailsByTheDeadline) {
  const DeadPlace gone(false);
  const DeadPlace silent(true);
  const uint64_t deadline = in(2);
  const auto value = pull_as_last(
      {{.rank = 8, .contact = gone.contact()}, {.rank = 7, .contact = silent.contact()}, source(1)},
      deadline);
  ASSERT_FALSE(value.ok());
  EXPECT_THAT(std::string(value.status().text()),
              AllOf(HasSubstr("rank 8: "), HasSubstr("rank 7: "), HasSubstr("rank 1: ")));
  EXPECT_LT(now_ns(), deadline + kSecond);
  // There is no rank to ask, so the pull fails immediately.
  EXPECT_FALSE(pull_as_last({{.rank = 6, .contact = {}}}, in(1000)).ok());
  EXPECT_FALSE(pull_as_last({}, in(1000)).ok());
}

TEST_F(RelayChainTest, ClientsWithoutTheSecretGetNothingAndPutsAreRefused) {
  offer(*relays_[0], value_, in(30));
  Relay stranger(config_, log_);
  stranger.start(secret_from(bytes_of("another")), 3, {});
  EXPECT_FALSE(pull(stranger, handout_of(value_), {source(0)}, in(2)).ok());
  // Simulates another process at that address.
  RelaySource restarted = source(0);
  restarted.contact.instance[0] ^= std::byte{1};
  EXPECT_FALSE(pull_as_last({restarted}, in(2)).ok());
  auto client = relays_[3]->client_of(0, relays_[0]->contact());
  EXPECT_FALSE(client.value()->put("key", bytes_of("value"), in(5)).ok());
  EXPECT_EQ(pull_as_last({source(0)}, in(10)).value(), value_);
}

TEST_F(RelayChainTest, ExpiredValuesAreDropped) {
  relays_[0]->keep("old", bytes_of("old"), now_ns());
  EXPECT_TRUE(kept(0, "old").ok());
  relays_[0]->keep("new", bytes_of("new"), in(30));
  EXPECT_FALSE(kept(0, "old").ok());
  EXPECT_TRUE(kept(0, "new").ok());
  // A value that is stored again expires at the later time.
  relays_[0]->keep("again", bytes_of("again"), now_ns() + kSecond / 4);
  relays_[0]->keep("again", bytes_of("again"), in(30));
  usleep(400'000);
  relays_[0]->keep("newer", bytes_of("newer"), in(30));
  EXPECT_TRUE(kept(0, "again").ok());
}

// The relay ends as soon as the next rank has requested the end of the value.
TEST_F(RelayChainTest, RelayEndsOnceItsReadersHaveTheValue) {
  const uint64_t before = now_ns();
  relays_[1].reset();
  EXPECT_LT(now_ns() - before, kSecond / 2);
  offer(*relays_[0], value_, in(30));
  relays_[0]->expect_readers(last_key(handout_of(value_)), 1);
  const RelaySource first = source(0);
  std::thread late([&] {
    usleep(300'000);
    const auto value = pull_as_last({first}, in(20));
    ASSERT_TRUE(value.ok()) << value.status().text();
    EXPECT_EQ(value.value(), value_);
  });
  relays_[0].reset();
  late.join();
}

TEST_F(RelayChainTest, TruncatedContactsAndOversizedHandoutsAreRefused) {
  ByteWriter writer;
  relays_[0]->contact().encode(writer);
  for (size_t length = 0; length <= writer.bytes().size(); ++length) {
    ByteReader reader(ConstByteSpan(writer.bytes()).first(length));
    EXPECT_EQ(RelayContact::decode(reader).ok(), length == writer.bytes().size()) << length;
  }
  for (const uint64_t size : {kMaxHandout, kMaxHandout + 1, UINT64_MAX}) {
    ByteWriter word;
    Handout{.size = size}.encode(word);
    ByteReader reader(word.bytes());
    EXPECT_EQ(Handout::decode(reader).ok(), size == kMaxHandout);
  }
}

// Ranks as threads over the job's store. They are created one after the other, because the
// launcher's variables belong to the process.
class StoreDigestTest : public DigestTest {
 protected:
  StoreDigestTest() {
    UniqueFd probe = listen_on(Address::parse_numeric("127.0.0.1", 0).value(), 1).value();
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", std::to_string(bound_address(probe.get())->port()).c_str(), 1);
    setenv("TORCHELASTIC_RUN_ID", fmt::format("{} {}", getpid(), now_ns()).c_str(), 1);
  }

  void run(
      int size, const std::set<int>& missing, const std::function<void(int, Bootstrap&)>& body,
      const std::function<std::string(int)>& settings = [](int) {
        return std::string("SMALL_JOB=1");
      }) {
    std::vector<std::unique_ptr<Bootstrap>> jobs(static_cast<size_t>(size));
    setenv("WORLD_SIZE", std::to_string(size).c_str(), 1);
    for (int rank = 0; rank < size; ++rank) {
      if (missing.contains(rank)) continue;
      setenv("RANK", std::to_string(rank).c_str(), 1);
      auto job = bootstrap_from_environment(config(settings(rank)), log_);
      ASSERT_TRUE(job.ok()) << job.status().text();
      jobs[static_cast<size_t>(rank)] = std::move(job).value();
    }
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      if (missing.contains(rank)) continue;
      threads.emplace_back([&, rank] { body(rank, *jobs[static_cast<size_t>(rank)]); });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

TEST_F(StoreDigestTest, EveryRankGetsTheSameDigestAndValue) {
  for (const char* secret : {"", ";SECRET=a"}) {
    run(
        40, {},
        [&](int rank, Bootstrap& job) {
          for (int round = 0; round < 2; ++round) {
            const auto digest = exchange_digest(job, "world", card_of(rank), maker_, in(30));
            ASSERT_TRUE(digest.ok()) << digest.status().text();
            EXPECT_EQ(digest.value(), digest_of(40));
            const auto value = hand_down(job, "value", pattern(rank == 0 ? 400'000 : 3), in(30));
            ASSERT_TRUE(value.ok()) << value.status().text();
            EXPECT_EQ(value.value(), pattern(400'000));
          }
        },
        [&](int) { return fmt::format("SMALL_JOB=1{}", secret); });
  }
}

TEST_F(StoreDigestTest, EveryRankReportsTheMissingRanks) {
  for (const std::set<int>& missing : {std::set<int>{7}, {6}, {4, 5}}) {
    texts_.clear();
    run(11, missing, [&](int rank, Bootstrap& job) {
      const uint64_t deadline = in(3);
      const auto digest = exchange_digest(job, "world", card_of(rank), maker_, deadline);
      EXPECT_FALSE(digest.ok());
      EXPECT_LE(now_ns(), deadline + 5 * kSecond / 2) << "the deadline counts twice";
      add_text(digest.status());
    });
    ASSERT_EQ(texts_.size(), 11 - missing.size());
    EXPECT_EQ(texts_.count(*texts_.begin()), texts_.size()) << testing::PrintToString(texts_);
    EXPECT_THAT(*texts_.begin(),
                HasSubstr(missing.size() == 2
                              ? "ranks 4-5 of 11 did not join"
                              : fmt::format("rank {} of 11 did not join", *missing.begin())));
  }
}

TEST_F(StoreDigestTest, DisagreementOnTheSmallJobLimitFailsAtOnceOnEveryRank) {
  for (const std::set<int>& small : {std::set<int>{0, 1}, {5}, {0, 1, 2, 3, 4, 5, 7}}) {
    texts_.clear();
    const uint64_t before = now_ns();
    run(
        8, {},
        [&](int rank, Bootstrap& job) {
          const auto digest = exchange_digest(job, "world", card_of(rank), maker_, in(40));
          EXPECT_FALSE(digest.ok());
          add_text(digest.status());
        },
        [&](int rank) { return small.contains(rank) ? "SMALL_JOB=8" : "SMALL_JOB=7"; });
    EXPECT_LT(now_ns() - before, 20 * kSecond);
    EXPECT_EQ(texts_.count(*texts_.begin()), 8u) << testing::PrintToString(texts_);
    EXPECT_THAT(*texts_.begin(), HasSubstr("HETCOMM_SMALL_JOB"));
  }
}

}  // namespace
}  // namespace hetcomm
