// The control plane's building blocks:
//
//   * a frame is decoded as it was encoded, at every length, and any other input is refused;
//   * only a profile's text may be long;
//   * the address book returns the address that a rank has reported, else the one that all ranks
//     know, and keeps its entry if a text cannot be parsed;
//   * a rank's newest profile stays until it is removed;
//   * the ring: watching is mutual, the graph stays connected when any rank leaves, ranks are few
//     steps apart, and a neighbour on another host is preferred if one is near;
//   * news: a fact is kept once, fates are kept, and the oldest notices are dropped;
//   * letters wait until they are accepted, in order, and arrive once;
//   * mail arrives in the order in which it was pushed, and rings the doorbell.
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <queue>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "src/liveness/address_book.h"
#include "src/liveness/frame.h"
#include "src/liveness/letters.h"
#include "src/liveness/mailbox.h"
#include "src/liveness/news.h"
#include "src/liveness/profile_book.h"
#include "src/liveness/ring.h"
#include "src/system/unique_fd.h"

namespace hetcomm::liveness {
namespace {

// --- frames -----------------------------------------------------------------------------------

Frame example_frame(size_t length = 5) {
  return {.type = FrameType::kFailed,
          .code = 0xfe,
          .subject = 6,
          .number = 0x89abcdef,
          .value = 0xfedcba9876543210,
          .text = std::string(length, 't')};
}

std::vector<std::byte> encoded(const Frame& frame) {
  std::vector<std::byte> bytes;
  encode(frame, bytes);
  return bytes;
}

void expect_equal(const Frame& a, const Frame& b) {
  EXPECT_EQ(a.type, b.type);
  EXPECT_EQ(a.code, b.code);
  EXPECT_EQ(a.subject, b.subject);
  EXPECT_EQ(a.number, b.number);
  EXPECT_EQ(a.value, b.value);
  EXPECT_EQ(a.text, b.text);
}

TEST(LivenessFrame, EveryTypeAndLengthReadsBackAsWritten) {
  for (int type = 1; type <= static_cast<int>(kLastFrameType); ++type) {
    for (const size_t length : {size_t{0}, size_t{1}, size_t{255}, size_t{256}, kMaxFrameText}) {
      Frame sent = example_frame(length);
      sent.type = static_cast<FrameType>(type);
      std::vector<std::byte> bytes = encoded(sent);
      EXPECT_EQ(bytes.size(), kFrameHeaderBytes + length);
      encode(Frame{}, bytes);  // the following bytes belong to another frame
      Frame got;
      size_t used = 0;
      ASSERT_EQ(decode(bytes, 7, &got, &used), Decoded::kFrame);
      EXPECT_EQ(used, kFrameHeaderBytes + length);
      expect_equal(got, sent);
    }
  }
}

TEST(LivenessFrame, EncodingMatchesTheProtocol) {
  const std::vector<std::byte> bytes = encoded(example_frame(2));
  const unsigned char expected[] = {4,    0xfe, 2,    0,    6,    0,    0,    0,
                                    0xef, 0xcd, 0xab, 0x89, 0x10, 0x32, 0x54, 0x76,
                                    0x98, 0xba, 0xdc, 0xfe, 't',  't'};
  ASSERT_EQ(bytes.size(), sizeof(expected));
  EXPECT_EQ(std::memcmp(bytes.data(), expected, sizeof(expected)), 0);
}

TEST(LivenessFrame, IncompleteFrameWaitsForMoreBytes) {
  const std::vector<std::byte> bytes = encoded(example_frame(40));
  Frame got;
  size_t used = 77;
  for (size_t have = 0; have < bytes.size(); ++have) {
    EXPECT_EQ(decode(ConstByteSpan(bytes).first(have), 7, &got, &used), Decoded::kMore) << have;
    EXPECT_EQ(used, 77u);
  }
  EXPECT_EQ(decode(bytes, 7, &got, &used), Decoded::kFrame);
}

TEST(LivenessFrame, OverlongTextIsTruncated) {
  const std::vector<std::byte> bytes = encoded(example_frame(kMaxFrameText + 1));
  EXPECT_EQ(bytes.size(), kFrameHeaderBytes + kMaxFrameText);
  Frame got;
  size_t used = 0;
  ASSERT_EQ(decode(bytes, 7, &got, &used), Decoded::kFrame);
  EXPECT_EQ(got.text, std::string(kMaxFrameText, 't'));
}

// The header alone reveals garbage, so the decoder does not wait for an oversized text.
TEST(LivenessFrame, GarbageIsRefused) {
  struct Case {
    size_t at;
    std::vector<unsigned char> bytes;
    Decoded end;
  };
  const Case cases[] = {
      {0, {0}, Decoded::kGarbage},
      {0, {static_cast<unsigned char>(kLastFrameType)}, Decoded::kFrame},
      {0, {static_cast<unsigned char>(kLastFrameType) + 1}, Decoded::kGarbage},
      {0, {255}, Decoded::kGarbage},
      {2, {0x90, 0x01}, Decoded::kMore},     // 400
      {2, {0x91, 0x01}, Decoded::kGarbage},  // 401
      {2, {0xff, 0xff}, Decoded::kGarbage},
      {4, {0, 0, 0, 0}, Decoded::kFrame},
      {4, {7, 0, 0, 0}, Decoded::kGarbage},  // the job has seven ranks, 0 to 6
      {4, {0xff, 0xff, 0xff, 0xff}, Decoded::kGarbage},
      {4, {0, 0, 0, 0x80}, Decoded::kGarbage},
      {4, {6, 1, 0, 0}, Decoded::kGarbage},
  };
  for (const Case& test : cases) {
    std::vector<std::byte> bytes = encoded(example_frame(0));
    std::memcpy(bytes.data() + test.at, test.bytes.data(), test.bytes.size());
    Frame got;
    size_t used = 0;
    EXPECT_EQ(decode(bytes, 7, &got, &used), test.end)
        << "at " << test.at << ": " << static_cast<int>(test.bytes[0]);
  }
}

TEST(LivenessFrame, OnlyAProfileMayHaveLongText) {
  Frame profile{.type = FrameType::kLetter, .code = static_cast<uint8_t>(LetterType::kProfile)};
  profile.text = std::string(kMaxProfileText, 'p');
  std::vector<std::byte> bytes = encoded(profile);
  Frame got;
  size_t used = 0;
  ASSERT_EQ(decode(bytes, 7, &got, &used), Decoded::kFrame);
  expect_equal(got, profile);
  bytes[2] = std::byte{1};  // the length plus one
  EXPECT_EQ(decode(bytes, 7, &got, &used), Decoded::kGarbage);
  profile.text += 'p';
  ASSERT_EQ(decode(encoded(profile), 7, &got, &used), Decoded::kFrame);
  EXPECT_EQ(got.text.size(), kMaxProfileText);
  std::vector<std::byte> other = encoded(profile);
  other[1] = static_cast<std::byte>(LetterType::kCall);
  EXPECT_EQ(decode(other, 7, &got, &used), Decoded::kGarbage);
  other[0] = static_cast<std::byte>(FrameType::kHere);
  other[1] = static_cast<std::byte>(LetterType::kProfile);
  EXPECT_EQ(decode(other, 7, &got, &used), Decoded::kGarbage);
}

// --- addresses and profiles -------------------------------------------------------------------

TEST(LivenessAddressBook, ReportedAddressIsPreferred) {
  const auto place = [](const char* text, uint16_t port) {
    return Address::parse_numeric(text, port).value();
  };
  const auto texts = [](const std::vector<Address>& addresses) {
    std::vector<std::string> result;
    for (const Address& address : addresses) result.push_back(address.to_string());
    return result;
  };
  using Texts = std::vector<std::string>;
  AddressBook book({place("10.0.0.1", 0), place("fd00::2", 0)}, {0, 1, 1}, {4000, 4001, 4002});
  EXPECT_EQ(texts(book.find(0)), Texts({"10.0.0.1:4000"}));
  EXPECT_EQ(texts(book.find(2)), Texts({"[fd00::2]:4002"}));
  EXPECT_EQ(texts(book.find(3)), Texts());
  EXPECT_EQ(book.text(1), "");
  book.learn(1, {place("10.0.0.7", 1), Address::local("name")});
  EXPECT_EQ(texts(book.find(1)), Texts({"10.0.0.7:1", "local:name"}));
  AddressBook other;
  EXPECT_TRUE(other.learn_text(1, book.text(1)));
  EXPECT_EQ(texts(other.find(1)), texts(book.find(1)));
  book.learn(1, {});
  for (const std::string& bad : {std::string(), std::string("\x09"), std::string("\x01\x02"),
                                 book.text(1) + "x", book.text(1).substr(1)}) {
    EXPECT_FALSE(other.learn_text(1, bad));
    EXPECT_EQ(texts(other.find(1)), texts(book.find(1)));
  }
}

TEST(LivenessProfileBook, NewestProfileStaysUntilRemoved) {
  ProfileBook book;
  EXPECT_EQ(book.find(3), "");
  book.put(3, "old");
  book.put(3, "new");
  book.put(4, "other");
  EXPECT_EQ(book.find(3), "new");
  book.remove(3);
  EXPECT_EQ(book.find(3), "");
  EXPECT_EQ(book.find(4), "other");
}

// --- the ring ---------------------------------------------------------------------------------

std::vector<uint32_t> on_hosts(const std::vector<int>& hosts) {
  return {hosts.begin(), hosts.end()};
}

// Returns the hosts of |ranks| ranks, |each| consecutive ranks per host.
std::vector<int> in_blocks(int ranks, int each) {
  std::vector<int> hosts;
  for (int rank = 0; rank < ranks; ++rank) hosts.push_back(rank / each);
  return hosts;
}

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// Returns the number of steps along watchers from |from| to each rank; -1: unreachable.
std::vector<int> distances(const Ring& ring, int from, const std::function<bool(int)>& gone) {
  std::vector<std::vector<int>> edges(static_cast<size_t>(ring.size()));
  for (int rank = 0; rank < ring.size(); ++rank) {
    if (gone(rank)) continue;
    for (const int other : ring.neighbours(rank, gone)) {
      edges[static_cast<size_t>(rank)].push_back(other);
      edges[static_cast<size_t>(other)].push_back(rank);
    }
  }
  std::vector<int> steps(edges.size(), -1);
  std::queue<int> open;
  steps[static_cast<size_t>(from)] = 0;
  for (open.push(from); !open.empty(); open.pop()) {
    for (const int other : edges[static_cast<size_t>(open.front())]) {
      if (steps[static_cast<size_t>(other)] >= 0) continue;
      steps[static_cast<size_t>(other)] = steps[static_cast<size_t>(open.front())] + 1;
      open.push(other);
    }
  }
  return steps;
}

const auto nobody = [](int) { return false; };

TEST(LivenessRing, EachRankHasUpToFourNeighboursAndWatchingIsMutual) {
  for (const int size : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 25, 64, 100}) {
    const Ring ring(on_hosts(in_blocks(size, 1)));
    EXPECT_EQ(ring.size(), size);
    for (int rank = 0; rank < size; ++rank) {
      const std::vector<int> found = ring.neighbours(rank, nobody);
      EXPECT_EQ(found.size(), static_cast<size_t>(std::min(4, size - 1))) << rank << " of " << size;
      EXPECT_EQ(std::set<int>(found.begin(), found.end()).size(), found.size());
      EXPECT_FALSE(contains(found, rank));
      for (const int other : found) {
        EXPECT_TRUE(contains(ring.neighbours(other, nobody), rank))
            << rank << " watches " << other << " of " << size;
      }
    }
  }
}

TEST(LivenessRing, NeighboursAreAtDistanceOneAndTheSquareRootOfTheSize) {
  const Ring ring(on_hosts(in_blocks(100, 1)));
  EXPECT_EQ(ring.neighbours(0, nobody), (std::vector<int>{1, 99, 10, 90}));
  EXPECT_EQ(ring.neighbours(95, nobody), (std::vector<int>{96, 94, 5, 85}));
  // Ranks that are gone are skipped, one after the other.
  const auto some = [](int rank) { return rank == 1 || rank == 2 || rank == 90; };
  EXPECT_EQ(ring.neighbours(0, some), (std::vector<int>{3, 99, 10, 89}));
}

TEST(LivenessRing, GraphStaysConnectedAfterLosingAnySingleRank) {
  for (const int each : {1, 2, 4, 8}) {
    for (const int size : {2, 3, 5, 8, 12, 16, 30}) {
      const Ring ring(on_hosts(in_blocks(size, each)));
      for (int lost = -1; lost < size; ++lost) {
        const int from = lost == 0 ? 1 : 0;
        const std::vector<int> steps =
            distances(ring, from, [lost](int rank) { return rank == lost; });
        for (int rank = 0; rank < size; ++rank) {
          if (rank == lost) continue;
          EXPECT_GE(steps[static_cast<size_t>(rank)], 0)
              << rank << " of " << size << ", " << each << " each, without " << lost;
        }
      }
    }
  }
}

TEST(LivenessRing, RanksAreFewStepsApart) {
  for (const int each : {1, 8}) {
    for (const int size : {16, 64, 256, 1024}) {
      const Ring ring(on_hosts(in_blocks(size, each)));
      const std::vector<int> steps = distances(ring, 3, nobody);
      const int limit = 2 * static_cast<int>(std::sqrt(size));
      EXPECT_LE(*std::max_element(steps.begin(), steps.end()), limit) << size << " by " << each;
    }
  }
}

TEST(LivenessRing, HostsAlternateInTheRing) {
  // The first of each host, then the second of each.
  const Ring ring(on_hosts({0, 0, 0, 1, 1, 2}));
  std::vector<int> order = {0};
  for (int n = 1; n < ring.size(); ++n) order.push_back(ring.after(0, n));
  EXPECT_EQ(order, (std::vector<int>{0, 3, 5, 1, 4, 2}));
  EXPECT_EQ(ring.after(2, 1), 0);
  EXPECT_EQ(ring.after(4, 3), 3);
  EXPECT_TRUE(ring.same_host(3, 4));
  EXPECT_FALSE(ring.same_host(2, 3));
}

// A rank on another host is chosen if one follows after at most three ranks on the same host, and
// not if it is farther away.
TEST(LivenessRing, NearNeighbourOnAnotherHostIsPreferred) {
  // The order is 0 and 20, then 1 to 19 of the first host. Neighbours are at distances 1 and 5.
  std::vector<int> hosts(21, 0);
  hosts.back() = 1;
  const Ring ring(on_hosts(hosts));
  EXPECT_TRUE(contains(ring.neighbours(1, nobody), 20));
  EXPECT_TRUE(contains(ring.neighbours(8, nobody), 20));
  EXPECT_FALSE(contains(ring.neighbours(9, nobody), 20));
  EXPECT_FALSE(contains(ring.neighbours(12, nobody), 20));
  EXPECT_TRUE(contains(ring.neighbours(13, nobody), 20));
  const Ring pairs(on_hosts(in_blocks(16, 8)));
  for (int rank = 0; rank < 16; ++rank) {
    const std::vector<int> found = pairs.neighbours(rank, nobody);
    EXPECT_TRUE(std::all_of(found.begin(), found.end(), [&](int other) {
      return !pairs.same_host(rank, other);
    })) << rank;
  }
  // With a single host, the nearest ranks are chosen.
  const Ring one(on_hosts(std::vector<int>(9, 5)));
  EXPECT_EQ(one.neighbours(4, nobody), (std::vector<int>{5, 3, 7, 1}));
}

TEST(LivenessRing, LastRemainingRankHasNoNeighbours) {
  const Ring ring(on_hosts(in_blocks(9, 3)));
  EXPECT_TRUE(ring.neighbours(4, [](int rank) { return rank != 4; }).empty());
  EXPECT_EQ(ring.neighbours(4, [](int rank) { return rank != 4 && rank != 7; }),
            std::vector<int>{7});
}

// --- news -------------------------------------------------------------------------------------

Frame fate_of(int rank, Fate fate) {
  return {.type = FrameType::kFate,
          .code = static_cast<uint8_t>(fate),
          .subject = rank,
          .value = 7,
          .text = "why"};
}

Frame notice_of(FrameType type, int rank, uint32_t communicator, uint8_t code = 0) {
  return {.type = type, .code = code, .subject = rank, .number = communicator, .text = "why"};
}

TEST(LivenessNews, EachFactIsKeptOnce) {
  News news;
  EXPECT_TRUE(news.add(fate_of(1, Fate::kDead), 3));
  EXPECT_FALSE(news.add(fate_of(1, Fate::kDead), 4));
  // A rank may be reported dead first and left later.
  EXPECT_TRUE(news.add(fate_of(1, Fate::kLeft), 4));
  EXPECT_TRUE(news.add(fate_of(2, Fate::kDead), 4));
  // An abort and a failure of one communicator are two facts. So are those of two ranks or of two
  // communicators.
  EXPECT_TRUE(news.add(notice_of(FrameType::kAborted, 1, 5), -1));
  EXPECT_TRUE(news.add(notice_of(FrameType::kFailed, 1, 5, 9), -1));
  EXPECT_TRUE(news.add(notice_of(FrameType::kAborted, 2, 5), -1));
  EXPECT_TRUE(news.add(notice_of(FrameType::kAborted, 1, 6), -1));
  // The first report of a failure counts.
  EXPECT_FALSE(news.add(notice_of(FrameType::kFailed, 1, 5, 11), 2));
  EXPECT_FALSE(news.add(notice_of(FrameType::kAborted, 1, 5), 2));
  ASSERT_EQ(news.end(), 7u);
  EXPECT_EQ(news.at(0).from, 3);
  EXPECT_EQ(news.at(4).frame.code, 9);
  EXPECT_TRUE(news.knows(notice_of(FrameType::kAborted, 2, 5)));
  EXPECT_FALSE(news.knows(notice_of(FrameType::kAborted, 2, 6)));
  EXPECT_FALSE(news.knows(fate_of(2, Fate::kLeft)));
}

TEST(LivenessNews, OldestNoticesAreDroppedAndFatesAreKept) {
  News news;
  EXPECT_TRUE(news.add(fate_of(1, Fate::kDead), -1));
  for (uint32_t i = 0; i < News::kMaxNotices; ++i) {
    EXPECT_TRUE(news.add(notice_of(FrameType::kAborted, 2, i), -1));
    if (i == 0) {
      EXPECT_TRUE(news.add(fate_of(3, Fate::kLeft), -1));
    }
  }
  // All facts are kept and known.
  EXPECT_EQ(news.end(), News::kMaxNotices + 2);
  for (uint64_t i = 0; i < news.end(); ++i) EXPECT_NE(news.at(i).frame.type, FrameType::kBeat) << i;
  // Two more facts displace the first two, which are at positions 1 and 3.
  for (uint32_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(news.add(notice_of(FrameType::kFailed, 4, i, 9), 2));
  }
  EXPECT_EQ(news.end(), News::kMaxNotices + 4);
  for (uint64_t i = 0; i < news.end(); ++i) {
    EXPECT_EQ(news.at(i).frame.type == FrameType::kBeat, i == 1 || i == 3) << i;
  }
  EXPECT_FALSE(news.knows(notice_of(FrameType::kAborted, 2, 0)));
  EXPECT_FALSE(news.knows(notice_of(FrameType::kAborted, 2, 1)));
  EXPECT_TRUE(news.knows(notice_of(FrameType::kAborted, 2, 2)));
  EXPECT_TRUE(news.knows(fate_of(1, Fate::kDead)));
  EXPECT_TRUE(news.knows(fate_of(3, Fate::kLeft)));
  EXPECT_TRUE(news.at(1).frame.text.empty());
}

// --- letters ----------------------------------------------------------------------------------

std::vector<uint32_t> numbers(const Letters& letters) {
  std::vector<uint32_t> result;
  for (const Frame& frame : letters.waiting()) result.push_back(frame.number);
  return result;
}

TEST(LivenessLetters, LettersWaitInOrderUntilAccepted) {
  Letters letters;
  for (int i = 1; i <= 4; ++i) {
    const Frame& letter = letters.add(3, LetterType::kCall, 10u + static_cast<unsigned>(i), "t");
    EXPECT_EQ(letter.type, FrameType::kLetter);
    EXPECT_EQ(letter.code, static_cast<uint8_t>(LetterType::kCall));
    EXPECT_EQ(letter.subject, 3);
    EXPECT_EQ(letter.number, static_cast<uint32_t>(i));
    EXPECT_EQ(letter.value, 10u + static_cast<unsigned>(i));
  }
  letters.taken(0);
  EXPECT_EQ(numbers(letters), (std::vector<uint32_t>{1, 2, 3, 4}));
  letters.taken(2);
  EXPECT_EQ(numbers(letters), (std::vector<uint32_t>{3, 4}));
  letters.taken(1);  // arrives late
  EXPECT_EQ(numbers(letters), (std::vector<uint32_t>{3, 4}));
  letters.taken(4);
  EXPECT_TRUE(letters.waiting().empty());
}

TEST(LivenessLetters, KnockAndQuestionReplaceEarlierLettersOfTheirKind) {
  Letters letters;
  letters.add(0, LetterType::kKnock, 1, {});
  letters.add(0, LetterType::kQuestion, 1, "a");
  letters.add(0, LetterType::kQuestion, 2, "b");
  letters.add(0, LetterType::kCall, 3, "a");
  letters.add(0, LetterType::kKnock, 4, {});
  EXPECT_EQ(numbers(letters), (std::vector<uint32_t>{2, 3, 4, 5}));
  letters.add(0, LetterType::kQuestion, 5, "a");
  EXPECT_EQ(numbers(letters), (std::vector<uint32_t>{3, 4, 5, 6}));
  letters.add(0, LetterType::kCall, 6, "a");  // two calls are kept separately
  letters.add(0, LetterType::kRefused, 7, "a");
  EXPECT_EQ(numbers(letters), (std::vector<uint32_t>{3, 4, 5, 6, 7, 8}));
  letters.drop(LetterType::kKnock);
  EXPECT_EQ(numbers(letters), (std::vector<uint32_t>{3, 4, 6, 7, 8}));
}

TEST(LivenessLetters, OldestLetterIsDroppedAtTheLimit) {
  Letters letters;
  for (size_t i = 0; i < Letters::kMaxWaiting; ++i) letters.add(0, LetterType::kCall, i, {});
  EXPECT_EQ(letters.waiting().size(), Letters::kMaxWaiting);
  EXPECT_EQ(letters.waiting().front().number, 1u);
  letters.add(0, LetterType::kCall, 0, {});
  EXPECT_EQ(letters.waiting().size(), Letters::kMaxWaiting);
  EXPECT_EQ(letters.waiting().front().number, 2u);
  EXPECT_EQ(letters.waiting().back().number, Letters::kMaxWaiting + 1);
}

TEST(LivenessLetters, RepeatedLetterIsRecognizedWhenNumbersWrap) {
  Letters letters;
  EXPECT_TRUE(letters.is_new(1));
  EXPECT_FALSE(letters.is_new(0));
  letters.received(5);
  EXPECT_FALSE(letters.is_new(4));
  EXPECT_FALSE(letters.is_new(5));
  EXPECT_TRUE(letters.is_new(6));
  EXPECT_TRUE(letters.is_new(9));  // the letters in between were dropped
  letters.received(0xffffffff);
  EXPECT_FALSE(letters.is_new(0xffffffff));
  EXPECT_FALSE(letters.is_new(0xfffffffe));
  EXPECT_TRUE(letters.is_new(0));
  EXPECT_TRUE(letters.is_new(1));
}

// --- mail -------------------------------------------------------------------------------------

UniqueFd make_doorbell() { return UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); }

