// Matching:
//
//   * messages with one source and tag are received in send order, and receives are filled in post
//     order, whichever came first, and whatever protocols the messages use;
//   * a receive takes the first message whose tag equals its own in all bits that are not ignored;
//   * ANY_SOURCE accepts messages from every rank, in each rank's order, and the older of a
//     wildcard and an exact receive wins;
//   * unexpected messages are kept whole until they are received;
//   * tags may be posted in any order;
//   * probe reports the message that a receive would match, and removes nothing.
#include <map>

#include "tests/conformance/capi/job.h"

namespace hetcomm_test {
namespace {

class Matching : public CapiTest {};

// Returns sizes that use every protocol: single message, pieces, rendezvous.
uint64_t mixed_size(uint64_t index) {
  static constexpr uint64_t kSizes[] = {0, 8, 300, 5000, 70'000, 200'000, 1};
  return kSizes[index % std::size(kSizes)];
}

TEST_P(Matching, MessagesWithTheSameTagAreReceivedInOrder) {
  run_two([](Member& me) {
    constexpr uint64_t kCount = 60;
    std::vector<std::vector<std::byte>> out;
    std::vector<std::vector<std::byte>> in(kCount, std::vector<std::byte>(200'000));
    std::vector<hetcomm_request_t*> sends;
    std::vector<hetcomm_request_t*> receives;
    const auto post_receives = [&] {
      for (auto& memory : in) {
        receives.push_back(me.recv(me.partner(), 5, memory.data(), memory.size()));
      }
    };
    if (me.rank() == 0) post_receives();  // one rank posts before, one after the messages
    for (uint64_t i = 0; i < kCount; ++i) {
      out.push_back(pattern(mixed_size(i), i));
      sends.push_back(me.send(me.partner(), 5, out.back().data(), out.back().size()));
    }
    if (me.rank() != 0) {
      (void)me.until([] { return false; }, 5 * kMs);
      post_receives();
    }
    for (uint64_t i = 0; i < kCount; ++i) {
      const Outcome outcome = finish(receives[i]);
      EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      EXPECT_EQ(outcome.source, me.partner());
      EXPECT_EQ(outcome.tag, 5u);
      EXPECT_EQ(outcome.bytes_sent, mixed_size(i));
      EXPECT_EQ(outcome.bytes_received, mixed_size(i));
      EXPECT_TRUE(holds(in[i], i, mixed_size(i))) << "message " << i;
    }
    finish_all(sends);
    me.meet();
  });
}

TEST_P(Matching, TagsCanBeReceivedInAnyOrder) {
  run_two([](Member& me) {
    constexpr uint64_t kCount = 40;
    std::vector<std::vector<std::byte>> out;
    std::vector<std::vector<std::byte>> in(kCount, std::vector<std::byte>(200'000));
    std::vector<hetcomm_request_t*> requests;
    for (uint64_t i = 0; i < kCount; ++i) {
      out.push_back(pattern(mixed_size(i), i));
      requests.push_back(me.send(me.partner(), i, out[i].data(), out[i].size()));
    }
    std::vector<hetcomm_request_t*> receives(kCount);
    for (uint64_t i = kCount; i-- > 0;) {
      receives[i] = me.recv(me.partner(), i, in[i].data(), in[i].size());
    }
    for (uint64_t k = 0; k < kCount; ++k) {
      const uint64_t i = k * 17 % kCount;
      const Outcome outcome = finish(receives[i]);
      EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      EXPECT_EQ(outcome.tag, i);
      EXPECT_TRUE(holds(in[i], i, mixed_size(i)));
    }
    finish_all(requests);
    me.meet();
  });
}

TEST_P(Matching, ReceiveMatchesTagsThatDifferInIgnoredBits) {
  run_two([](Member& me) {
    const uint64_t tags[] = {0x1200, 0x1234, 0xff00000000000034, 0x34};
    std::vector<hetcomm_request_t*> sends;
    for (const uint64_t& tag : tags) {
      sends.push_back(me.send(me.partner(), tag, &tag, sizeof(tag)));
    }
    struct Expectation {
      uint64_t tag;
      uint64_t ignore;
      uint64_t matched;
    };
    // Each receive matches the oldest remaining message that fits.
    const Expectation expected[] = {
        {0x34, 0xff00, 0x1234},
        {0, HETCOMM_ANY_TAG, 0x1200},
        {0x34, 0xff00000000000000, 0xff00000000000034},
        {0x34, HETCOMM_EXACT_TAG, 0x34},
    };
    for (const Expectation& each : expected) {
      uint64_t value = 0;
      const Outcome outcome =
          finish(me.recv(me.partner(), each.tag, &value, sizeof(value), each.ignore));
      EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      EXPECT_EQ(outcome.tag, each.matched);
      EXPECT_EQ(value, each.matched);
    }
    finish_all(sends);
    me.meet();
  });
}

TEST_P(Matching, IgnoredBitsOfTheReceiveTagHaveNoEffect) {
  run_two([](Member& me) {
    uint64_t value = 42;
    uint64_t got = 0;
    hetcomm_request_t* send = me.send(me.partner(), 0xab, &value, sizeof(value));
    const Outcome outcome = finish(me.recv(me.partner(), 0xffab, &got, sizeof(got), 0xff00));
    EXPECT_EQ(outcome.status, HETCOMM_OK);
    EXPECT_EQ(outcome.tag, 0xabu);
    EXPECT_EQ(got, 42u);
    EXPECT_EQ(finish(send).status, HETCOMM_OK);
    me.meet();
  });
}

TEST_P(Matching, EveryTagBitIsTransmitted) {
  run_two([](Member& me) {
    std::vector<hetcomm_request_t*> requests;
    std::vector<uint64_t> values(64);
    for (uint64_t bit = 0; bit < 64; ++bit) {
      values[bit] = uint64_t{1} << bit;
      requests.push_back(me.send(me.partner(), values[bit], &values[bit], 8));
    }
    for (uint64_t bit = 64; bit-- > 0;) {
      uint64_t got = 0;
      const Outcome outcome = finish(me.recv(me.partner(), uint64_t{1} << bit, &got, 8));
      EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      if (outcome.status != HETCOMM_OK) break;
      EXPECT_EQ(outcome.tag, uint64_t{1} << bit);
      EXPECT_EQ(got, uint64_t{1} << bit);
    }
    finish_all(requests);
    me.meet();
  });
}

TEST_P(Matching, OlderReceiveWinsWhetherWildcardOrExact) {
  HETCOMM_NEEDS_RANKS();
  run(2, [](Member& me) {
    if (me.rank() == 1) {
      me.meet();
      for (uint64_t i = 0; i < 6; ++i) {
        EXPECT_EQ(finish(me.send(0, 7, &i, sizeof(i))).status, HETCOMM_OK);
      }
      me.meet();
      return;
    }
    uint64_t values[6] = {};
    std::vector<hetcomm_request_t*> receives = {
        me.recv(1, 7, &values[0], 8),
        me.recv(HETCOMM_ANY_SOURCE, 7, &values[1], 8),
        me.recv(1, 0, &values[2], 8, HETCOMM_ANY_TAG),
        me.recv(HETCOMM_ANY_SOURCE, 0, &values[3], 8, HETCOMM_ANY_TAG),
        me.recv(1, 7, &values[4], 8),
        me.recv(HETCOMM_ANY_SOURCE, 3, &values[5], 8, 0xf),
    };
    me.meet();
    for (uint64_t i = 0; i < 6; ++i) {
      const Outcome outcome = finish(receives[i]);
      EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      EXPECT_EQ(outcome.source, 1);
      EXPECT_EQ(outcome.tag, 7u);
      EXPECT_EQ(values[i], i) << "receive " << i;
    }
    me.meet();
  });
}

TEST_P(Matching, AnySourceKeepsTheOrderOfEachSender) {
  HETCOMM_NEEDS_RANKS();
  run(4, [](Member& me) {
    constexpr uint64_t kEach = 30;
    if (me.rank() != 0) {
      std::vector<hetcomm_request_t*> sends;
      std::vector<std::vector<std::byte>> out;
      for (uint64_t i = 0; i < kEach; ++i) {
        out.push_back(pattern(8 + mixed_size(i), i + 1000 * static_cast<uint64_t>(me.rank())));
        sends.push_back(me.send(0, i, out.back().data(), out.back().size()));
      }
      finish_all(sends);
      me.meet();
      return;
    }
    std::map<int32_t, uint64_t> next;
    std::vector<std::byte> memory(300'000);
    for (uint64_t i = 0; i < 3 * kEach; ++i) {
      const Outcome outcome =
          finish(me.recv(HETCOMM_ANY_SOURCE, 0, memory.data(), memory.size(), HETCOMM_ANY_TAG));
      EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      const uint64_t sequence = next[outcome.source]++;
      EXPECT_EQ(outcome.tag, sequence) << "from rank " << outcome.source;
      const uint64_t size = 8 + mixed_size(sequence);
      EXPECT_EQ(outcome.bytes_received, size);
      EXPECT_EQ(find_mismatch(hetcomm::ConstByteSpan(memory).first(size),
                              sequence + 1000 * static_cast<uint64_t>(outcome.source)),
                std::nullopt);
    }
    EXPECT_EQ(next.size(), 3u);
    me.meet();
  });
}

TEST_P(Matching, MessagesToSelfMatchLikeOthers) {
  run_two([](Member& me) {
    const std::vector<std::byte> out = pattern(100'000, 3);
    std::vector<std::byte> in(100'000);
    uint64_t small = 0;
    const uint64_t value = 77;
    std::vector<hetcomm_request_t*> requests = {
        me.send(me.rank(), 1, out.data(), out.size()),
        me.send(me.rank(), 2, &value, 8),
        me.recv(me.rank(), 2, &small, 8),
        me.recv(me.rank(), 1, in.data(), in.size()),
    };
    finish_all(requests);
    EXPECT_EQ(small, 77u);
    EXPECT_TRUE(holds(in, 3, in.size()));
    me.meet();
  });
}

// A long eager message has this many bytes plus the value of its tag.
constexpr uint64_t kLong = 60'000;

bool sends_long_eager(const CapiCase& test_case) {
  return test_case.name == "shm" || test_case.name == "shm_thread" || test_case.name == "shm_pull";
}

void send_long(Member& me, uint64_t tag) {
  const auto out = pattern(kLong + tag, tag);
  const Outcome sent = finish(me.send(me.partner(), tag, out.data(), out.size()));
  EXPECT_EQ(sent.status, HETCOMM_OK) << sent.text;
}

void receive_long(Member& me, uint64_t tag, uint64_t room) {
  std::vector<std::byte> in(room);
  const Outcome got = finish(me.recv(me.partner(), tag, in.data(), in.size()));
  EXPECT_EQ(got.status, room < kLong + tag ? HETCOMM_TRUNCATED : HETCOMM_OK) << got.text;
  EXPECT_EQ(got.bytes_sent, kLong + tag);
  EXPECT_TRUE(holds(in, tag, in.size())) << "message " << tag;
}

// Neither rank receives before its sends have ended. Messages are pulled if the receiver insists on
// reading.
TEST_P(Matching, EagerSendCompletesWithoutAReceive) {
  if (!sends_long_eager(GetParam())) {
    GTEST_SKIP() << "these messages are longer than its eager limit, or than its credit";
  }
  run_two([&](Member& me) {
    constexpr uint64_t kCount = 6;
    // The second message follows the receiver's word.
    for (const uint64_t tag : {kCount, kCount + 1}) {
      send_long(me, tag);
      receive_long(me, tag, kLong + tag);
    }
    for (int round = 0; round < 20; ++round) {
      me.meet();
      for (uint64_t tag = 0; tag < kCount; ++tag) send_long(me, tag);
      for (uint64_t tag = kCount; tag-- > 0;) receive_long(me, tag, tag == 3 ? 100 : kLong + tag);
    }
    me.meet();
    hetcomm_counters_t counters{.struct_size = sizeof(counters)};
    size_t count = 0;
    EXPECT_EQ(hetcomm_communicator_counters(me.communicator(), me.partner(), 1, &counters, &count),
              HETCOMM_OK);
    EXPECT_GE(counters.bulk_by_get, GetParam().name == "shm_pull" ? 1u : 0u);
    me.meet();
  });
}

// The receiver is outside of the library, and returns only when the sends have ended.
TEST_P(Matching, EagerSendCompletesWithoutACallByTheReceiver) {
  if (!sends_long_eager(GetParam())) {
    GTEST_SKIP() << "these messages are longer than its eager limit, or than its credit";
  }
  run_two([&](Member& me) {
    uint64_t next = 0;
    for (int i = 0; i < 2; ++i) {
      send_long(me, 100);
      receive_long(me, 100, kLong + 100);
    }
    for (int round = 0; round < 20; ++round, next += 3) {
      me.meet();
      if (me.rank() == round % 2) {
        // One of these messages is cancelled while it is pulled or pushed, or after its end.
        const auto out = pattern(kLong, 0);
        hetcomm_request_t* cancelled = me.send(me.partner(), 1000, out.data(), out.size());
        if (round % 4 > 1) (void)me.until([] { return false; }, 2 * kMs);
        EXPECT_EQ(hetcomm_request_cancel(cancelled), HETCOMM_OK);
        const hetcomm_status_t ended = finish(cancelled).status;
        EXPECT_TRUE(ended == HETCOMM_OK || ended == HETCOMM_CANCELLED) << ended;
        for (uint64_t tag = next; tag < next + 3; ++tag) send_long(me, tag);
        me.meet();
      } else {
        me.meet();
        receive_long(me, next + 2, kLong + next + 2);
        receive_long(me, next, round % 3 == 0 ? 100 : kLong + next);
        receive_long(me, next + 1, kLong + next + 1);
      }
    }
    me.meet();
  });
}

TEST_P(Matching, UnexpectedMessagesAreKeptIntact) {
  run_two([](Member& me) {
    constexpr uint64_t kCount = 30;
    std::vector<std::vector<std::byte>> out;
    std::vector<hetcomm_request_t*> sends;
    for (uint64_t i = 0; i < kCount; ++i) {
      out.push_back(pattern(mixed_size(i), i));
      sends.push_back(me.send(me.partner(), i, out.back().data(), out.back().size()));
    }
    // Every message that needs no receive leaves.
    (void)me.until([] { return false; }, 20 * kMs);
    for (uint64_t i = kCount; i-- > 0;) {
      std::vector<std::byte> in(mixed_size(i) + 16);
      const Outcome outcome = finish(me.recv(me.partner(), i, in.data(), in.size()));
      EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      if (outcome.status != HETCOMM_OK) break;
      EXPECT_TRUE(holds(in, i, mixed_size(i))) << "message " << i;
    }
    finish_all(sends);
    me.meet();
  });
}

TEST_P(Matching, ProbeReportsTheMessageWithoutRemovingIt) {
  run_two([](Member& me) {
    hetcomm_completion_t seen{};
    EXPECT_EQ(hetcomm_probe(me.communicator(), me.partner(), 99, HETCOMM_EXACT_TAG,
                            HETCOMM_TIMEOUT_POLL, &seen),
              HETCOMM_TIMED_OUT);
    EXPECT_EQ(
        hetcomm_probe(me.communicator(), HETCOMM_ANY_SOURCE, 99, HETCOMM_EXACT_TAG, 5 * kMs, &seen),
        HETCOMM_TIMED_OUT);
    me.meet();
    std::vector<hetcomm_request_t*> sends;
    std::vector<std::vector<std::byte>> out;
    for (uint64_t i = 0; i < 7; ++i) {
      out.push_back(pattern(mixed_size(i), i));
      sends.push_back(me.send(me.partner(), 10 + i, out[i].data(), out[i].size()));
    }
    for (uint64_t i = 7; i-- > 0;) {
      for (int again = 0; again < 2; ++again) {
        EXPECT_EQ(hetcomm_probe(me.communicator(), again == 0 ? me.partner() : HETCOMM_ANY_SOURCE,
                                10 + i, HETCOMM_EXACT_TAG, kPatienceNs, &seen),
                  HETCOMM_OK)
            << hetcomm_last_error();
        EXPECT_EQ(seen.source, me.partner());
        EXPECT_EQ(seen.tag, 10 + i);
        EXPECT_EQ(seen.bytes_sent, mixed_size(i));
      }
    }
    // A probe for any tag finds the message that a receive would match.
    EXPECT_EQ(
        hetcomm_probe(me.communicator(), me.partner(), 0, HETCOMM_ANY_TAG, kPatienceNs, &seen),
        HETCOMM_OK);
    EXPECT_EQ(seen.tag, 10u);
    for (uint64_t i = 0; i < 7; ++i) {
      std::vector<std::byte> in(mixed_size(i));
      const Outcome outcome = finish(me.recv(me.partner(), 10 + i, in.data(), in.size()));
      EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      EXPECT_TRUE(holds(in, i, in.size()));
    }
    finish_all(sends);
    EXPECT_EQ(hetcomm_probe(me.communicator(), HETCOMM_ANY_SOURCE, 0, HETCOMM_ANY_TAG,
                            HETCOMM_TIMEOUT_POLL, &seen),
              HETCOMM_TIMED_OUT);
    me.meet();
  });
}

// Two ranks exchange messages with many tags. Receives are posted at random before or after the
// sends. The model is a list per tag.
TEST_P(Matching, RandomTrafficMatchesTheReferenceModel) {
  run_two([](Member& me) {
    constexpr uint64_t kCount = 250;
    constexpr uint64_t kTags = 5;
    Random random(static_cast<uint64_t>(me.rank()) + 1);
    Random theirs(static_cast<uint64_t>(me.partner()) + 1);
    struct Sent {
      uint64_t tag;
      uint64_t size;
      uint64_t seed;
    };
    const auto draw = [](Random& from) {
      return Sent{from.below(kTags), from.size_up_to(150'000) - 1, from.next()};
    };
    // The messages that the other rank will send, in order, by tag.
    std::map<uint64_t, std::vector<Sent>> expected;
    for (uint64_t i = 0; i < kCount; ++i) {
      const Sent each = draw(theirs);
      expected[each.tag].push_back(each);
    }
    Random choices(99 + static_cast<uint64_t>(me.rank()));
    std::vector<std::vector<std::byte>> out;
    std::vector<hetcomm_request_t*> sends;
    struct Pending {
      Sent sent;
      std::vector<std::byte> memory;
      hetcomm_request_t* request;
    };
    std::vector<Pending> pending;
    std::map<uint64_t, size_t> posted;
    const auto finish_some = [&](size_t leave) {
      while (pending.size() > leave) {
        const size_t pick = choices.below(pending.size());
        const Outcome outcome = finish(pending[pick].request);
        EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
        EXPECT_EQ(outcome.bytes_sent, pending[pick].sent.size);
        EXPECT_TRUE(holds(pending[pick].memory, pending[pick].sent.seed, pending[pick].sent.size));
        std::swap(pending[pick], pending.back());
        pending.pop_back();
      }
    };
    uint64_t sent = 0;
    uint64_t received = 0;
    while (sent < kCount || received < kCount) {
      if (sent < kCount && choices.chance(0.5)) {
        const Sent each = draw(random);
        out.push_back(pattern(each.size, each.seed));
        sends.push_back(me.send(me.partner(), each.tag, out.back().data(), each.size));
        ++sent;
      }
      const uint64_t tag = choices.below(kTags);
      if (posted[tag] < expected[tag].size()) {
        const Sent each = expected[tag][posted[tag]++];
        pending.push_back({each, std::vector<std::byte>(each.size + 9), nullptr});
        pending.back().request =
            me.recv(choices.chance(0.5) ? me.partner() : HETCOMM_ANY_SOURCE, tag,
                    pending.back().memory.data(), pending.back().memory.size());
        ++received;
      }
      // Never waits for a message that the other rank may send only after one from this rank.
      if (sent == kCount) finish_some(20);
      (void)hetcomm_context_progress(me.context());
    }
    finish_some(0);
    finish_all(sends);
    me.meet();
  });
}

INSTANTIATE_TEST_SUITE_P(Over, Matching, ::testing::ValuesIn(all_cases()), capi_case_name);

}  // namespace
}  // namespace hetcomm_test
