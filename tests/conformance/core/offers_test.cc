// Parts of messages that a rank offers in memory that its peer maps, and that the peer copies from
// there.
//
//   * between ranks on one host staged data is copied in place, from device to device, to the host
//     and from it; if one side maps nothing, the data is put and arrives intact
//   * a sender reuses offered memory only when the peer has reported that it was copied: not after
//     the send was cancelled, nor after the peer was lost, nor when the peer names an offer that
//     was never made
//   * a receiver copies from memory that stays mapped until the copy has ended, whatever happens to
//     the connection
//   * a receiver that cannot map reports it, and gets the bytes by puts: a whole chunk, or the part
//     of it that was not copied, without changing the rest
//   * offers outside of the granted range or the region, or exceeding the grant, cost a peer the
//     connection
#include <sys/mman.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "tests/support/core_job.h"
#include "tests/support/on_device.h"
#include "tests/support/pattern.h"
#include "tests/support/played_peer.h"
#include "transports/shm/factory.h"

namespace hetcomm::test {
namespace {

constexpr uint64_t kChunk = 64 << 10;
constexpr uint64_t kSize = 4 * kChunk;
constexpr const char* kSettings = "STAGING_CHUNK=64K;STAGING_DEPTH=4;";

std::vector<std::byte> pattern(uint64_t size, uint64_t seed) {
  std::vector<std::byte> bytes(size);
  fill_pattern(bytes, seed);
  return bytes;
}

Device make_device(const char* options) {
  Result<Device> device = create_sim_device("sim-handle", options);
  if (!device.ok()) throw std::runtime_error(std::string(device.status().text()));
  return *device;
}

// --- two ranks ---------------------------------------------------------------------------------

Factories shm(int /*rank*/) {
  Factories factories;
  factories.push_back(make_shm_factory());
  return factories;
}

uint64_t mapped_chunks(CoreMember& me) {
  hetcomm_counters_t all[4] = {};
  const size_t count = me.communicator().counters(1 - me.rank(), 4, all);
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += all[i].mapped_chunks;
  return sum;
}

// Sends one message from device |from| of rank 0 to device |to| of rank 1, where 0 is the host.
void send_one(CoreMember& me, size_t from, size_t to, uint64_t size, uint64_t seed) {
  OnDevice memory(me, size + 64, me.rank() == 0 ? from : to);
  memory.fill(me.rank() == 0 ? seed : seed + 1);
  Operation* const operation =
      me.rank() == 0 ? me.post(OperationKind::kSend, 1, seed, memory.part(0, size))
                     : me.post(OperationKind::kReceive, 0, seed, memory.part(0, size + 64));
  const Status status = me.finish(operation);
  EXPECT_TRUE(status.ok()) << status.text();
  if (me.rank() == 0) return;
  std::vector<std::byte> expected = pattern(size + 64, seed);
  const std::vector<std::byte> untouched = pattern(size + 64, seed + 1);
  std::copy_n(untouched.end() - 64, 64, expected.end() - 64);
  EXPECT_EQ(memory.contents(0, size + 64), expected);
}

void run_pair(const std::string& settings, const std::function<std::string(int)>& own,
              bool takes_offers) {
  run_core_job(
      2, settings, shm,
      [&](CoreMember& me) {
        uint64_t seed = 1;
        for (const auto& [from, to] : {std::pair<size_t, size_t>{1, 1}, {1, 0}, {0, 1}}) {
          for (const uint64_t size : {uint64_t{200'000}, 10 * kSize + 1}) {
            for (int round = 0; round < 3; ++round) send_one(me, from, to, size, seed += 2);
          }
          const uint64_t taken = mapped_chunks(me);
          EXPECT_EQ(taken > 0, takes_offers);
        }
      },
      [] { return std::vector<Device>{make_device("unified=1:memory=64M")}; }, own);
}

TEST(Offers, StagedDataIsCopiedInPlace) {
  for (const char* const progress : {"thread", "caller"}) {
    run_pair(kSettings + std::string("PROGRESS=") + progress, {}, true);
  }
}

TEST(Offers, DataIsPutIfOneSideCannotMap) {
  for (const int off : {0, 1}) {
    run_pair(
        kSettings,
        [off](int rank) { return rank == off ? std::string("SHM_MAP=off;") : std::string(); },
        false);
  }
}

// --- a played receiver -------------------------------------------------------------------------

class PlayedPeerWithRegions : public WithPlayedPeer {
 protected:
  explicit PlayedPeerWithRegions(const char* device)
      : WithPlayedPeer(kSettings, kChunk, 0, {.maps = true, .devices = {make_device(device)}}) {
    peer_->records = true;
    drive();
  }
  std::vector<PlayedMessage> heard(MessageKind kind) {
    std::vector<PlayedMessage> all;
    for (const PlayedMessage& each : peer_->heard) {
      if (each.header.kind == kind) all.push_back(each);
    }
    return all;
  }
  // Drives the rank until done(), or for some seconds.
  template <typename Done>
  void drive_until(Done&& done) {
    for (int i = 0; i < 2000 && !done(); ++i) {
      drive(10);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  // Drives the rank until |count| messages of |kind| have arrived. Returns them.
  std::vector<PlayedMessage> await(MessageKind kind, size_t count) {
    drive_until([&] { return heard(kind).size() >= count; });
    EXPECT_EQ(heard(kind).size(), count);
    return heard(kind);
  }
  void await_puts() {
    drive_until([this] { return peer_->puts_begun > 0; });
  }
  Code finish(Operation* operation) { return me_.finish(operation).code(); }
};

class OffersOfTheRank : public PlayedPeerWithRegions {
 protected:
  OffersOfTheRank() : PlayedPeerWithRegions("unified=1:memory=64M") {}

  // Starts a send of |size| bytes of |seed|, grants all of it, and returns the offers.
  std::vector<PlayedMessage> offered(uint64_t seed, uint64_t offers_to = 7) {
    peer_->heard.clear();
    memories_.push_back(std::make_unique<OnDevice>(me_, kSize));
    memories_.back()->fill(seed);
    send_ = me_.post(OperationKind::kSend, 1, seed, memories_.back()->part(0, kSize));
    drive();
    EXPECT_EQ(heard(MessageKind::kAnnounce).size(), 1U);
    say({.kind = MessageKind::kGrant, .tag = offers_to},
        GrantBody{peer_->last_request.sender_id, 1, 0, kSize, kSize, {{1, 0, 0}}});
    return offers_to == 0 ? std::vector<PlayedMessage>() : await(MessageKind::kOffer, 4);
  }
  static OfferBody body_of(const PlayedMessage& message) {
    OfferBody body{};
    EXPECT_TRUE(decode_body(message.payload, &body));
    return body;
  }
  // Returns the bytes that a peer that maps the region reads. It keeps the mapping, as a peer may.
  std::vector<std::byte> read(const OfferBody& offer) {
    std::byte*& at = mappings_[offer.region.words[0]];
    if (at == nullptr) {
      const Region& region = peer_->regions.at(offer.region.words[0]);
      EXPECT_EQ(region.members, std::vector<bool>({false, true})) << "nobody else may";
      EXPECT_EQ(region.length, offer.region_bytes);
      void* const base = mmap(nullptr, region.length, PROT_READ | PROT_WRITE, MAP_SHARED,
                              region.file, static_cast<off_t>(region.file_offset));
      EXPECT_NE(base, MAP_FAILED);
      at = static_cast<std::byte*>(base);
    }
    const std::byte* const begin = at + offer.region_offset;
    return {begin, begin + offer.length};
  }
  void expect_contents(const std::vector<PlayedMessage>& offers, uint64_t seed) {
    const std::vector<std::byte> all = pattern(kSize, seed);
    for (const PlayedMessage& each : offers) {
      const OfferBody offer = body_of(each);
      const auto begin = all.begin() + static_cast<ptrdiff_t>(offer.offset);
      EXPECT_EQ(read(offer), std::vector<std::byte>(begin, begin + offer.length));
    }
  }
  void answer(const PlayedMessage& offer, bool refused = false) {
    say({.kind = MessageKind::kTaken,
         .tag = offer.header.value,
         .value = taken_value(body_of(offer).number, refused)});
  }

  Operation* send_ = nullptr;
  std::vector<std::unique_ptr<OnDevice>> memories_;
  std::map<uint64_t, std::byte*> mappings_;  // by region; never unmapped
};

TEST_F(OffersOfTheRank, SendEndsOnceAllItsOffersAreCopied) {
  for (const uint64_t seed : {uint64_t{3}, uint64_t{5}}) {
    const std::vector<PlayedMessage> offers = offered(seed);
    expect_contents(offers, seed);
    for (const PlayedMessage& each : offers) EXPECT_EQ(each.header.tag, 7U);
    // The peer names an unused number, and names one number twice.
    say({.kind = MessageKind::kTaken, .tag = offers[0].header.value, .value = 1000});
    for (size_t i = 0; i < 3; ++i) answer(offers[i]);
    answer(offers[0]);
    drive();
    EXPECT_EQ(send_->state(), OperationState::kPending);
    answer(offers[3]);
    EXPECT_EQ(finish(send_), Code::kOk);
  }
  // The same memory was reused, and was published once.
  EXPECT_EQ(peer_->last_region, 1U);
  EXPECT_EQ(peer_->puts_begun, 0U);
}

TEST_F(OffersOfTheRank, NoOfferIsMadeUnlessRequested) {
  offered(3, 0);
  await_puts();
  EXPECT_GT(peer_->puts_begun, 0U);
  EXPECT_TRUE(heard(MessageKind::kOffer).empty());
  me_.communicator().abort("the test has seen enough");
  EXPECT_EQ(finish(send_), Code::kAborted);
}

TEST_F(OffersOfTheRank, OfferedMemoryIsUntouchedAfterACancel) {
  peer_->lets_go = false;
  const std::vector<PlayedMessage> first = offered(3);
  expect_contents(first, 3);
  answer(first[1]);
  drive();
  {
    const Engine::Baton baton(me_.context().engine());
    me_.communicator().cancel(*send_);
  }
  EXPECT_EQ(finish(send_), Code::kCancelled);
  EXPECT_GE(peer_->withdrawals, 1U);
  // The peer still holds the withdrawn regions. Its answers must now be ignored.
  for (const PlayedMessage& each : first) answer(each);
  drive();
  for (uint64_t seed = 100; seed < 103; ++seed) {
    const std::vector<PlayedMessage> next = offered(seed);
    expect_contents(next, seed);
    for (const PlayedMessage& each : next) {
      EXPECT_NE(body_of(each).region.words[0], body_of(first[0]).region.words[0]);
      answer(each);
    }
    EXPECT_EQ(finish(send_), Code::kOk);
  }
  expect_contents({first[0], first[2], first[3]}, 3);
  // The peer is asked again whether it has released the regions.
  peer_->lets_go = true;
  const std::vector<PlayedMessage> last = offered(200);
  {
    const Engine::Baton baton(me_.context().engine());
    me_.communicator().cancel(*send_);
  }
  EXPECT_EQ(finish(send_), Code::kCancelled);
  EXPECT_TRUE(peer_->regions.empty());
  expect_contents({first[0]}, 3);
  expect_contents(last, 200);
}

// Unpinning memory waits for streams that are held back.
TEST_F(OffersOfTheRank, OfferedMemoryIsNotUnpinnedDuringAHold) {
  const Device& device = me_.context().devices().device(1);
  const auto files = [] {
    uint64_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/map_files")) {
      std::error_code error;
      const auto target = std::filesystem::read_symlink(entry, error);
      if (!error && target.native().starts_with("/memfd:hetcomm-memory")) ++count;
    }
    return count;
  };
  const uint64_t before = files();
  const std::vector<PlayedMessage> offers = offered(3);
  EXPECT_EQ(files(), before + 1);
  {
    const std::lock_guard lock(me_.context().devices().calls().holding());
    me_.context().devices().calls().add_hold();
  }
  {
    const Engine::Baton baton(me_.context().engine());
    me_.communicator().cancel(*send_);
  }
  EXPECT_EQ(finish(send_), Code::kCancelled);
  EXPECT_EQ(files(), before + 1);
  me_.context().devices().calls().drop_hold();
  {
    const Engine::Baton baton(me_.context().engine());
    me_.communicator().job().data().staging.chunks().tidy();
  }
  EXPECT_EQ(files(), before);
  EXPECT_EQ(device.table->host_memory_suffices(device.instance), 1);
}

TEST_F(OffersOfTheRank, OfferedMemoryIsUntouchedAfterTheConnectionBreaks) {
  const std::vector<PlayedMessage> offers = offered(3);
  expect_contents(offers, 3);
  peer_->is_cut = true;
  drive();
  me_.communicator().abort("the test has seen enough");
  EXPECT_NE(finish(send_), Code::kOk);
  EXPECT_TRUE(peer_->regions.empty());
  expect_contents(offers, 3);
}

TEST_F(OffersOfTheRank, RefusedOfferIsPutInstead) {
  std::vector<Operation*> sends;
  for (uint64_t i = 0; i < 4; ++i) {
    const std::vector<PlayedMessage> offers = offered(3 + 2 * i);
    sends.push_back(send_);
    peer_->puts_begun = 0;
    for (const PlayedMessage& each : offers) answer(each, true);
    drive();
    EXPECT_GT(peer_->puts_begun, 0U);
  }
  // After sixteen offers no more are made.
  peer_->heard.clear();
  peer_->puts_begun = 0;
  memories_.push_back(std::make_unique<OnDevice>(me_, kSize));
  sends.push_back(me_.post(OperationKind::kSend, 1, 99, memories_.back()->part(0, kSize)));
  drive();
  say({.kind = MessageKind::kGrant, .tag = 7},
      GrantBody{peer_->last_request.sender_id, 1, 0, kSize, kSize, {{1, 0, 0}}});
  await_puts();
  EXPECT_TRUE(heard(MessageKind::kOffer).empty());
  me_.communicator().abort("the test has seen enough");
  for (Operation* each : sends) EXPECT_EQ(finish(each), Code::kAborted);
}

// --- a played sender ---------------------------------------------------------------------------

// Memory of the played sender, which shows whether it is still held.
struct LentRegion {
  explicit LentRegion(uint64_t seed) : bytes(std::make_shared<std::vector<std::byte>>(2 * kChunk)) {
    fill_pattern(*bytes, seed);
  }
  MappedRegion mapped() const { return {bytes->data(), bytes->size(), bytes}; }
  std::shared_ptr<std::vector<std::byte>> bytes;
};

class OffersToTheRank : public PlayedPeerWithRegions {
 protected:
  explicit OffersToTheRank(const char* device = "unified=1:memory=64M")
      : PlayedPeerWithRegions(device) {}

  // Posts a receive of |size| bytes to the device, announces the message, and returns the grants.
  std::vector<PlayedMessage> granted(uint64_t size, size_t count, size_t device = 1) {
    memory_on_device_ = std::make_unique<OnDevice>(me_, size, device);
    memory_on_device_->fill(77);
    receive_ = me_.post(OperationKind::kReceive, 1, 5, memory_on_device_->part(0, size));
    say({.kind = MessageKind::kAnnounce, .tag = 5, .value = addressee_value(0, size)},
        AnnounceBody{11, 1, {}});
    return await(MessageKind::kGrant, count);
  }
  void offer(const PlayedMessage& grant, const OfferBody& body) {
    say({.kind = MessageKind::kOffer, .tag = grant.header.tag, .value = 11}, body);
  }
  static OfferBody whole(uint64_t region, uint32_t number = 0) {
    return {.region = {{region, 0, 0}},
            .offset = 0,
            .length = kChunk,
            .region_offset = 0,
            .region_bytes = 2 * kChunk,
            .number = number};
  }
  void map(uint64_t region, const Result<MappedRegion>& mapped) {
    peer_->mapped.emplace_back(RemoteKey{{region, 0, 0}}, mapped);
  }
  Operation* receive_ = nullptr;
  std::unique_ptr<OnDevice> memory_on_device_;
};

TEST_F(OffersToTheRank, OfferIsCopiedOnceTheRegionIsMapped) {
  for (const size_t device : {size_t{1}, size_t{0}}) {
    peer_->heard.clear();
    peer_->wanted.clear();
    const uint64_t region = 20 + device;
    const std::vector<PlayedMessage> grants = granted(kChunk, 1, device);
    EXPECT_NE(grants[0].header.tag, 0U);
    EXPECT_EQ(grants[0].header.value, device == 1 ? 1U : 0U);
    const LentRegion lent(3);
    OfferBody first = whole(region, 8);
    first.length = kChunk / 2;
    OfferBody second = whole(region, 9);
    second.length = kChunk / 2;
    second.offset = kChunk / 2;
    second.region_offset = kChunk / 2;
    offer(grants[0], second);
    offer(grants[0], first);
    drive();
    ASSERT_EQ(peer_->wanted.size(), 1U);
    EXPECT_EQ(peer_->wanted[0].second, 2 * kChunk);
    EXPECT_TRUE(heard(MessageKind::kTaken).empty());
    map(region, lent.mapped());
    EXPECT_EQ(finish(receive_), Code::kOk);
    const std::vector<PlayedMessage> taken = heard(MessageKind::kTaken);
    ASSERT_EQ(taken.size(), 2U);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(taken[i].header.tag, 11U);
      EXPECT_EQ(taken[i].header.value, i == 0 ? 9U : 8U);
    }
    std::vector<std::byte> expected = pattern(2 * kChunk, 3);
    expected.resize(kChunk);
    EXPECT_EQ(memory_on_device_->contents(0, kChunk), expected);
  }
}

TEST_F(OffersToTheRank, RefusedPartOfAnOfferIsPut) {
  // The device receives the first quarter from a region, and the rest by puts, with 0x77.
  const std::vector<PlayedMessage> grants = granted(kChunk, 1);
  const LentRegion lent(3);
  OfferBody first = whole(30, 1);
  first.offset = kChunk / 4;
  first.length = kChunk / 4;
  OfferBody second = whole(31, 2);
  second.length = kChunk / 4;
  offer(grants[0], first);
  offer(grants[0], second);
  drive();
  map(30, lent.mapped());
  map(31, Code::kOutOfResources);
  const std::vector<PlayedMessage> answers = await(MessageKind::kTaken, 2);
  for (const PlayedMessage& each : answers) {
    const bool refused = each.header.value >> 32 != 0;
    EXPECT_EQ(each.header.value, refused ? taken_value(2, true) : taken_value(1, false));
  }
  // The peer fills all of the chunk's memory, and reports that three quarters of it have arrived.
  peer_->puts = true;
  peer_->put_bytes = kChunk - kChunk / 4;
  EXPECT_EQ(finish(receive_), Code::kOk);
  std::vector<std::byte> expected(kChunk, std::byte{0x77});
  std::copy_n(lent.bytes->begin(), kChunk / 4,
              expected.begin() + static_cast<ptrdiff_t>(kChunk / 4));
  EXPECT_EQ(memory_on_device_->contents(0, kChunk), expected);
}

TEST_F(OffersToTheRank, RegionIsRequestedAgainIfItCouldNotBeMapped) {
  const std::vector<PlayedMessage> grants = granted(kChunk, 1);
  const LentRegion lent(3);
  for (uint32_t i = 0; i < 2; ++i) {
    OfferBody half = whole(30, i);
    half.length = kChunk / 2;
    half.offset = i * kChunk / 2;
    half.region_offset = static_cast<uint32_t>(half.offset);
    offer(grants[0], half);
    drive();
    EXPECT_EQ(peer_->wanted.size(), i + 1);
    map(30,
        i == 0 ? Result<MappedRegion>(Code::kOutOfResources) : Result<MappedRegion>(lent.mapped()));
    await(MessageKind::kTaken, i + 1);
  }
  peer_->puts = true;
  peer_->put_bytes = kChunk / 2;
  EXPECT_EQ(finish(receive_), Code::kOk);
}

class BadOffers : public OffersToTheRank, public ::testing::WithParamInterface<int> {};

TEST_P(BadOffers, InvalidOfferEndsTheConnection) {
  const PlayedMessage grant = granted(kChunk, 1)[0];
  std::vector<OfferBody> offers = {whole(40)};
  OfferBody& bad = offers[0];
  switch (GetParam()) {
    case 0:
      bad.length = kChunk + 1;
      break;
    case 1:
      bad.offset = 1;
      break;
    case 2:
      bad.offset = UINT64_MAX;
      break;
    case 3:
      bad.region_offset = kChunk + 1;
      break;
    case 4:
      bad.region_offset = UINT32_MAX;
      break;
    case 5:
      bad.region_bytes = kChunk - 1;
      break;
    case 6:  // more than was granted, in pieces
      bad.length = kChunk / 2;
      offers.assign(3, bad);
      break;
    case 7:  // more pieces than a chunk can have
      bad.length = 1;
      offers.assign(17, bad);
      break;
    default:
      bad.length = 0;
  }
  for (const OfferBody& each : offers) offer(grant, each);
  drive();
  EXPECT_EQ(failures(), 1U);
  // The memory arrives too late.
  const LentRegion lent(3);
  map(40, lent.mapped());
  drive();
  me_.communicator().abort("the test has seen enough");
  EXPECT_NE(finish(receive_), Code::kOk);
}

INSTANTIATE_TEST_SUITE_P(All, BadOffers, ::testing::Range(0, 9));

TEST_F(OffersToTheRank, OfferForAnUnknownChunkIsDropped) {
  PlayedMessage grant = granted(kChunk, 1)[0];
  grant.header.tag += 1;
  offer(grant, whole(40));
  drive();
  EXPECT_EQ(failures(), 0U);
  EXPECT_TRUE(peer_->wanted.empty());
  // Offers that arrive after the end also have no effect.
  {
    const Engine::Baton baton(me_.context().engine());
    me_.communicator().cancel(*receive_);
  }
  EXPECT_EQ(finish(receive_), Code::kCancelled);
  grant.header.tag -= 1;
  offer(grant, whole(40));
  drive();
  EXPECT_EQ(failures(), 0U);
  EXPECT_TRUE(heard(MessageKind::kTaken).empty());
}

TEST_F(OffersToTheRank, OfferAndPutOfTheSameBytesEndTheConnection) {
  const PlayedMessage grant = granted(kChunk, 1)[0];
  offer(grant, whole(40));
  drive();
  peer_->puts = true;
  EXPECT_EQ(finish(receive_), Code::kPeerLost);
}

class OffersToASlowDevice : public OffersToTheRank {
 protected:
  OffersToASlowDevice() : OffersToTheRank("unified=1:memory=64M:latency=700ms") {}
};

TEST_F(OffersToASlowDevice, RegionStaysMappedUntilTheCopyEnds) {
  const PlayedMessage grant = granted(kChunk, 1)[0];
  auto lent = std::make_unique<LentRegion>(3);
  const std::weak_ptr<std::vector<std::byte>> held = lent->bytes;
  offer(grant, whole(40));
  drive();
  map(40, lent->mapped());
  lent.reset();
  drive();
  EXPECT_FALSE(held.expired());
  peer_->is_cut = true;
  drive();
  me_.communicator().abort("the test has seen enough");
  drive();
  EXPECT_FALSE(held.expired()) << "the device copies out of it";
  EXPECT_EQ(receive_->state(), OperationState::kPending) << "the device copies into its memory";
  EXPECT_NE(finish(receive_), Code::kOk);
  drive();
  EXPECT_TRUE(held.expired());
}

TEST_F(OffersToASlowDevice, ReceiveCancelledDuringTheCopyEndsAfterIt) {
  const PlayedMessage grant = granted(kChunk, 1)[0];
  const LentRegion lent(3);
  offer(grant, whole(40));
  drive();
  map(40, lent.mapped());
  drive();
  {
    const Engine::Baton baton(me_.context().engine());
    me_.communicator().cancel(*receive_);
  }
  drive();
  EXPECT_EQ(receive_->state(), OperationState::kPending);
  EXPECT_EQ(finish(receive_), Code::kCancelled);
  EXPECT_TRUE(heard(MessageKind::kTaken).empty());
  EXPECT_EQ(failures(), 0U);
}

}  // namespace
}  // namespace hetcomm::test