bool rings(int doorbell, int limit_ms) {
  pollfd bell{.fd = doorbell, .events = POLLIN, .revents = 0};
  return ::poll(&bell, 1, limit_ms) == 1;
}

std::unique_ptr<Mail> mail_of(uint64_t value) {
  auto mail = std::make_unique<Mail>();
  mail->value = value;
  return mail;
}

TEST(LivenessMailbox, MailArrivesInOrderAndRingsTheDoorbell) {
  const UniqueFd doorbell = make_doorbell();
  Mailbox mailbox(doorbell.get());
  EXPECT_FALSE(mailbox.waiting());
  EXPECT_EQ(mailbox.take(), nullptr);
  EXPECT_FALSE(rings(doorbell.get(), 0));
  for (uint64_t value = 1; value <= 3; ++value) mailbox.push(mail_of(value));
  EXPECT_TRUE(mailbox.waiting());
  EXPECT_TRUE(rings(doorbell.get(), 0));
  std::vector<uint64_t> values;
  for (std::unique_ptr<Mail> mail = mailbox.take(); mail != nullptr;) {
    values.push_back(mail->value);
    mail = std::move(mail->next);
  }
  EXPECT_EQ(values, (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_FALSE(mailbox.waiting());
  mailbox.push(mail_of(4));  // deleted with the mailbox
}

TEST(LivenessMailbox, NoMailIsLostBetweenTwoThreads) {
  constexpr uint64_t kCount = 20'000;
  const UniqueFd doorbell = make_doorbell();
  Mailbox mailbox(doorbell.get());
  std::thread author([&] {
    for (uint64_t value = 1; value <= kCount; ++value) mailbox.push(mail_of(value));
  });
  uint64_t last = 0;
  while (last < kCount && rings(doorbell.get(), 20'000)) {
    uint64_t count = 0;
    EXPECT_EQ(::read(doorbell.get(), &count, sizeof(count)), 8);
    for (std::unique_ptr<Mail> mail = mailbox.take(); mail != nullptr;) {
      EXPECT_EQ(mail->value, last + 1);
      last = mail->value;
      mail = std::move(mail->next);
    }
  }
  author.join();
  EXPECT_EQ(last, kCount);
}

}  // namespace
}  // namespace hetcomm::liveness
