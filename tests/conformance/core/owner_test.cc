// A rank of core receives single messages from a peer played by the test:
//
//   * a memory owner accepts an access that ends at the end of the memory and refuses one that ends
//     a byte later, also if offset plus length exceeds 64 bits; nothing around the memory changes,
//     and a refused access causes no notification;
//   * a notification names the whole put, even if only the rest was requested by message;
//   * the owner refuses accesses that the rights do not grant, and an id that no longer exists;
//   * a flush reports the operation that failed first; failures before the previous flush or after
//     this one do not count, and those from a cancelled flush are reported by the next one;
//   * an initiator requests at most kMaxAsked operations and kMaxAnnounced messages at a time, and
//     the next when one ends; a receiver accepts kMaxAnnounced requests and one more for each
//     match;
//   * eager messages fill the granted credit to the byte;
//   * the credit for a notification is returned in all cases, and so is the credit for messages
//     that are never received or that their sender ends half-way;
//   * grants, answers and refusals with an invalid form are rejected;
//   * message, acknowledgement and credit counters may pass 2^32 at any of these points.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "tests/support/played_peer.h"

namespace hetcomm::test {
namespace {

constexpr uint64_t kSize = 4096;  // size of the memory that the peer may access
constexpr uint64_t kGuard = 512;  // size of the guard on each side of that memory
constexpr uint64_t kTop = UINT64_MAX;
constexpr uint64_t kLarge = 200'000;

class Owner : public WithPlayedPeer {
 protected:
  Owner()
      : WithPlayedPeer("CREDIT_BYTES=4K;", 64),
        around_(kSize + 2 * kGuard, std::byte{0x66}),
        before_(around_) {
    peer_->records = true;
    drive();
  }
  ~Owner() override {
    if (window_ == nullptr) return;
    me_.communicator().abort("the end");
    unregister();
  }
  void grant(uint32_t rights) {
    window_ =
        std::make_unique<Memory>(me_.context().devices(), 0, around_.data() + kGuard, kSize, false);
    expect_ok(me_.communicator().memories().register_memory(*window_, rights, true));
    id_ = registration_of(*window_)->id;
  }
  void unregister() {
    expect_ok(RegisteredMemories::unregister_memory(*window_, 20'000'000'000));
    window_.reset();
  }
  // Lets the peer request the access. Returns the answer to the peer. kOk: the access was made.
  Code ask(MessageKind kind, uint64_t offset, uint64_t length, uint64_t ahead = 0) {
    peer_->heard.clear();
    const AccessBody body{id_, offset, length};
    const uint64_t tag = ++tags_;
    const WireHeader header{.kind = kind, .tag = tag};
    switch (kind) {
      case MessageKind::kPut:
        say(header, body, std::vector<std::byte>(length, std::byte{0x77}));
        break;
      case MessageKind::kAnnouncePut:
        say(header, AnnouncePutBody{body, ahead, {tag, 1, {}}});
        break;
      case MessageKind::kGet:
        say(header, body);
        break;
      default:
        say(header, AtomicBody{body, AtomicAction::kAdd, 1, 0});
    }
    drive(3);
    Code code = Code::kOk;
    for (const PlayedMessage& message : peer_->heard) {
      const MessageKind said = message.header.kind;
      if (said != MessageKind::kRefused && said != MessageKind::kStop) continue;
      EXPECT_EQ(message.header.tag, tag);
      code = static_cast<Code>(static_cast<int32_t>(message.header.value));
    }
    const auto heard = [&](MessageKind said) {
      return std::any_of(peer_->heard.begin(), peer_->heard.end(),
                         [&](const PlayedMessage& each) { return each.header.kind == said; });
    };
    const bool done = code == Code::kOk;
    if (kind == MessageKind::kGet) {
      EXPECT_EQ(heard(MessageKind::kGetData) || heard(MessageKind::kAnnounceGet), done);
    }
    if (kind == MessageKind::kAtomic) {
      EXPECT_EQ(heard(MessageKind::kAtomicDone), done);
    }
    if (kind == MessageKind::kAnnouncePut && length > 0) {
      EXPECT_EQ(heard(MessageKind::kGrant), done);
      // An unregister must not wait for this put.
      if (done) say({.kind = MessageKind::kWithdraw, .tag = tag, .value = 0});
      drive(3);
    }
    EXPECT_EQ(failures(), 0U) << "the peer was cut off";
    return code;
  }
  // Expects that only bytes of [offset, offset + length) have changed.
  void expect_changed(uint64_t offset, uint64_t length) {
    std::copy_n(around_.begin() + static_cast<ptrdiff_t>(kGuard + offset), length,
                before_.begin() + static_cast<ptrdiff_t>(kGuard + offset));
    EXPECT_TRUE(around_ == before_) << "bytes changed that the peer has not named";
  }

  std::vector<std::byte> around_;
  std::vector<std::byte> before_;
  std::unique_ptr<Memory> window_;
  uint64_t id_ = 0;
  uint64_t tags_ = 0;
};

struct Range {
  uint64_t offset;
  uint64_t length;
};
constexpr std::array<Range, 7> kInside = {
    {{0, 8}, {kSize - 8, 8}, {kSize - 1, 1}, {kSize, 0}, {0, 0}, {3, 7}, {kSize / 2, 1000}}};
constexpr std::array<Range, 5> kOutside = {
    {{kSize - 7, 8}, {kSize, 1}, {kSize + 1, 0}, {kTop - 7, 8}, {kTop, 1}}};
// The data of these operations does not travel with the request.
constexpr std::array<Range, 9> kFarOutside = {{{0, kSize + 1},
                                               {1, kSize},
                                               {8, kTop - 7},
                                               {8, kTop},
                                               {kTop, kTop},
                                               {uint64_t{1} << 63, uint64_t{1} << 63},
                                               {kTop - 4095, kSize},
                                               {kSize, kTop - kSize + 1},
                                               {kTop - kSize + 2, kSize}}};

TEST_F(Owner, AcceptsAccessUpToTheEndAndRefusesAccessBeyond) {
  grant(HETCOMM_ACCESS_ALL);
  for (const MessageKind kind : {MessageKind::kPut, MessageKind::kGet, MessageKind::kAnnouncePut}) {
    SCOPED_TRACE(static_cast<int>(kind));
    for (const auto& [offset, length] : kInside) {
      EXPECT_EQ(ask(kind, offset, length), Code::kOk) << offset << ", " << length;
      expect_changed(offset, kind == MessageKind::kPut ? length : 0);
    }
    for (const auto& [offset, length] : kOutside) {
      EXPECT_EQ(ask(kind, offset, length), Code::kOutOfRange) << offset << ", " << length;
      expect_changed(0, 0);
    }
    if (kind == MessageKind::kPut) continue;
    EXPECT_EQ(ask(kind, 0, kSize), Code::kOk);
    for (const auto& [offset, length] : kFarOutside) {
      EXPECT_EQ(ask(kind, offset, length), Code::kOutOfRange) << offset << ", " << length;
      expect_changed(0, 0);
    }
  }
  for (const uint64_t offset : {uint64_t{0}, kSize - 8}) {
    EXPECT_EQ(ask(MessageKind::kAtomic, offset, 8), Code::kOk);
    expect_changed(offset, 8);
  }
  for (const uint64_t offset : {kSize - 7, kSize, kTop - 7, kTop}) {
    EXPECT_EQ(ask(MessageKind::kAtomic, offset, 8), Code::kOutOfRange) << offset;
  }
  EXPECT_EQ(ask(MessageKind::kAtomic, 4, 8), Code::kInvalidArgument);
  expect_changed(0, 0);
}

// The rest of a put, whose beginning is already in place, gives a notification for the whole put.
TEST_F(Owner, ChecksTheRangeOfPreviouslyPlacedBytes) {
  grant(HETCOMM_ACCESS_PUT);
  EXPECT_EQ(ask(MessageKind::kAnnouncePut, 100, 10, 100), Code::kOk);
  EXPECT_EQ(ask(MessageKind::kAnnouncePut, kSize - 10, 10, kSize - 10), Code::kOk);
  EXPECT_EQ(ask(MessageKind::kAnnouncePut, 100, 10, 101), Code::kOutOfRange);
  EXPECT_EQ(ask(MessageKind::kAnnouncePut, 100, 10, kTop), Code::kOutOfRange);
  EXPECT_EQ(ask(MessageKind::kAnnouncePut, 100, kTop, 2), Code::kOutOfRange);
  EXPECT_EQ(ask(MessageKind::kAnnouncePut, kSize, kTop - 99, 100), Code::kOutOfRange);
  // Together these name 5 bytes at 10, modulo 2^64.
  constexpr uint64_t kHalf = uint64_t{1} << 63;
  EXPECT_EQ(ask(MessageKind::kAnnouncePut, kHalf + 10, kHalf + 5, kHalf), Code::kOutOfRange);
  expect_changed(0, 0);
}

TEST_F(Owner, NotifiesOfTheWholePutIfOnlyItsTailIsRequested) {
  grant(HETCOMM_ACCESS_PUT);
  peer_->puts = true;
  for (const auto& [offset, length, ahead] :
       {std::array<uint64_t, 3>{1000, 24, 1000}, {1000, 24, 0}, {1000, 24, 1}, {kSize, 0, kSize}}) {
    ++tags_;
    say({.kind = MessageKind::kAnnouncePut, .flags = kFlagNotify, .tag = tags_, .value = ahead},
        AnnouncePutBody{{id_, offset, length}, ahead, {tags_, 1, {}}});
    drive(5);
    hetcomm_notification_t notification{};
    expect_ok(RegisteredMemories::wait_notification(*window_, me_.context().engine(),
                                                    HETCOMM_TIMEOUT_POLL, &notification));
    EXPECT_EQ(notification.value, ahead);
    EXPECT_EQ(notification.source, 1);
    EXPECT_EQ(notification.offset, offset - ahead);
    EXPECT_EQ(notification.length, length + ahead);
    expect_changed(offset, length);
    EXPECT_FALSE(registration_of(*window_)->has_notification()) << "it came twice";
  }
  EXPECT_EQ(failures(), 0U);
}

TEST_F(Owner, NotifiesOnlyOfRangesInsideTheMemory) {
  grant(HETCOMM_ACCESS_PUT);
  const auto notify = [&](uint64_t offset, uint64_t length) {
    // The network has written the bytes.
    say({.kind = MessageKind::kPut,
         .flags = kFlagNotify | kFlagPlaced,
         .tag = ++tags_,
         .value = 99},
        AccessBody{id_, offset, length});
    drive(3);
    hetcomm_notification_t notification{};
    const Status status = RegisteredMemories::wait_notification(
        *window_, me_.context().engine(), HETCOMM_TIMEOUT_POLL, &notification);
    if (!status.ok()) return false;
    EXPECT_EQ(notification.value, 99U);
    EXPECT_EQ(notification.source, 1);
    EXPECT_EQ(notification.offset, offset);
    EXPECT_EQ(notification.length, length);
    return true;
  };
  EXPECT_TRUE(notify(0, kSize));
  EXPECT_TRUE(notify(kSize, 0));
  for (const auto& [offset, length] : kOutside) EXPECT_FALSE(notify(offset, length));
  for (const auto& [offset, length] : kFarOutside) EXPECT_FALSE(notify(offset, length));
  EXPECT_EQ(failures(), 0U);
}

TEST_F(Owner, RefusesAccessWithoutPermission) {
  const std::array<std::pair<MessageKind, uint32_t>, 4> kinds = {
      {{MessageKind::kPut, HETCOMM_ACCESS_PUT},
       {MessageKind::kAnnouncePut, HETCOMM_ACCESS_PUT},
       {MessageKind::kGet, HETCOMM_ACCESS_GET},
       {MessageKind::kAtomic, HETCOMM_ACCESS_ATOMIC}}};
  for (uint32_t rights = 1; rights <= HETCOMM_ACCESS_ALL; ++rights) {
    grant(rights);
    for (const auto& [kind, right] : kinds) {
      const bool granted = (rights & right) != 0;
      EXPECT_EQ(ask(kind, 8, 8), granted ? Code::kOk : Code::kPermissionDenied)
          << "rights " << rights << ", kind " << static_cast<int>(kind);
      expect_changed(8, granted && right != HETCOMM_ACCESS_GET ? 8 : 0);
    }
    unregister();
    for (const auto& [kind, right] : kinds) {
      EXPECT_EQ(ask(kind, 8, 8), Code::kStaleHandle) << static_cast<int>(kind);
    }
    expect_changed(0, 0);
  }
}

// A peer has credit for few notifications, and gets it back whatever happens to them. It is never
// disconnected for exceeding its credit.
class NotificationCredit : public Owner {
 protected:
  static constexpr int kMany = 100;
  void SetUp() override {
    ASSERT_LT(me_.communicator().job().terms().credit_granted, 20 * kMessageCost);
  }
  void put(uint64_t offset, uint64_t length) {
    say({.kind = MessageKind::kPut, .flags = kFlagNotify, .tag = ++tags_},
        AccessBody{id_, offset, length}, std::vector<std::byte>(length));
    drive(3);
  }
  void put_request(uint64_t offset, uint64_t length) {
    ++tags_;
    say({.kind = MessageKind::kAnnouncePut, .flags = kFlagNotify, .tag = tags_},
        AnnouncePutBody{{id_, offset, length}, 0, {tags_, 1, {}}});
    drive(3);
  }
  bool take() {
    hetcomm_notification_t notification{};
    return RegisteredMemories::wait_notification(*window_, me_.context().engine(),
                                                 HETCOMM_TIMEOUT_POLL, &notification)
        .ok();
  }
};

TEST_F(NotificationCredit, IsReturnedWithTheNotification) {
  grant(HETCOMM_ACCESS_PUT);
  peer_->puts = true;
  for (int i = 0; i < kMany; ++i) {
    put(8, 8);
    EXPECT_TRUE(take());
    put_request(8, 8);
    drive(3);
    EXPECT_TRUE(take());
  }
  EXPECT_EQ(failures(), 0U);
  // The number of untaken notifications is bounded.
  for (int i = 0; i < kMany; ++i) put(8, 8);
  EXPECT_EQ(failures(), 1U);
}

TEST_F(NotificationCredit, IsReturnedWithARefusal) {
  grant(HETCOMM_ACCESS_PUT);
  for (int i = 0; i < kMany; ++i) {
    put(kSize, 8);
    put_request(kSize, 8);
  }
  EXPECT_EQ(failures(), 0U);
}

TEST_F(NotificationCredit, IsReturnedWithAWithdrawal) {
  grant(HETCOMM_ACCESS_PUT);
  for (int i = 0; i < kMany; ++i) {
    put_request(8, 8);
    say({.kind = MessageKind::kWithdraw,
         .tag = tags_,
         .value = static_cast<uint64_t>(Code::kCancelled)});
    drive(3);
  }
  EXPECT_EQ(failures(), 0U);
}

TEST_F(NotificationCredit, IsReturnedWhenTheMemoryIsUnregistered) {
  for (int i = 0; i < kMany; ++i) {
    grant(HETCOMM_ACCESS_PUT);
    put(8, 8);
    put(8, 8);
    unregister();
  }
  EXPECT_EQ(failures(), 0U);
}

// The communicator of these notifications no longer exists, or its number was invented.
TEST_F(Owner, MessagesForAnUnknownCommunicatorReturnTheirCredit) {
  constexpr uint32_t kNobody = 77;
  for (int i = 0; i < 100; ++i) {
    const uint64_t length = 1000;
    peer_->to_deliver.push_back({{.kind = MessageKind::kEager,
                                  .channel = kNobody,
                                  .tag = 1,
                                  .value = addressee_value(kNobody, length)},
                                 std::vector<std::byte>(length)});
    peer_->heard.clear();
    const uint64_t id = ++tags_;
    say({.kind = MessageKind::kAnnounce,
         .channel = kNobody,
         .tag = 1,
         .value = addressee_value(kNobody, kLarge)},
        AnnounceBody{id, 1, {}});
    drive(3);
    const bool stopped =
        std::any_of(peer_->heard.begin(), peer_->heard.end(), [&](const PlayedMessage& each) {
          return each.header.kind == MessageKind::kStop && each.header.tag == id;
        });
    EXPECT_TRUE(stopped) << "its sender waits";
  }
  EXPECT_EQ(failures(), 0U);
}

// The sender ends a message of which only the beginning has arrived.
TEST_F(Owner, MessagesWithdrawnHalfwayReturnTheirCredit) {
  constexpr uint64_t kWhole = 3000;
  std::vector<std::byte> into(kWhole);
  for (int i = 0; i < 100; ++i) {
    Operation* const receive =
        i % 2 == 0 ? me_.post(OperationKind::kReceive, 1, 9, into.data(), into.size()) : nullptr;
    peer_->to_deliver.push_back(
        {{.kind = MessageKind::kEagerFirst, .tag = 9, .value = addressee_value(0, kWhole)},
         std::vector<std::byte>(1000)});
    say({.kind = MessageKind::kWithdraw, .value = static_cast<uint64_t>(Code::kCancelled)});
    drive(3);
    if (receive != nullptr) {
      const Status told = me_.finish(receive);
      EXPECT_EQ(told.code(), Code::kAborted);
      EXPECT_NE(told.text().find("rank 1: CANCELLED"), std::string::npos) << told.text();
    }
  }
  EXPECT_EQ(failures(), 0U);
}

// --- the initiator ----------------------------------------------------------

class Initiator : public WithPlayedPeer {
 protected:
  explicit Initiator(uint32_t first_sequence = 0)
      : WithPlayedPeer("CREDIT_BYTES=64K;", 256 << 10, first_sequence), buffer_(kLarge) {
    peer_->records = true;
    // Only the exported bytes of the peer's memory are backed by real memory.
    ExportedMemory exported =
        ExportedMemory::decode(RegisteredMemories::export_memory(memory_).value()).value();
    exported.rank = 1;
    ExportedMemory imported;
    std::vector<RemoteKey> keys;
    expect_ok(me_.communicator().memories().import_memory(exported.encode(), &imported, &keys));
    remote_ = std::make_unique<RemoteMemory>(me_.communicator(), imported, std::move(keys));
    drive();
  }
  // Operations that a test leaves behind end before the objects that they use are destroyed.
  ~Initiator() override {
    me_.communicator().abort("the end");
    drive();
  }

  Operation* start(OperationKind kind, uint64_t length = 8, bool notify = false) {
    const AccessArguments to{
        .remote = remote_.get(), .offset = 0, .operand = 1, .result = &result_};
    return me_.access(kind, to, kind == OperationKind::kFetchAdd ? nullptr : buffer_.data(), length,
                      notify);
  }
  Operation* flush() {
    const AccessArguments nothing{};
    std::string text;
    Operation* operation = nullptr;
    const Code code = me_.communicator().poster().post(
        {.kind = OperationKind::kFlush, .peer = 1, .tag = 0, .ignore = 0, .access = &nothing},
        &operation, &text);
    EXPECT_EQ(code, Code::kOk) << text;
    return operation;
  }
  Operation* send(uint64_t length, uint64_t tag = 0) {
    return me_.post(OperationKind::kSend, 1, tag, buffer_.data(), length);
  }
  // Returns the ids in the messages of |kind| sent by this rank.
  std::vector<uint64_t> heard(MessageKind kind) const {
    std::vector<uint64_t> tags;
    for (const PlayedMessage& each : peer_->heard) {
      if (each.header.kind == kind) tags.push_back(each.header.tag);
    }
    return tags;
  }
  void refuse(uint64_t id, Code code) {
    say({.kind = MessageKind::kRefused, .tag = id, .value = static_cast<uint64_t>(code)});
  }
  void answer_get(uint64_t id) {
    say({.kind = MessageKind::kGetData, .tag = id, .value = 8}, uint64_t{5});
  }
  void cancel(Operation* operation) {
    const Engine::Baton baton(me_.context().engine());
    me_.communicator().cancel(*operation);
  }
  Code finish(Operation* operation) { return me_.finish(operation).code(); }

  std::vector<std::byte> buffer_;
  std::unique_ptr<RemoteMemory> remote_;
  uint64_t result_ = 0;
};

TEST_F(Initiator, FlushReportsTheFirstFailure) {
  std::vector<Operation*> gets;
  for (int i = 0; i < 4; ++i) gets.push_back(start(OperationKind::kGet));
  Operation* const end = flush();
  Operation* const after = start(OperationKind::kGet);
  Operation* const second_end = flush();
  drive();
  const std::vector<uint64_t> ids = heard(MessageKind::kGet);
  ASSERT_EQ(ids.size(), 5U);
  // An operation posted after the flush fails before all others.
  refuse(ids[4], Code::kStaleHandle);
  drive();
  answer_get(ids[0]);
  refuse(ids[2], Code::kPermissionDenied);
  refuse(ids[1], Code::kOutOfRange);
  drive();
  EXPECT_EQ(end->state(), OperationState::kPending) << "one is not over";
  EXPECT_EQ(second_end->state(), OperationState::kPending) << "flushes end in order";
  answer_get(ids[3]);
  drive();
  EXPECT_EQ(finish(end), Code::kPermissionDenied);
  EXPECT_EQ(finish(second_end), Code::kStaleHandle);
  EXPECT_EQ(finish(flush()), Code::kOk) << "reported before";
  const Code codes[] = {Code::kOk, Code::kOutOfRange, Code::kPermissionDenied, Code::kOk};
  for (size_t i = 0; i < gets.size(); ++i) EXPECT_EQ(finish(gets[i]), codes[i]);
  EXPECT_EQ(finish(after), Code::kStaleHandle);
}

TEST_F(Initiator, NextFlushReportsTheFailureOfACancelledFlush) {
  for (const bool fails_after : {false, true}) {
    peer_->heard.clear();
    Operation* const get = start(OperationKind::kGet);
    Operation* const other = start(OperationKind::kGet);
    Operation* const cancelled = flush();
    drive();
    const std::vector<uint64_t> ids = heard(MessageKind::kGet);
    ASSERT_EQ(ids.size(), 2U);
    if (!fails_after) refuse(ids[0], Code::kOutOfRange);
    drive();
    cancel(cancelled);
    EXPECT_EQ(finish(cancelled), Code::kCancelled);
    if (fails_after) refuse(ids[0], Code::kOutOfRange);
    refuse(ids[1], Code::kStaleHandle);
    drive();
    EXPECT_EQ(finish(get), Code::kOutOfRange);
    EXPECT_EQ(finish(other), Code::kStaleHandle);
    EXPECT_EQ(finish(flush()), Code::kOutOfRange);
    EXPECT_EQ(finish(flush()), Code::kOk);
  }
}

TEST_F(Initiator, RequestsABoundedNumberOfOperationsAtATime) {
  std::vector<Operation*> gets;
  for (uint32_t i = 0; i < kMaxAsked + 10; ++i) gets.push_back(start(OperationKind::kGet));
  drive();
  EXPECT_EQ(heard(MessageKind::kGet).size(), kMaxAsked);
  const std::vector<uint64_t> ids = heard(MessageKind::kGet);
  answer_get(ids[0]);
  drive();
  EXPECT_EQ(heard(MessageKind::kGet).size(), kMaxAsked + 1);
  // A cancelled operation keeps its place until the owner has answered.
  cancel(gets[1]);
  drive();
  EXPECT_EQ(heard(MessageKind::kGet).size(), kMaxAsked + 1);
  answer_get(ids[1]);
  drive();
  EXPECT_EQ(heard(MessageKind::kGet).size(), kMaxAsked + 2);
  for (size_t done = 2; done < gets.size();) {
    const std::vector<uint64_t> now = heard(MessageKind::kGet);
    ASSERT_GT(now.size(), done);
    for (; done < now.size(); ++done) answer_get(now[done]);
    drive();
  }
  for (size_t i = 0; i < gets.size(); ++i) {
    EXPECT_EQ(finish(gets[i]), i == 1 ? Code::kCancelled : Code::kOk);
  }
  EXPECT_EQ(failures(), 0U);
}

TEST_F(Initiator, AnnouncesABoundedNumberOfMessagesAtATime) {
  std::vector<Operation*> sends;
  for (uint64_t i = 0; i < kMaxAnnounced + 3; ++i) sends.push_back(send(kLarge, i));
  drive();
  EXPECT_EQ(heard(MessageKind::kAnnounce).size(), kMaxAnnounced);
  const auto id_of = [&](size_t index) {
    size_t at = 0;
    for (const PlayedMessage& each : peer_->heard) {
      if (each.header.kind != MessageKind::kAnnounce || at++ != index) continue;
      AnnounceBody body{};
      EXPECT_TRUE(decode_body(each.payload, &body));
      return body.sender_id;
    }
    return uint64_t{0};
  };
  say({.kind = MessageKind::kDone, .tag = id_of(0)});
  drive();
  EXPECT_EQ(heard(MessageKind::kAnnounce).size(), kMaxAnnounced + 1);
  say({.kind = MessageKind::kStop,
       .tag = id_of(1),
       .value = static_cast<uint64_t>(Code::kCancelled)});
  drive();
  EXPECT_EQ(heard(MessageKind::kAnnounce).size(), kMaxAnnounced + 2);
  // A grant is an answer as well, and is counted only once.
  for (int i = 0; i < 3; ++i) {
    say({.kind = MessageKind::kGrant}, GrantBody{id_of(2), 1, 0, 1, kLarge, {{1, 0, 0}}});
  }
  drive();
  EXPECT_EQ(heard(MessageKind::kAnnounce).size(), kMaxAnnounced + 3);
  EXPECT_EQ(finish(sends[0]), Code::kOk);
  EXPECT_EQ(finish(sends[1]), Code::kAborted);
  me_.communicator().abort("the test has seen enough");
  for (size_t i = 2; i < sends.size(); ++i) EXPECT_EQ(finish(sends[i]), Code::kAborted);
}

TEST_F(Initiator, AcceptsOneMoreAnnouncementForEachMatch) {
  const auto request = [&](uint64_t tag) {
    say({.kind = MessageKind::kAnnounce, .tag = tag, .value = addressee_value(0, kLarge)},
        AnnounceBody{tag + 1, 1, {}});
  };
  for (uint64_t i = 0; i < kMaxAnnounced; ++i) request(i);
  drive();
  EXPECT_EQ(failures(), 0U);
  std::vector<std::byte> into(kLarge);
  std::vector<Operation*> receives;
  // These requests are matched from the middle and the end. The peer withdraws another one.
  for (const uint64_t tag : {uint64_t{100}, kMaxAnnounced - 1}) {
    receives.push_back(me_.post(OperationKind::kReceive, 1, tag, &into[tag], 64));
  }
  say({.kind = MessageKind::kWithdraw,
       .tag = 200 + 1,
       .value = static_cast<uint64_t>(Code::kCancelled)});
  drive();
  EXPECT_EQ(heard(MessageKind::kGrant).size(), 2U);
  for (uint64_t i = 0; i < 3; ++i) request(kMaxAnnounced + i);
  drive();
  EXPECT_EQ(failures(), 0U);
  EXPECT_EQ(peer_->delivered, kMaxAnnounced + 4);
  request(kMaxAnnounced + 3);
  drive();
  EXPECT_EQ(failures(), 1U);
  for (Operation* receive : receives) cancel(receive);
  for (Operation* receive : receives) EXPECT_EQ(finish(receive), Code::kCancelled);
}

// Accepting any of these messages would be harmful.
TEST_F(Initiator, GrantOutsideTheMessageEndsTheSend) {
  struct Case {
    uint64_t offset;
    uint64_t length;
    uint64_t accepted;
    bool good;
  };
  const Case cases[] = {
      {0, kLarge, kLarge, true},      {kLarge - 1, 1, kLarge, true}, {kLarge, 0, kLarge, true},
      {0, kLarge + 1, kLarge, false}, {1, kLarge, kLarge, false},    {kLarge + 1, 0, kLarge, false},
      {kTop - 7, 16, kLarge, false},  {16, kTop - 7, kLarge, false}, {0, 8, kLarge + 1, false}};
  for (const Case& each : cases) {
    peer_->last_request = {};
    Operation* const sent = send(kLarge);
    drive();
    ASSERT_NE(peer_->last_request.sender_id, 0U);
    say({.kind = MessageKind::kGrant}, GrantBody{peer_->last_request.sender_id,
                                                 1,
                                                 each.offset,
                                                 each.length,
                                                 each.accepted,
                                                 {{1, 0, 0}}});
    drive();
    EXPECT_EQ(sent->state() == OperationState::kPending, each.good)
        << each.offset << ", " << each.length << " of " << each.accepted;
    if (each.good) cancel(sent);
    EXPECT_EQ(finish(sent), each.good ? Code::kCancelled : Code::kPeerLost);
  }
}

class WrongLength : public Initiator, public ::testing::WithParamInterface<size_t> {};

TEST_P(WrongLength, AnswerOfTheWrongLengthEndsTheConnection) {
  Operation* const get = start(OperationKind::kGet);
  drive();
  const std::vector<uint64_t> ids = heard(MessageKind::kGet);
  ASSERT_EQ(ids.size(), 1U);
  peer_->to_deliver.push_back({{.kind = MessageKind::kGetData, .tag = ids[0], .value = GetParam()},
                               std::vector<std::byte>(GetParam())});
  drive();
  EXPECT_EQ(failures(), 1U) << "the peer was believed";
  me_.communicator().abort("the test has seen enough");
  EXPECT_EQ(finish(get), Code::kAborted);
}

INSTANTIATE_TEST_SUITE_P(Of, WrongLength, ::testing::Values(0u, 7u, 9u, 1000u),
                         [](const auto& test) { return std::to_string(test.param) + "_bytes"; });

TEST_F(Initiator, RefusalWithAnInvalidCodeFailsTheOperation) {
  for (const Code code : {Code::kOk, static_cast<Code>(5), Code::kOutOfRange}) {
    for (const OperationKind kind :
         {OperationKind::kGet, OperationKind::kPut, OperationKind::kFetchAdd}) {
      peer_->heard.clear();
      peer_->acknowledges = false;
      Operation* const operation = start(kind);
      drive();
      ASSERT_FALSE(peer_->heard.empty());
      refuse(peer_->heard.back().header.tag, code);
      drive();
      EXPECT_EQ(finish(operation), code == Code::kOutOfRange ? code : Code::kInternal);
      peer_->acknowledges = true;
    }
  }
  EXPECT_EQ(failures(), 0U);
}

// --- credit and numbers -----------------------------------------------------

// The counters pass 2^32 after this number of messages, or after this many bytes of credit.
class Counters : public Initiator, public ::testing::WithParamInterface<uint32_t> {
 protected:
  Counters() : Initiator(0 - GetParam()) {}
  static constexpr uint64_t kCredit = 64 << 10;

  void eager(uint64_t length) {
    peer_->to_deliver.push_back(
        {{.kind = MessageKind::kEager, .tag = 5, .value = addressee_value(0, length)},
         std::vector<std::byte>(length)});
  }
  Operation* receive() {
    return me_.post(OperationKind::kReceive, 1, 5, received_.data(), received_.size());
  }
  std::vector<std::byte> received_ = std::vector<std::byte>(1024);
};

TEST_P(Counters, EagerMessagesFillTheGrantedCredit) {
  constexpr uint64_t kEach = 1000;
  constexpr uint64_t kCount = kCredit / (kEach + kMessageCost);
  constexpr uint64_t kRest = kCredit - kCount * (kEach + kMessageCost) - kMessageCost;
  static_assert(kRest < kCredit && kRest <= 1024);
  for (uint64_t i = 0; i < kCount; ++i) eager(kEach);
  eager(kRest);
  drive();
  EXPECT_EQ(failures(), 0U);
  // One message is received. Its cost becomes available again, and the rank finally reports that.
  EXPECT_EQ(finish(receive()), Code::kOk);
  eager(kEach);
  drive();
  EXPECT_EQ(failures(), 0U);
  const uint32_t first = peer_->credit;
  uint32_t given_back = first;
  for (uint64_t i = 0; i < kCount / 2; ++i) EXPECT_EQ(finish(receive()), Code::kOk);
  drive();
  for (const PlayedMessage& each : peer_->heard) given_back = each.header.credit;
  EXPECT_GE(given_back - first, kCredit / 4);
  EXPECT_LE(given_back - first, (kCount / 2 + 1) * (kEach + kMessageCost));
  while (peer_->delivered < kCount + 2 + kCount / 2) {
    eager(kEach);
    drive(2);
  }
  EXPECT_EQ(failures(), 0U);
  eager(0);
  drive();
  EXPECT_EQ(failures(), 1U) << "one message more than was granted";
}

TEST_P(Counters, SendsStopWithoutCreditAndResumeWithIt) {
  constexpr uint64_t kEach = 1000;
  constexpr uint64_t kCost = kEach + kMessageCost;
  const uint64_t granted = me_.communicator().job().peers().class_of(1).credit;
  const uint64_t count = granted / kCost;
  std::vector<Operation*> sends;
  for (uint64_t i = 0; i < count + 20; ++i) sends.push_back(send(kEach));
  drive();
  EXPECT_EQ(heard(MessageKind::kEager).size(), count);
  // The other sends ask first.
  EXPECT_EQ(heard(MessageKind::kAnnounce).size(), 20U);
  for (uint64_t back = 1; back <= 5; ++back) {
    peer_->credit += static_cast<uint32_t>(kCost);
    say({.kind = MessageKind::kUpdate});
    drive();
    sends.push_back(send(kEach));
    sends.push_back(send(kEach));
    drive();
    EXPECT_EQ(heard(MessageKind::kEager).size(), count + back);
    EXPECT_EQ(heard(MessageKind::kAnnounce).size(), 20U + back);
  }
  // A late update has older values, and reduces nothing.
  peer_->credit += static_cast<uint32_t>(10 * kCost);
  say({.kind = MessageKind::kUpdate});
  drive();
  peer_->credit -= static_cast<uint32_t>(3 * kCost);
  say({.kind = MessageKind::kUpdate});
  drive();
  for (int i = 0; i < 12; ++i) sends.push_back(send(kEach));
  drive();
  EXPECT_EQ(heard(MessageKind::kEager).size(), count + 15);
  peer_->credit += static_cast<uint32_t>(3 * kCost);
  EXPECT_EQ(failures(), 0U);
  me_.communicator().abort("the test has seen enough");
  for (Operation* each : sends) {
    const Code code = finish(each);
    EXPECT_TRUE(code == Code::kOk || code == Code::kAborted);
  }
}

// A put ends when its message is acknowledged, neither earlier nor later.
TEST_P(Counters, PutsEndExactlyWhenAcknowledged) {
  peer_->acknowledges = false;
  std::vector<Operation*> puts;
  for (int i = 0; i < 40; ++i) puts.push_back(start(OperationKind::kPut));
  drive();
  std::vector<uint32_t> sequences;
  for (const PlayedMessage& each : peer_->heard) {
    if (each.header.kind == MessageKind::kPut) sequences.push_back(each.header.sequence);
  }
  ASSERT_EQ(sequences.size(), puts.size());
  for (size_t i = 0; i < puts.size(); ++i) {
    peer_->acknowledges = true;
    peer_->last_taken = sequences[i];
    say({.kind = MessageKind::kUpdate});
    drive(3);
    EXPECT_EQ(puts[i]->state(), OperationState::kComplete) << i;
    if (i + 1 < puts.size()) {
      EXPECT_EQ(puts[i + 1]->state(), OperationState::kPending) << i;
    }
  }
  for (Operation* put : puts) EXPECT_EQ(finish(put), Code::kOk);
  EXPECT_EQ(failures(), 0U);
  // A message that was not sent cannot be acknowledged.
  start(OperationKind::kPut, 8)->detached = true;
  drive();
  peer_->last_taken += 2;
  say({.kind = MessageKind::kUpdate});
  drive();
  EXPECT_EQ(failures(), 1U);
}

// An owner keeps an operation only until its answer is acknowledged.
TEST_P(Counters, AnswersAreDroppedOnceAcknowledged) {
  const auto held = [&] {
    const Engine::Baton baton(me_.context().engine());
    return me_.communicator().job().pair(1).access().permits().held();
  };
  const auto ask = [&](uint64_t tag) {
    say({.kind = MessageKind::kAtomic, .tag = tag},
        AtomicBody{{registration_of(memory_)->id, 0, 8}, AtomicAction::kAdd, 1, 0});
  };
  for (uint64_t i = 1; i <= 40; ++i) ask(i);
  peer_->holds_back = true;
  drive(3);
  peer_->holds_back = false;
  std::vector<uint32_t> sequences;
  for (const PlayedMessage& each : peer_->heard) {
    if (each.header.kind == MessageKind::kAtomicDone) sequences.push_back(each.header.sequence);
  }
  ASSERT_EQ(sequences.size(), 40U);
  EXPECT_EQ(held(), 40U);
  for (size_t i = 0; i < sequences.size(); ++i) {
    peer_->last_taken = sequences[i];
    say({.kind = MessageKind::kUpdate});
    drive(3);
    EXPECT_EQ(held(), 39U - i);
  }
  EXPECT_EQ(failures(), 0U);
}

// Messages arrive once and in order, whatever their numbers.
TEST_P(Counters, RepeatedMessageIsDroppedAndSkippedNumberIsRefused) {
  for (int i = 0; i < 30; ++i) {
    eager(8);
    drive(2);
    EXPECT_EQ(finish(receive()), Code::kOk);
    // The last messages arrive again, as after a broken connection.
    const auto again = static_cast<uint32_t>(std::min(i + 1, 5));
    peer_->sequence -= again;
    for (uint32_t k = 0; k < again; ++k) eager(8);
    drive(2);
    Operation* const nothing = receive();
    drive(2);
    EXPECT_EQ(nothing->state(), OperationState::kPending) << "it came twice";
    cancel(nothing);
    EXPECT_EQ(finish(nothing), Code::kCancelled);
  }
  EXPECT_EQ(failures(), 0U);
  peer_->sequence += 1;
  eager(8);
  drive();
  EXPECT_EQ(failures(), 1U);
}

INSTANTIATE_TEST_SUITE_P(Begin, Counters, ::testing::Values(0u, 1u, 15u, 700u, 30'000u),
                         [](const auto& test) {
                           return "so_many_before_2_32_" + std::to_string(test.param);
                         });

}  // namespace
}  // namespace hetcomm::test
