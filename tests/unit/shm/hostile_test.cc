// A peer that has proved the secret and then writes arbitrary data:
//
//    * impossible entries and counts fail the connection with a text; random ones never crash, hang
//      or write outside exposed memory;
//    * an offer that is cut short, oversized, unsealed or without its descriptor is refused with a
//      reason;
//    * descriptors that arrive over the socket are counted on arrival: at most one is held, however
//      they are distributed over messages;
//    * ringing returns immediately, whatever the peer does with its end of the socket, and a peer
//      that rings endlessly gets only its turn;
//    * a region is passed only to its members, and only if it grants every access; a peer that asks
//      for another region is named in the log once, and its requests are limited;
//    * a region that is being withdrawn gets no new mappers, and the wait lasts as long as any peer
//      may map it; regions that this side has not requested are not accepted;
//    * rings larger than this side's own are refused;
//    * pieces for memory that is no longer exposed are dropped; pieces outside exposed memory fail
//      the connection.
#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <span>
#include <string>

#include "tests/support/descriptors.h"
#include "tests/unit/shm/raw_peer.h"
#include "transports/shm/file_passing.h"
#include "transports/shm/mapping.h"

namespace hetcomm::test {
namespace {

using shm::FifoSlot;
using shm::PutPiece;
using shm::SlotKind;

void publish(FifoSlot& slot, uint64_t number, uint32_t kind_and_length) {
  slot.kind_and_length = kind_and_length;
  slot.sequence.store(static_cast<uint32_t>(number + 1), std::memory_order_release);
}
uint32_t entry(SlotKind kind, uint32_t length) {
  return static_cast<uint32_t>(kind) << 24 | length;
}

class ShmHostile : public ::testing::Test {
 protected:
  // Drives the node until its end of the connection has failed.
  void expect_failure(RawPeer& peer) {
    Rail& rail = peer.rail();
    node_.node.until("on_failed", [&] { return rail.failed > 0; });
    EXPECT_EQ(rail.failure.code(), Code::kPeerLost);
    EXPECT_NE(rail.failure.text().find("rank 0"), std::string_view::npos) << rail.failure.text();
    EXPECT_EQ(rail.send({}, {}), Code::kPeerLost);
  }
  void SetUp() override { node_.watch_log(); }
  static std::string own_name() {
    return fmt::format("process {} of user {}", getpid(), geteuid());
  }
  ShmNode node_;
};

TEST_F(ShmHostile, ImpossibleEntriesFailTheConnection) {
  const shm::Geometry geometry;
  const uint32_t chunk = geometry.chunk_bytes;
  struct Case {
    uint32_t kind_and_length;
    uint64_t position;
  };
  const Case cases[] = {
      {0, 0},
      {9u << 24, 0},
      {0xffffffff, 0},
      {entry(SlotKind::kInline, shm::kInlineBytes + 1), 0},
      {entry(SlotKind::kRing, chunk + 1), 0},
      {entry(SlotKind::kRing, 100), 1},
      {entry(SlotKind::kRing, 100), geometry.ring_bytes},
      {entry(SlotKind::kRing, 100), geometry.ring_bytes - 64},
      {entry(SlotKind::kRing, 100), ~uint64_t{0} - 63},
      {entry(SlotKind::kPut, 0xffffff), 0},
      {entry(SlotKind::kPutLast, 64), uint64_t{1} << 63},
  };
  for (const Case& each : cases) {
    RawPeer peer(node_.node, node_.credentials);
    FifoSlot& slot = peer.mine().slots[0];
    const PutPiece piece{1, 0, 0, each.position};
    std::memcpy(slot.header.data(), &piece, sizeof(piece));
    std::memcpy(slot.body.data(), &each.position, sizeof(each.position));
    publish(slot, 0, each.kind_and_length);
    expect_failure(peer);
    node_.node.accepted.clear();
  }
}

TEST_F(ShmHostile, ImpossibleCountsFailTheConnection) {
  RawPeer peer(node_.node, node_.credentials);
  Rail& rail = peer.rail();
  peer.mine().consumed_slots = 1000;
  while (rail.send({}, {}) == Code::kOk) {
  }
  expect_failure(peer);
}

// These counts would give the ring more free space than its size.
TEST_F(ShmHostile, ImpossibleByteCountsFailTheConnection) {
  for (const uint64_t consumed : {uint64_t{1} << 20, uint64_t{1} << 62}) {
    RawPeer peer(node_.node, node_.credentials);
    Rail& rail = peer.rail();
    std::vector<std::byte> memory(rail.capabilities().max_payload_bytes);
    const iovec piece{memory.data(), memory.size()};
    peer.mine().consumed_bytes = consumed;
    while (rail.send({}, {Extents(&piece, 1), 0, memory.size()}) == Code::kOk) {
    }
    expect_failure(peer);
    node_.node.accepted.clear();
  }
}

TEST_F(ShmHostile, PieceBeyondTheTargetFailsAndPieceForNoTargetIsDropped) {
  std::vector<std::byte> memory(3000, std::byte{0x5a});
  const iovec exposed{memory.data() + 1000, 1000};
  for (const uint64_t offset : {uint64_t{0}, uint64_t{950}, uint64_t{1001}, ~uint64_t{0} - 50}) {
    for (const bool revoked : {false, true}) {
      RawPeer peer(node_.node, node_.credentials);
      Rail& rail = peer.rail();
      const RemoteKey key = rail.expose(Extents(&exposed, 1), Access::kPutTarget, 7).value();
      if (revoked) rail.revoke(key);
      ASSERT_EQ(peer.connection.memory.allocate_ring(0, 0, 4096), Code::kOk);
      std::memset(peer.connection.memory.ring(0), 0x11, 100);
      const PutPiece piece{key.words[0], offset, 100, 0};
      FifoSlot& slot = peer.mine().slots[0];
      std::memcpy(slot.header.data(), &piece, sizeof(piece));
      publish(slot, 0, entry(SlotKind::kPutLast, 100));
      if (revoked || offset == 0) {
        node_.node.linger(5 * kMillisecond);
        EXPECT_EQ(rail.failed, 0);
        EXPECT_EQ(rail.put_bytes[7], revoked ? 0u : 100u);
      } else {
        expect_failure(peer);
      }
      const bool written = !revoked && offset == 0;
      for (size_t i = 0; i < memory.size(); ++i) {
        const bool inside = written && i >= 1000 && i < 1100;
        ASSERT_EQ(memory[i], inside ? std::byte{0x11} : std::byte{0x5a}) << i;
      }
      memory.assign(memory.size(), std::byte{0x5a});
      node_.node.accepted.clear();
    }
  }
}

TEST_F(ShmHostile, LastPieceThatReportsTooManyBytesFails) {
  std::vector<std::byte> memory(1000);
  const iovec exposed{memory.data(), memory.size()};
  RawPeer peer(node_.node, node_.credentials);
  const RemoteKey key = peer.rail().expose(Extents(&exposed, 1), Access::kPutTarget, 7).value();
  const PutPiece piece{key.words[0], 0, 1000, 0};
  FifoSlot& slot = peer.mine().slots[0];
  std::memcpy(slot.header.data(), &piece, sizeof(piece));
  publish(slot, 0, entry(SlotKind::kPutLast, 64));
  expect_failure(peer);
  EXPECT_EQ(peer.rail().put_bytes[7], 0u);
}

TEST_F(ShmHostile, RandomRingContentsCauseNoCrash) {
  Random random(4);
  std::vector<std::byte> memory(64 << 10);
  const iovec exposed{memory.data(), memory.size()};
  for (int round = 0; round < 150; ++round) {
    RawPeer peer(node_.node, node_.credentials);
    Rail& rail = peer.rail();
    const RemoteKey key = rail.expose(Extents(&exposed, 1), Access::kPutTarget, 1).value();
    for (uint64_t number = 0; number < 40 && rail.failed == 0; ++number) {
      FifoSlot& slot = peer.mine().slots[number % shm::kSlotCount];
      for (std::byte& byte : slot.header) byte = static_cast<std::byte>(random.next());
      for (std::byte& byte : slot.body) byte = static_cast<std::byte>(random.next());
      PutPiece piece{key.words[0], random.below(70 << 10), random.below(200),
                     64 * random.below(10000)};
      if (random.chance(0.8)) std::memcpy(slot.header.data(), &piece, sizeof(piece));
      const auto kind = static_cast<uint32_t>(random.between(0, 5));
      publish(slot, number, kind << 24 | static_cast<uint32_t>(random.size_up_to(1 << 24) - 1));
      peer.theirs().asleep = static_cast<uint32_t>(random.next());
      if (random.chance(0.1)) peer.mine().consumed_bytes = random.next();
      node_.node.step();
      if (rail.failed == 0) (void)rail.send({}, {});
    }
    node_.node.accepted.clear();
  }
}

// --- the exchange ----------------------------------------------------------------------------

// The most descriptors that the kernel accepts with one message.
constexpr size_t kMaxPassed = 253;

// Returns the result of sendmsg().
ssize_t send_with_all(int socket, ConstByteSpan bytes, const std::vector<int>& descriptors) {
  iovec data{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxPassed)> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors.size());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    *header = {CMSG_LEN(sizeof(int) * descriptors.size()), SOL_SOCKET, SCM_RIGHTS};
    std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof(int) * descriptors.size());
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// Sends |bytes| with |descriptors| instead of an offer. Returns the refusal's text, or "" if the
// node did not refuse.
std::string offer(ShmNode& node, ConstByteSpan bytes, const std::vector<int>& descriptors) {
  ProvedSocket proved(node.node, node.credentials);
  const UniqueFd socket = proved.take();
  EXPECT_EQ(send_with_all(socket.get(), bytes, descriptors), static_cast<ssize_t>(bytes.size()));
  if (bytes.size() < 256) shutdown(socket.get(), SHUT_WR);
  std::string answer(256, '\0');
  ssize_t got = 0;
  node.node.until("the refusal", [&] {
    got = recv(socket.get(), answer.data(), answer.size(), MSG_DONTWAIT);
    return got >= 0;
  });
  EXPECT_EQ(node.node.accepts, 0);
  answer.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return answer;
}

std::vector<std::byte> valid_offer() {
  ByteWriter writer;
  writer.write(uint32_t{0x68637368});
  writer.write(shm::kLayoutVersion);
  writer.write(int32_t{0});
  writer.write(uint8_t{1});
  writer.write(uint64_t{64 << 10});
  writer.write(uint32_t{16 << 10});
  writer.write(uint64_t{0});
  writer.write_raw(std::vector<std::byte>(16));
  writer.write_string("");
  std::vector<std::byte> bytes = writer.take();
  bytes.resize(256);
  return bytes;
}

UniqueFd memory_file(uint64_t size, int seals) {
  UniqueFd file(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (ftruncate(file.get(), static_cast<off_t>(size)) != 0) throw Abandoned("ftruncate");
  if (fcntl(file.get(), F_ADD_SEALS, seals) != 0) throw Abandoned("seals");
  return file;
}

TEST_F(ShmHostile, InvalidOffersAreRefusedWithAReason) {
  const shm::Geometry geometry{64 << 10, 16 << 10};
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  const UniqueFd good = memory_file(geometry.file_bytes(), kSeals);
  const UniqueFd small = memory_file(geometry.file_bytes() - 4096, kSeals);
  const UniqueFd open = memory_file(geometry.file_bytes(), F_SEAL_GROW);
  const UniqueFd event(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  const auto expect = [](const std::string& answer, const char* text) {
    EXPECT_NE(answer.find(text), std::string::npos) << answer;
  };
  expect(offer(node_, valid_offer(), {}), "no memory");
  expect(offer(node_, valid_offer(), {small.get()}), "another size");
  expect(offer(node_, valid_offer(), {open.get()}), "not sealed");
  expect(offer(node_, valid_offer(), {event.get()}), "not sealed");
  expect(offer(node_, valid_offer(), {good.get(), good.get()}), "more descriptors");
  expect(offer(node_, valid_offer(), {good.get(), good.get(), good.get()}), "more descriptors");
  std::vector<std::byte> bytes = valid_offer();
  bytes[4] = std::byte{99};
  expect(offer(node_, bytes, {good.get()}), "version");
  for (size_t at = 11; at < 23; ++at) {
    bytes = valid_offer();
    bytes[at] ^= std::byte{1};
    EXPECT_NE(offer(node_, bytes, {good.get()}), "") << at;
  }
  bytes = valid_offer();
  bytes.resize(100);
  EXPECT_EQ(offer(node_, bytes, {good.get()}), "");
}

TEST_F(ShmHostile, RandomOffersAreRefused) {
  Random random(9);
  const UniqueFd event(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  for (int i = 0; i < 50; ++i) {
    std::vector<std::byte> bytes(256);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
    EXPECT_NE(offer(node_, bytes, {event.get()}), "");
  }
}

// Sends |bytes| one by one, each with |descriptors|, until the node ends the connection. Expects
// that the node held at most one descriptor and closed only its end of the socket.
void drip(ShmNode& node, int socket, ConstByteSpan bytes, const std::vector<int>& descriptors) {
  const size_t before = open_descriptors();
  size_t most = before;
  bool ended = false;
  for (size_t i = 0; i < bytes.size() && !ended; ++i) {
    ended = send_with_all(socket, bytes.subspan(i, 1), descriptors) < 0;
    EXPECT_TRUE(!ended || errno == EPIPE) << strerror(errno);
    node.node.step();
    most = std::max(most, open_descriptors());
  }
  EXPECT_LE(most, before + 1);
  EXPECT_TRUE(ended) << "it was listened to until the end";
  EXPECT_LE(open_descriptors(), before);
}

TEST_F(ShmHostile, DescriptorsInAnOfferAreCountedOnArrival) {
  const UniqueFd event(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  for (const size_t each : {size_t{1}, size_t{2}, kMaxPassed}) {
    ProvedSocket proved(node_.node, node_.credentials);
    const UniqueFd socket = proved.take();
    drip(node_, socket.get(), ConstByteSpan(valid_offer()).first(255),
         std::vector<int>(each, event.get()));
    EXPECT_EQ(node_.node.accepts, 0);
  }
  EXPECT_TRUE(node_.has_warned({"rank 0", own_name(), "more descriptors"}));
}

TEST_F(ShmHostile, DescriptorsInParcelsAreCountedOnArrival) {
  const UniqueFd event(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  for (const size_t each : {size_t{1}, size_t{2}, kMaxPassed}) {
    RawPeer peer(node_.node, node_.credentials);
    (void)peer.rail();
    const std::vector<std::byte> parcels(3 * sizeof(shm::Parcel), std::byte{1});
    drip(node_, peer.connection.socket.get(), parcels, std::vector<int>(each, event.get()));
    expect_failure(peer);
    node_.node.accepted.clear();
  }
  EXPECT_TRUE(node_.has_warned({"rank 0", own_name(), "more descriptors"}));
}

// The peer asks to be rung before every message, and reads no ring.
TEST_F(ShmHostile, RingingAPeerThatDoesNotReadDoesNotBlock) {
  RawPeer peer(node_.node, node_.credentials);
  Rail& rail = peer.rail();
  const int socket = peer.connection.socket.get();
  ASSERT_EQ(fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) & ~O_NONBLOCK), 0);
  for (uint64_t number = 0; number < 20'000; ++number) {
    peer.mine().asleep = ~0u;
    peer.mine().consumed_slots = number;
    const uint64_t start = now_ns();
    ASSERT_EQ(rail.send({}, {}), Code::kOk) << number;
    ASSERT_LT(now_ns() - start, 20 * kSecond) << number;
    EXPECT_EQ(peer.mine().asleep.load(), 0u) << "rung";
  }
  EXPECT_EQ(rail.failed, 0);
  peer.connection.socket.reset();
  expect_failure(peer);
}

TEST_F(ShmHostile, FloodOfRingsIsProcessedInBoundedSteps) {
  for (const auto kind : {shm::ParcelKind::kRing, shm::ParcelKind::kGone}) {
    RawPeer peer(node_.node, node_.credentials);
    Rail& rail = peer.rail();
    const int socket = peer.connection.socket.get();
    const shm::Parcel parcel{kind, 0, 0, 0, 0};
    int sent = 0;
    while (send(socket, &parcel, sizeof(parcel), MSG_DONTWAIT) > 0) ++sent;
    EXPECT_GT(sent, 100);
    int unread = 0;
    ASSERT_EQ(ioctl(socket, SIOCOUTQ, &unread), 0);
    const int before = unread;
    node_.node.step();
    ASSERT_EQ(ioctl(socket, SIOCOUTQ, &unread), 0);
    EXPECT_LT(unread, before);
    EXPECT_GT(unread, 0);
    EXPECT_EQ(rail.failed, 0);
    node_.node.accepted.clear();
  }
}

// --- regions ---------------------------------------------------------------------------------

// A memory file, and a region that grants |members| access to all of it.
struct FileRegion {
  explicit FileRegion(std::vector<bool> members)
      : file(memory_file(64 << 10, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
    region.length = 64 << 10;
    region.writable = region.readable = region.atomic = true;
    region.file = file.get();
    region.members = std::move(members);
  }
  UniqueFd file;
  Region region;
};

// Requests region |id| by a parcel, and releases it immediately. Returns the kind of the answer; a
// descriptor is stored in |*file|.
shm::ParcelKind ask(ShmNode& node, RawPeer& peer, uint64_t id, UniqueFd* file) {
  const int socket = peer.connection.socket.get();
  for (const auto kind : {shm::ParcelKind::kWant, shm::ParcelKind::kGone}) {
    const shm::Parcel parcel{kind, 0, id, 0, 0};
    EXPECT_TRUE(shm::send_with(socket, std::as_bytes(std::span(&parcel, 1))).ok());
  }
  shm::Incoming answer;
  node.node.until("the answer", [&] {
    return shm::receive_with(socket, sizeof(shm::Parcel), true, answer).code() != Code::kPending;
  });
  shm::Parcel parcel{};
  EXPECT_EQ(answer.bytes.size(), sizeof(parcel));
  if (answer.bytes.size() == sizeof(parcel)) {
    std::memcpy(&parcel, answer.bytes.data(), sizeof(parcel));
  }
  *file = std::move(answer.descriptor);
  return parcel.kind;
}

TEST_F(ShmHostile, RegionIsPassedOnlyToItsMembers) {
  const FileRegion all({true, true});
  const FileRegion foreign({false, true});
  const FileRegion nobodys({});
  Transport& transport = node_.node.transport();
  const RemoteKey granted = transport.abilities().regions->publish(all.region).value();
  (void)transport.abilities().regions->publish(foreign.region).value();
  (void)transport.abilities().regions->publish(nobodys.region).value();
  const RemoteKey withdrawn = transport.abilities().regions->publish(all.region).value();
  ASSERT_TRUE(transport.abilities().regions->withdraw(withdrawn));
  RawPeer peer(node_.node, node_.credentials);
  (void)peer.rail();
  UniqueFd file;
  EXPECT_EQ(ask(node_, peer, withdrawn.words[0], &file), shm::ParcelKind::kNone);
  EXPECT_EQ(node_.warnings(), 0u) << "it was a region once";
  for (uint64_t id = 0; id < 200; ++id) {
    const bool given = id == granted.words[0];
    EXPECT_EQ(ask(node_, peer, id, &file), given ? shm::ParcelKind::kHere : shm::ParcelKind::kNone)
        << id;
    EXPECT_EQ(file.valid(), given) << id;
  }
  EXPECT_EQ(peer.rail().failed, 0);
  EXPECT_TRUE(node_.has_warned({"rank 0", own_name(), "does not belong to"}));
  EXPECT_TRUE(node_.has_warned({"rank 0", own_name(), "names no memory"}));
  EXPECT_EQ(node_.warnings(), 2u) << "each reason once";
}

// One peer has the region mapped, so the withdrawal is not finished immediately.
TEST_F(ShmHostile, RegionBeingWithdrawnGetsNoNewMappers) {
  const FileRegion all({true, true});
  Transport& transport = node_.node.transport();
  const RemoteKey key = transport.abilities().regions->publish(all.region).value();
  RawPeer mapper(node_.node, node_.credentials);
  (void)mapper.rail();
  const shm::Parcel want{shm::ParcelKind::kWant, 0, key.words[0], 0, 0};
  const auto send = [](RawPeer& peer, const shm::Parcel& parcel) {
    const auto bytes = std::as_bytes(std::span(&parcel, 1));
    EXPECT_TRUE(shm::send_with(peer.connection.socket.get(), bytes).ok());
  };
  send(mapper, want);
  for (int i = 0; i < 10; ++i) node_.node.step();
  const std::unique_ptr<Rail> first = std::move(node_.node.accepted.at(0));
  node_.node.accepted.clear();
  RawPeer late(node_.node, node_.credentials);
  (void)late.rail();
  EXPECT_FALSE(transport.abilities().regions->withdraw(key)) << "it is mapped";
  UniqueFd file;
  EXPECT_EQ(ask(node_, late, key.words[0], &file), shm::ParcelKind::kNone);
  EXPECT_FALSE(file.valid());
  send(mapper, {shm::ParcelKind::kGone, 0, key.words[0], 0, 0});
  for (int i = 0; i < 10; ++i) node_.node.step();
  EXPECT_TRUE(transport.abilities().regions->withdraw(key));
}

// This side has ended the connection; the peer still maps the region until its socket ends.
TEST_F(ShmHostile, WithdrawalWaitsForAMapperWithoutAConnection) {
  const FileRegion all({true, true});
  Transport& transport = node_.node.transport();
  const RemoteKey key = transport.abilities().regions->publish(all.region).value();
  RawPeer mapper(node_.node, node_.credentials);
  (void)mapper.rail();
  const shm::Parcel want{shm::ParcelKind::kWant, 0, key.words[0], 0, 0};
  const auto bytes = std::as_bytes(std::span(&want, 1));
  ASSERT_TRUE(shm::send_with(mapper.connection.socket.get(), bytes).ok());
  for (int i = 0; i < 10; ++i) node_.node.step();
  node_.node.accepted.clear();
  // Another connection that maps nothing does not end the wait.
  RawPeer other(node_.node, node_.credentials);
  (void)other.rail();
  for (int i = 0; i < 10; ++i) node_.node.step();
  EXPECT_FALSE(transport.abilities().regions->withdraw(key));
  EXPECT_FALSE(transport.abilities().regions->withdraw(key));
  mapper.connection.socket.reset();
  EXPECT_TRUE(transport.abilities().regions->withdraw(key));
}

// The peer answers none of the requests.
TEST_F(ShmHostile, RegionRequestsInFlightAreBounded) {
  RawPeer peer(node_.node, node_.credentials);
  Rail& rail = peer.rail();
  for (uint64_t id = 1; id <= 100; ++id) {
    rail.endpoint().abilities().mapper->map(shm::PublishedRegions::key_of(id), 4096);
  }
  for (int i = 0; i < 10; ++i) node_.node.step();
  const auto wants = [&] {
    int count = 0;
    shm::Parcel parcel{};
    while (recv(peer.connection.socket.get(), &parcel, sizeof(parcel), MSG_DONTWAIT) ==
           sizeof(parcel)) {
      if (parcel.kind == shm::ParcelKind::kWant) ++count;
    }
    return count;
  };
  EXPECT_EQ(wants(), 64);
  for (uint64_t id = 1; id <= 10; ++id) {
    const shm::Parcel none{shm::ParcelKind::kNone, 0, id, 0, 0};
    const auto bytes = std::as_bytes(std::span(&none, 1));
    ASSERT_TRUE(shm::send_with(peer.connection.socket.get(), bytes).ok());
  }
  for (int i = 0; i < 10; ++i) node_.node.step();
  EXPECT_EQ(wants(), 10);
  EXPECT_EQ(rail.failed, 0);
}

// A file arrives, as for a region other than the requested one.
TEST_F(ShmHostile, UnrequestedRegionFailsTheConnection) {
  for (const auto kind : {shm::ParcelKind::kHere, shm::ParcelKind::kNone}) {
    const FileRegion some({true, true});
    RawPeer peer(node_.node, node_.credentials);
    peer.rail().endpoint().abilities().mapper->map(shm::PublishedRegions::key_of(5),
                                                   some.region.length);
    const shm::Parcel parcel{kind, 0, 6, some.region.length, 0};
    const int file = kind == shm::ParcelKind::kHere ? some.file.get() : -1;
    ASSERT_TRUE(
        shm::send_with(peer.connection.socket.get(), std::as_bytes(std::span(&parcel, 1)), file)
            .ok());
    expect_failure(peer);
    node_.node.accepted.clear();
  }
}

TEST_F(ShmHostile, RegionThatLacksARightIsNotPublished) {
  FileRegion some({true, true});
  for (int rights = 0; rights < 8; ++rights) {
    some.region.writable = (rights & 1) != 0;
    some.region.readable = (rights & 2) != 0;
    some.region.atomic = (rights & 4) != 0;
    const auto key = node_.node.transport().abilities().regions->publish(some.region);
    EXPECT_EQ(key.ok(), rights == 7);
    EXPECT_EQ(key.status().code(), rights == 7 ? Code::kOk : Code::kUnsupported);
  }
}

// Each answer holds a descriptor until the peer reads it.
TEST_F(ShmHostile, RequestsHeldForOnePeerAreBounded) {
  const FileRegion all({true, true});
  const uint64_t id =
      node_.node.transport().abilities().regions->publish(all.region).value().words[0];
  RawPeer peer(node_.node, node_.credentials);
  Rail& rail = peer.rail();
  const size_t before = open_descriptors();
  size_t most = before;
  for (int i = 0; i < 10'000 && rail.failed == 0; ++i) {
    for (const auto kind : {shm::ParcelKind::kWant, shm::ParcelKind::kGone}) {
      const shm::Parcel parcel{kind, 0, id, 0, 0};
      (void)shm::send_with(peer.connection.socket.get(), std::as_bytes(std::span(&parcel, 1)));
    }
    node_.node.step();
    most = std::max(most, open_descriptors());
  }
  EXPECT_LE(most, before + 64);
  expect_failure(peer);
  EXPECT_TRUE(node_.has_warned({"rank 0", own_name(), "more regions at once"}));
}

TEST_F(ShmHostile, RingsLargerThanOurOwnAreRefused) {
  const uint64_t own = shm::Geometry().ring_bytes;
  for (uint64_t ring = 2 * own; ring <= shm::kMaxRingBytes; ring *= 2) {
    RawPeer::Options options;
    options.geometry.ring_bytes = ring;
    const RawPeer peer(node_.node, node_.credentials, options);
    EXPECT_FALSE(peer.outcome.ok()) << ring;
    EXPECT_NE(peer.outcome.text().find("larger"), std::string_view::npos) << peer.outcome.text();
    EXPECT_EQ(node_.node.accepts, 0);
  }
  EXPECT_TRUE(node_.has_warned({"rank 0", own_name(), "larger"}));
}

TEST_F(ShmHostile, TruncatedAndRandomContactsAreRejected) {
  Random random(5);
  const std::vector<std::byte> good = node_.node.transport().contact();
  ASSERT_LE(good.size(), 1024u);
  EXPECT_TRUE(node_.node.transport().reach(good).ok());
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(node_.node.transport().reach(ConstByteSpan(good).first(length)).ok());
  }
  for (int i = 0; i < 500; ++i) {
    std::vector<std::byte> bytes(random.below(200));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
    EXPECT_FALSE(node_.node.transport().reach(bytes).ok());
  }
}

}  // namespace
}  // namespace hetcomm::test
