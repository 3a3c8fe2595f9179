// Communicators over existing connections (hetcomm_communicator_options_t::share):
//
//   * only the members of a new communicator take part, in their new order, and no descriptor is
//     opened;
//   * connections are closed with the last communicator that uses them, in any order of
//     destruction;
//   * an abort of one communicator, under load in another, does not affect the other; neither do
//     unreceived messages; memory does not grow;
//   * ranks that offer different connections, or that have lost one of the ranks, get their own
//     connections;
//   * a rank that fails after the others are done, or long before they begin, ends the new
//     communicator on them, with the reason.
#include <chrono>
#include <string_view>
#include <thread>

#include "tests/conformance/capi/job.h"
#include "tests/support/descriptors.h"

namespace hetcomm_test {
namespace {

class Sharing : public CapiTest {};

// |transports| must outlive the options.
hetcomm_communicator_options_t sharing(const char* transports) {
  hetcomm_communicator_options_t options{};
  options.struct_size = sizeof(options);
  options.transports = transports[0] == '\0' ? nullptr : transports;
  options.timeout_ns = kPatienceNs;
  options.share = 1;
  return options;
}

// Joins as one of |size| ranks that share connections. |name| is new for each set of ranks. Returns
// null on failure.
hetcomm_communicator_t* join(Member& me, const std::string& name, int32_t rank, int32_t size,
                             hetcomm_status_t expected = HETCOMM_OK) {
  hetcomm_bootstrap_t* bootstrap = me.make_bootstrap(name, rank, size);
  hetcomm_communicator_t* made = nullptr;
  const hetcomm_communicator_options_t options = sharing(me.test_case().transports.c_str());
  EXPECT_EQ(hetcomm_communicator_create(me.context(), bootstrap, &options, &made), expected)
      << "rank " << rank << ": " << hetcomm_last_error();
  hetcomm_bootstrap_destroy(bootstrap);
  return made;
}

void destroy(hetcomm_communicator_t* communicator) {
  EXPECT_EQ(hetcomm_communicator_destroy(communicator), HETCOMM_OK) << hetcomm_last_error();
}

void talk(hetcomm_communicator_t* communicator, uint64_t value) {
  ring(communicator, value);
  EXPECT_EQ(hetcomm_communicator_barrier(communicator, kPatienceNs), HETCOMM_OK)
      << hetcomm_last_error();
}

using hetcomm::test::open_descriptors;

// A job opens these for its own use, now or later: watchers of the control plane, streams.
constexpr size_t kOfTheJob = 8;

TEST_P(Sharing, OnlyMembersTakePartInANewCommunicator) {
  HETCOMM_NEEDS_RANKS();
  run(4, [](Member& me) {
    talk(me.communicator(), 1);
    me.meet();
    // Ranks 3, 1 and 0 take part, in this order. Rank 2 does not know about it.
    const int32_t places[4] = {2, 1, -1, 0};
    const int32_t place = places[me.rank()];
    if (place >= 0) {
      hetcomm_communicator_t* part = join(me, "part", place, 3);
      ASSERT_NE(part, nullptr);
      int32_t rank = -1;
      int32_t size = 0;
      EXPECT_EQ(hetcomm_communicator_rank(part, &rank, &size), HETCOMM_OK);
      EXPECT_EQ(rank, place);
      EXPECT_EQ(size, 3);
      talk(part, 2);
      destroy(part);
    }
    me.meet();
    talk(me.communicator(), 3);
    me.meet();
  });
}

TEST_P(Sharing, NewCommunicatorReusesDescriptors) {
  if (!GetParam().processes) GTEST_SKIP() << "descriptors are of the process";
  constexpr int kMore = 50;
  static_assert(kOfTheJob < kMore);
  run(3, [](Member& me) {
    std::vector<hetcomm_communicator_t*> many{join(me, "first", me.rank(), 3)};
    talk(many.back(), 1);
    const size_t before = open_descriptors();
    for (int i = 0; i < kMore; ++i) {
      many.push_back(join(me, "many" + std::to_string(i), me.rank(), 3));
      ASSERT_NE(many.back(), nullptr);
      talk(many.back(), static_cast<uint64_t>(i));
    }
    EXPECT_LE(open_descriptors(), before + kOfTheJob);
    for (hetcomm_communicator_t* each : many) destroy(each);
    me.meet();
    // The other ranks, and the control threads, close their ends a little later.
    const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (open_descriptors() > before + kOfTheJob && std::chrono::steady_clock::now() < patience) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_LE(open_descriptors(), before + kOfTheJob);
  });
}

// The first communicator is destroyed first, while a rank still uses the last one.
TEST_P(Sharing, ConnectionsStayOpenUntilTheLastCommunicatorIsDestroyed) {
  run_two([](Member& me) {
    hetcomm_communicator_t* a = join(me, "a", me.rank(), me.size());
    hetcomm_communicator_t* b = join(me, "b", me.rank(), me.size());
    ASSERT_TRUE(a != nullptr && b != nullptr);
    talk(a, 1);
    destroy(me.release());
    talk(b, 2);
    // This communicator shares the remaining connections.
    hetcomm_communicator_t* c = join(me, "c", me.rank(), me.size());
    ASSERT_NE(c, nullptr);
    if (me.rank() == 0) {
      destroy(a);
      destroy(b);
    } else {
      destroy(b);
      destroy(a);
    }
    talk(c, 3);
    uint32_t epoch = 1;
    EXPECT_EQ(hetcomm_communicator_epoch(c, &epoch), HETCOMM_OK);
    EXPECT_EQ(epoch, 0U);
    destroy(c);
    // No connection is left, so a new communicator gets its own.
    hetcomm_communicator_t* d = join(me, "d", me.rank(), me.size());
    ASSERT_NE(d, nullptr);
    talk(d, 4);
    destroy(d);
  });
}

TEST_P(Sharing, AbortDoesNotAffectAnotherCommunicator) {
  run_two([](Member& me) {
    constexpr size_t kBytes = 1 << 20;
    const std::vector<std::byte> out = pattern(kBytes, 5);
    hetcomm_communicator_t* steady = join(me, "steady", me.rank(), me.size());
    ASSERT_NE(steady, nullptr);
    uint64_t before = 0;
    for (int round = 0; round < 60; ++round) {
      const std::string name = "round" + std::to_string(round);
      hetcomm_communicator_t* doomed = join(me, name, me.rank(), me.size());
      ASSERT_NE(doomed, nullptr);
      std::vector<std::byte> in(kBytes);
      std::vector<std::byte> never(kBytes);
      const auto post = [&](hetcomm_communicator_t* on, std::vector<std::byte>& to,
                            std::vector<hetcomm_request_t*>& requests) {
        hetcomm_request_t* request = nullptr;
        EXPECT_EQ(hetcomm_recv(on, me.partner(), 1, 0, hetcomm_buffer_host(to.data(), kBytes),
                               nullptr, &request),
                  HETCOMM_OK);
        requests.push_back(request);
        EXPECT_EQ(hetcomm_send(on, me.partner(), 1, hetcomm_buffer_host(out.data(), kBytes),
                               nullptr, &request),
                  HETCOMM_OK);
        requests.push_back(request);
      };
      std::vector<hetcomm_request_t*> lasting;
      std::vector<hetcomm_request_t*> ending;
      post(steady, in, lasting);
      post(doomed, never, ending);
      if (round % 2 == me.rank()) {
        EXPECT_EQ(hetcomm_communicator_abort(doomed, "of this one only"), HETCOMM_OK);
      }
      finish_all(lasting);
      EXPECT_TRUE(holds(in, 5, kBytes));
      for (hetcomm_request_t* request : ending) {
        const Outcome outcome = finish(request);
        if (outcome.status != HETCOMM_OK) {
          EXPECT_EQ(outcome.status, HETCOMM_ABORTED);
        }
      }
      me.meet();
      destroy(doomed);
      if (round == 20) before = resident_bytes();
    }
    talk(steady, 9);
    if (me.test_case().processes) {
      EXPECT_LT(resident_bytes(), before + (16U << 20));
    }
    destroy(steady);
    me.meet();
  });
}

// The messages exceed the credit that the peer grants.
TEST_P(Sharing, UnreceivedMessagesDoNotStallAnotherCommunicator) {
  HETCOMM_NEEDS_RANKS();
  run(2, [](Member& me) {
    hetcomm_communicator_t* full = join(me, "full", me.rank(), 2);
    hetcomm_communicator_t* other = join(me, "other", me.rank(), 2);
    ASSERT_TRUE(full != nullptr && other != nullptr);
    std::vector<hetcomm_request_t*> sends;
    const std::vector<std::byte> bytes(1000);
    if (me.rank() == 0) {
      for (int i = 0; i < 2000; ++i) {
        hetcomm_request_t* send = nullptr;
        ASSERT_EQ(hetcomm_send(full, 1, 7, hetcomm_buffer_host(bytes.data(), bytes.size()), nullptr,
                               &send),
                  HETCOMM_OK);
        sends.push_back(send);
      }
    }
    const uint64_t start = clock_ns();
    for (uint64_t i = 0; i < 20; ++i) talk(other, i);
    EXPECT_LT(clock_ns() - start, kPatienceNs);
    me.meet();
    if (me.rank() == 0) {
      EXPECT_EQ(hetcomm_communicator_abort(full, "enough"), HETCOMM_OK);
    }
    for (hetcomm_request_t* send : sends) {
      const Outcome outcome = finish(send);
      if (outcome.status != HETCOMM_OK) {
        EXPECT_EQ(outcome.status, HETCOMM_ABORTED) << outcome.text;
      }
    }
    talk(other, 21);
    me.meet();
    destroy(full);
    destroy(other);
    me.meet();
  });
}

TEST_P(Sharing, ConnectionsAreSharedOnlyWithinATransport) {
  if (GetParam().transports != "shm") GTEST_SKIP() << "needs a second transport";
  run(2, [](Member& me) {
    talk(me.communicator(), 1);
    hetcomm_bootstrap_t* bootstrap = me.make_bootstrap("tcp", me.rank(), 2);
    const hetcomm_communicator_options_t options = sharing("tcp");
    hetcomm_communicator_t* own = nullptr;
    ASSERT_EQ(hetcomm_communicator_create(me.context(), bootstrap, &options, &own), HETCOMM_OK)
        << hetcomm_last_error();
    hetcomm_bootstrap_destroy(bootstrap);
    talk(own, 2);
    hetcomm_counters_t counters[4] = {{.struct_size = sizeof(counters[0])}};
    size_t count = 0;
    ASSERT_EQ(hetcomm_communicator_counters(own, 1 - me.rank(), 4, counters, &count), HETCOMM_OK);
    ASSERT_EQ(count, 1U);
    EXPECT_STREQ(counters[0].transport, "tcp");
    // Both sets of connections are now on offer, and each rank finds the one that it needs.
    hetcomm_communicator_t* shared = join(me, "shm", me.rank(), 2);
    ASSERT_NE(shared, nullptr);
    talk(shared, 3);
    ASSERT_EQ(hetcomm_communicator_counters(shared, 1 - me.rank(), 4, counters, &count),
              HETCOMM_OK);
    EXPECT_STREQ(counters[0].transport, "shm");
    destroy(shared);
    destroy(own);
    me.meet();
  });
}

// The new communicator has another secret than the connections.
TEST_P(Sharing, DifferentSecretRequiresSeparateConnections) {
  HETCOMM_NEEDS_RANKS();
  run(2, [](Member& me) {
    StoreView view(me.store(), "secret:");
    hetcomm_bootstrap_options_t with = view.options(me.rank(), 2);
    with.secret = "another";
    with.secret_size = 7;
    hetcomm_bootstrap_t* bootstrap = nullptr;
    ASSERT_EQ(hetcomm_bootstrap_create_from_callbacks(me.context(), &with, &bootstrap), HETCOMM_OK);
    const hetcomm_communicator_options_t options = sharing(me.test_case().transports.c_str());
    const size_t before = open_descriptors();
    hetcomm_communicator_t* own = nullptr;
    ASSERT_EQ(hetcomm_communicator_create(me.context(), bootstrap, &options, &own), HETCOMM_OK)
        << hetcomm_last_error();
    hetcomm_bootstrap_destroy(bootstrap);
    if (me.test_case().processes) {
      EXPECT_GT(open_descriptors(), before);
    }
    talk(own, 1);
    me.meet();
    destroy(own);
    me.meet();
  });
}

TEST_P(Sharing, SurvivorsShareConnectionsAfterALoss) {
  if (!GetParam().processes) GTEST_SKIP() << "needs processes";
  run(3, [](Member& me) {
    hetcomm_communicator_t* all = join(me, "all", me.rank(), 3);
    ASSERT_NE(all, nullptr);
    talk(all, 1);
    if (me.rank() == 2) me.die();
    ASSERT_TRUE(
        me.until([&] { return hetcomm_communicator_peer_status(all, 2) == HETCOMM_PEER_LOST; }));
    // The two remaining ranks share their connections.
    constexpr int kMore = 20;
    static_assert(kOfTheJob < kMore);
    const size_t before = open_descriptors();
    std::vector<hetcomm_communicator_t*> rest;
    for (int i = 0; i < kMore; ++i) {
      rest.push_back(join(me, "rest" + std::to_string(i), me.rank(), 2));
      ASSERT_NE(rest.back(), nullptr);
      talk(rest.back(), 2);
    }
    EXPECT_LE(open_descriptors(), before + kOfTheJob);
    for (hetcomm_communicator_t* each : rest) destroy(each);
    destroy(all);
    me.expect_ruin();
  });
}

// The other ranks can read the data that rank 1 has published, and then its store fails.
TEST_P(Sharing, FailureDuringCreationEndsTheCommunicatorOnOtherRanks) {
  HETCOMM_NEEDS_RANKS();
  run(3, [](Member& me) {
    talk(me.communicator(), 1);
    me.meet();
    if (me.rank() == 1) {
      StoreView view(me.store(), "fails:");
      static thread_local hetcomm_bootstrap_options_t real;
      real = view.options(1, 3);
      hetcomm_bootstrap_options_t failing = real;
      failing.get = [](void* self, const char* key, void* value, size_t* size, uint64_t limit) {
        const hetcomm_status_t status = real.get(self, key, value, size, limit);
        // The store returns the data from all ranks under this name.
        const bool last = std::string_view(key).ends_with("/all");
        return status == HETCOMM_OK && last ? HETCOMM_INTERNAL : status;
      };
      hetcomm_bootstrap_t* bootstrap = nullptr;
      ASSERT_EQ(hetcomm_bootstrap_create_from_callbacks(me.context(), &failing, &bootstrap),
                HETCOMM_OK);
      const hetcomm_communicator_options_t options = sharing(me.test_case().transports.c_str());
      hetcomm_communicator_t* made = nullptr;
      EXPECT_EQ(hetcomm_communicator_create(me.context(), bootstrap, &options, &made),
                HETCOMM_BOOTSTRAP_FAILED);
      hetcomm_bootstrap_destroy(bootstrap);
    } else {
      hetcomm_communicator_t* made = join(me, "fails", me.rank(), 3);
      ASSERT_NE(made, nullptr);
      uint64_t value = 0;
      hetcomm_request_t* receive = nullptr;
      const uint64_t start = clock_ns();
      const hetcomm_status_t call =
          hetcomm_recv(made, 1, 1, 0, hetcomm_buffer_host(&value, 8), nullptr, &receive);
      if (call == HETCOMM_OK) {
        const Outcome outcome = finish(receive);
        EXPECT_EQ(outcome.status, HETCOMM_ABORTED) << outcome.text;
        EXPECT_NE(outcome.text.find("rank 1 could not make its part"), std::string::npos)
            << outcome.text;
      } else {
        EXPECT_EQ(call, HETCOMM_ABORTED);
      }
      EXPECT_LT(clock_ns() - start, 10 * kSec);
      destroy(made);
    }
    me.meet();
    talk(me.communicator(), 2);
    me.meet();
  });
}

// Rank 1 fails before rank 2 has begun. Rank 2 learns of it long before it creates its own
// communicator.
TEST_P(Sharing, LateRankLearnsOfAnEarlierCreationFailure) {
  HETCOMM_NEEDS_RANKS();
  run(3, [](Member& me) {
    talk(me.communicator(), 1);
    me.meet();
    hetcomm_bootstrap_t* bootstrap = me.make_bootstrap("late", me.rank(), 3);
    hetcomm_communicator_options_t options = sharing(me.test_case().transports.c_str());
    if (me.rank() == 1) options.timeout_ns = 300 * kMs;
    if (me.rank() == 2) {
      me.until([&] { return me.store().word(0) == 1; });
      const uint64_t until = clock_ns() + 200 * kMs;
      me.until([&] { return clock_ns() > until; });
    }
    hetcomm_communicator_t* made = nullptr;
    const hetcomm_status_t status =
        hetcomm_communicator_create(me.context(), bootstrap, &options, &made);
    hetcomm_bootstrap_destroy(bootstrap);
    if (me.rank() == 1) {
      EXPECT_EQ(status, HETCOMM_BOOTSTRAP_FAILED);
      me.store().word(0) = 1;
    } else {
      ASSERT_EQ(status, HETCOMM_OK) << hetcomm_last_error();
      const uint64_t start = clock_ns();
      EXPECT_NE(hetcomm_communicator_barrier(made, kPatienceNs), HETCOMM_OK);
      expect_rejected(made, 1, HETCOMM_ABORTED);
      expect_rejected(made, me.rank() == 0 ? 2 : 0, HETCOMM_ABORTED);
      EXPECT_LT(clock_ns() - start, 10 * kSec);
      destroy(made);
    }
    me.meet();
    talk(me.communicator(), 2);
    me.meet();
  });
}

TEST_P(Sharing, CommunicatorsAreCreatedWhileAnotherThreadCommunicates) {
  if (!GetParam().thread_progress) GTEST_SKIP() << "one is made while another is used";
  run(2, [](Member& me) {
    hetcomm_communicator_t* used = join(me, "used", me.rank(), 2);
    ASSERT_NE(used, nullptr);
    std::thread other([&] {
      for (uint64_t i = 0; i < 200; ++i) talk(used, i);
    });
    for (int i = 0; i < 50; ++i) {
      hetcomm_communicator_t* part = join(me, "part" + std::to_string(i), me.rank(), 2);
      ASSERT_NE(part, nullptr);
      talk(part, 1000);
      destroy(part);
    }
    other.join();
    destroy(used);
    me.meet();
  });
}

INSTANTIATE_TEST_SUITE_P(All, Sharing, ::testing::ValuesIn([] {
                           std::vector<CapiCase> cases = plain_cases();
                           for (const CapiCase& each : process_cases()) {
                             if (each.name == "shm_thread" || each.name == "tcp_thread") {
                               cases.push_back(each);
                             }
                           }
                           return cases;
                         }()),
                         capi_case_name);

}  // namespace
}  // namespace hetcomm_test
