// Fuzz target: core receives messages from an authenticated but hostile peer.
//
// One rank of core runs over a transport in this file, whose connections act on the input: messages
// of every kind and flag of wire.h with sequence numbers, ids, keys and lengths that are sometimes
// right, puts into exposed memory, completions, and broken connections. The input also posts and
// cancels sends, receives, puts, gets, atomics and flushes, and registers memory again. The rank
// has four registered memories, each with different rights and surrounded by guard bytes.
//
// Checked:
//  * core accesses and exposes only those bytes of the registered memories and their guards that
//    the rights and the range of a request allow;
//  * bytes change only in the range that a put or an atomic names, so memory granted for get only
//    never changes;
//  * nothing is written outside of the buffers of the rank's own operations, and no exposure or
//    transfer outlives its operation (its buffers are then freed, and the sanitizers detect
//    accesses);
//  * a notification names a range of memory that may be put to;
//  * every operation that is cancelled ends;
//  * within some seconds each of these has occurred: every message kind was accepted, puts, gets
//    and atomics were done and refused, and the rank's own operations completed
//    (fuzz_incomplete()).
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "src/core/job/job.h"
#include "src/net/key.h"
#include "tests/support/core_job.h"

namespace hetcomm::test {
namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "fuzz_core_messages: %s\n", what);
  std::abort();
}

class Script {
 public:
  Script(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  uint8_t byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  uint64_t number() {
    static constexpr uint64_t kInteresting[] = {0,
                                                1,
                                                2,
                                                3,
                                                8,
                                                63,
                                                64,
                                                255,
                                                2048,
                                                4096,
                                                5000,
                                                16384,
                                                70000,
                                                131072,
                                                300000,
                                                UINT32_MAX,
                                                uint64_t{1} << 32,
                                                uint64_t{1} << 63,
                                                UINT64_MAX};
    const uint8_t chosen = byte();
    if (chosen < 128) return kInteresting[chosen % std::size(kInteresting)];
    return uint64_t{byte()} << (chosen % 40);
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

// At the end the driver asks whether all of these have occurred.
enum Event : size_t {
  kPutDone,
  kPutLanded,
  kAtomicHappened,
  kGetAnswered,
  kGetAnsweredByTransfer,
  kRefusal,
  kNotification,
  kOwnPut,
  kOwnGet,
  kOwnAtomic,
  kOwnFlush,
  kEventCount
};
constexpr const char* kEventNames[kEventCount] = {
    "a put in a message",     "a put by request",    "an atomic",
    "a get in a message",     "a get by request",    "a refusal",
    "a notification",         "a put of this rank",  "a get of this rank",
    "an atomic of this rank", "a flush of this rank"};
constexpr size_t kKinds = static_cast<size_t>(MessageKind::kPastLast);
std::array<uint64_t, kEventCount> g_happened{};
std::array<uint64_t, kKinds> g_taken{};

// The registered memories, in one block with guard bytes between them. A copy shows changes.
class Arena {
 public:
  static constexpr uint64_t kSize = 8000;  // size of each memory
  static constexpr uint64_t kGuard = 256;
  static constexpr std::array<uint32_t, 4> kRights = {HETCOMM_ACCESS_GET, HETCOMM_ACCESS_PUT,
                                                      HETCOMM_ACCESS_ATOMIC, HETCOMM_ACCESS_ALL};

  Arena() : bytes_(kRights.size() * (kSize + kGuard) + kGuard) {
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<std::byte>(i % 251);
    copy_ = bytes_;
  }
  std::byte* at(size_t index) { return bytes_.data() + begin_of(index); }
  // Checks an access by core to these bytes, which requires |right|. Bytes outside of all memories
  // are unrestricted.
  void require_right(const std::byte* from, uint64_t length, uint32_t right) const {
    if (length == 0 || from + length <= bytes_.data() || from >= bytes_.data() + bytes_.size()) {
      return;
    }
    const auto begin = static_cast<uint64_t>(from - bytes_.data());
    for (size_t i = 0; i < kRights.size(); ++i) {
      if (begin < begin_of(i) || begin + length > begin_of(i) + kSize) continue;
      require((kRights[i] & right) != 0, "memory is used in a way that was not granted");
      return;
    }
    require(false, "registered memory is left");
  }
  void require_right(Extents extents, uint64_t offset, uint64_t length, uint32_t right) const {
    for_each_piece(extents, offset, length,
                   [&](const std::byte* piece, size_t size) { require_right(piece, size, right); });
  }
  // Checks that since the last call only bytes of [offset, offset + length) in memory |index| have
  // changed, and those only if |right| is granted. Returns true if any byte has changed.
  bool take_change(size_t index, uint64_t offset, uint64_t length, uint32_t right) {
    if (bytes_ == copy_) return false;
    require(index < kRights.size() && (kRights[index] & right) != 0,
            "memory changed without the right to that");
    require(offset <= kSize && length <= kSize - offset, "memory changed beside what was named");
    const auto from = static_cast<std::ptrdiff_t>(begin_of(index) + offset);
    std::copy_n(bytes_.begin() + from, length, copy_.begin() + from);
    require(bytes_ == copy_, "bytes changed beside those that were named");
    return true;
  }
  // Checks that nothing has changed.
  void require_same() { take_change(SIZE_MAX, 0, 0, 0); }
  // Accepts changes to these bytes by a put from the peer. Returns false if they are not in a
  // memory.
  bool accept_change(const std::byte* from, uint64_t length) {
    if (from < bytes_.data() || from >= bytes_.data() + bytes_.size()) return false;
    std::copy_n(from, length, copy_.data() + (from - bytes_.data()));
    return true;
  }

 private:
  static uint64_t begin_of(size_t index) { return kGuard + index * (kSize + kGuard); }
  std::vector<std::byte> bytes_;
  std::vector<std::byte> copy_;
};

class FuzzTransport;

class FuzzEndpoint final : public Endpoint,
                           public PutStarter,
                           public GetStarter,
                           public ImmediateReader,
                           public MemoryExposer,
                           public RegionMapper {
 public:
  explicit FuzzEndpoint(FuzzTransport& transport);
  ~FuzzEndpoint() override;

  void set_handler(EndpointHandler* handler) override { handler_ = handler; }
  const Capabilities& capabilities() const override { return capabilities_; }
  EndpointAbilities abilities() override {
    return {.puts = this, .gets = this, .immediate_gets = this, .exposer = this, .mapper = this};
  }
  Code send(const MessageHeader& header, const ExtentView& payload) override;
  Code put(Bulk& bulk) override { return accept(bulk, HETCOMM_ACCESS_GET); }
  Code get(Bulk& bulk) override { return accept(bulk, HETCOMM_ACCESS_PUT); }
  Code get_now(Bulk& bulk) override;
  void map(const RemoteKey& key, uint64_t length) override { wanted_.emplace_back(key, length); }
  void close() override { broken_ = true; }
  Result<RemoteKey> expose(Extents extents, Access access, uint64_t cookie) override;
  void revoke(const RemoteKey& key) override {
    std::erase_if(exposed_, [&](const Exposed& each) { return each.id == key.words[0]; });
  }
  void release(const RemoteKey& key) override { revoke(key); }
  bool cancel(Bulk& bulk) override {
    std::erase(bulks_, &bulk);
    return false;
  }
  bool flushed() const override { return true; }
  std::string describe() const override { return "fuzz"; }

  // Called from progress(). The input selects the actions.
  void open();
  void deliver(Script& script);
  void land(Script& script);
  void complete(Script& script);
  void answer_map(Script& script);
  void break_down();
  bool broken() const { return broken_; }

 private:
  struct Exposed {
    uint64_t id;
    std::vector<iovec> extents;
    Access access;
    uint64_t cookie;
  };
  Code accept(Bulk& bulk, uint32_t right);
  std::vector<std::byte> body_of(MessageKind kind, Script& script, WireHeader& header);
  AccessBody access_body(Script& script) const;
  uint64_t some_id(Script& script) const;

  FuzzTransport& transport_;
  EndpointHandler* handler_ = nullptr;
  Capabilities capabilities_;
  std::vector<std::pair<RemoteKey, uint64_t>> wanted_;  // keys to be mapped, with their lengths
  bool broken_ = false;
  bool opened_ = false;
  uint32_t next_sequence_ = 1;
  uint64_t rail_ = 0;
  volatile uint64_t sum_ = 0;
  uint64_t keys_ = 0;
  std::vector<Exposed> exposed_;
  std::vector<Bulk*> bulks_;
};

class FuzzTransport final : public Transport, public RegionPublisher {
 public:
  explicit FuzzTransport(TransportHandler& handler) : handler_(handler) {
    can_.put = can_.get = can_.gets_now = can_.target_sees_put = can_.map = true;
    can_.max_payload_bytes = 2048;
    can_.eager_limit_bytes = 70'000;
    can_.chunk_bytes = 1 << 20;
  }
  const Capabilities& capabilities() const override { return can_; }
  TransportAbilities abilities() override { return {.regions = this}; }
  Result<RemoteKey> publish(const Region&) override { return RemoteKey{{++regions_, 0, 0}}; }
  bool withdraw(const RemoteKey&) override { return regions_ % 2 == 0; }
  std::vector<std::byte> contact() const override { return std::vector<std::byte>(4); }
  Status start() override { return {}; }
  Status reach(ConstByteSpan) const override { return {}; }
  void connect(const Destination& destination, ConstByteSpan) override {
    destination_ = destination;
  }
  void cancel_connect(const Destination&) override {}
  // Index among the peer's transports.
  uint16_t number() const { return static_cast<uint16_t>(destination_->transport); }
  int progress() override {
    if (!destination_) return 0;
    // The peer makes the next connection as soon as one has ended, so that little of the input is
    // read without a connection.
    if (endpoint == nullptr || endpoint->broken()) {
      handler_.on_connected(*destination_,
                            std::unique_ptr<Endpoint>(std::make_unique<FuzzEndpoint>(*this)));
    }
    if (endpoint == nullptr) return 0;
    endpoint->open();
    if (script == nullptr || endpoint == nullptr || endpoint->broken()) return 0;
    Script& now = *std::exchange(script, nullptr);
    switch (now.byte() % 8) {
      case 0:
        endpoint->land(now);
        break;
      case 1:
        endpoint->complete(now);
        break;
      case 2:
        if (now.byte() < 20) {
          endpoint->break_down();
        } else {
          endpoint->answer_map(now);
        }
        break;
      default:
        endpoint->deliver(now);
    }
    return 1;
  }
  bool prepare_sleep(Sleep) override { return true; }
  bool may_sleep_on() const override { return true; }
  void finish_sleep() override {}
  uint64_t next_timer_ns() const override { return kForever; }

  FuzzEndpoint* endpoint = nullptr;
  Script* script = nullptr;   // runs one action at the next progress()
  uint32_t last_sent = 0;     // sequence of core's last message
  std::deque<uint64_t> seen;  // ids that core has used
  // One-sided operations that core has requested.
  struct Asked {
    MessageKind kind;
    uint64_t id;
    uint64_t length;
  };
  std::deque<Asked> asked;
  Arena arena;
  std::array<uint64_t, Arena::kRights.size()> regions{};  // ids of the arena's memories

 private:
  TransportHandler& handler_;
  uint64_t regions_ = 0;
  Capabilities can_;
  std::optional<Destination> destination_;
};

FuzzEndpoint::FuzzEndpoint(FuzzTransport& transport)
    : transport_(transport), capabilities_(transport.capabilities()) {
  transport.endpoint = this;
}
FuzzEndpoint::~FuzzEndpoint() {
  if (transport_.endpoint == this) transport_.endpoint = nullptr;
}

Code FuzzEndpoint::accept(Bulk& bulk, uint32_t right) {
  if (broken_) return Code::kPeerLost;
  transport_.arena.require_right(bulk.local.extents, bulk.local.offset, bulk.local.length, right);
  // Reads all bytes, as a transport would.
  uint64_t sum = 0;
  for_each_piece(bulk.local.extents, bulk.local.offset, bulk.local.length,
                 [&](const std::byte* piece, size_t length) {
                   sum +=
                       static_cast<uint64_t>(piece[0]) + static_cast<uint64_t>(piece[length - 1]);
                 });
  sum_ = sum;
  bulks_.push_back(&bulk);
  return Code::kOk;
}

Code FuzzEndpoint::get_now(Bulk& bulk) {
  if (broken_) return Code::kPeerLost;
  const ExtentView& local = bulk.local;
  transport_.arena.require_right(local.extents, local.offset, local.length, HETCOMM_ACCESS_PUT);
  // Writes all bytes, as a transport would.
  for_each_piece(local.extents, local.offset, local.length,
                 [](std::byte* piece, size_t length) { std::memset(piece, 0x5a, length); });
  constexpr Code kOutcomes[] = {Code::kOk, Code::kOk, Code::kOk, Code::kCancelled,
                                Code::kPermissionDenied};
  return kOutcomes[bulk.key.words[1] % std::size(kOutcomes)];
}

Result<RemoteKey> FuzzEndpoint::expose(Extents extents, Access access, uint64_t cookie) {
  require(!broken_, "exposed on a broken connection");
  transport_.arena.require_right(
      extents, 0, total_bytes(extents),
      access == Access::kGetSource ? HETCOMM_ACCESS_GET : HETCOMM_ACCESS_PUT);
  exposed_.push_back({++keys_, {extents.begin(), extents.end()}, access, cookie});
  return RemoteKey{{keys_, 0, 0}};
}

Code FuzzEndpoint::send(const MessageHeader& bytes, const ExtentView& payload) {
  if (broken_) return Code::kPeerLost;
  const WireHeader header = decode_header(bytes);
  transport_.arena.require_right(payload.extents, payload.offset, payload.length,
                                 HETCOMM_ACCESS_GET);
  std::vector<std::byte> body(payload.length);
  gather(payload.extents, payload.offset, body);
  if (header.kind == MessageKind::kOpen) {
    next_sequence_ = static_cast<uint32_t>(header.value) + 1;
    rail_ = header.tag;
  } else if (header.kind != MessageKind::kUpdate) {
    transport_.last_sent = header.sequence;
  }
  const auto word = [&](size_t at) {
    uint64_t value = 0;
    if (body.size() >= at + 8) std::memcpy(&value, body.data() + at, 8);
    return value;
  };
  if (body.size() >= 8) {
    // A put request names its transfer after the range.
    const bool is_put_request = header.kind == MessageKind::kAnnouncePut;
    transport_.seen.push_back(word(is_put_request ? offsetof(AnnouncePutBody, announcement) : 0));
    if (transport_.seen.size() > 32) transport_.seen.pop_front();
  }
  if (header.kind == MessageKind::kPut || header.kind == MessageKind::kGet ||
      header.kind == MessageKind::kAtomic) {
    transport_.asked.push_back({header.kind, header.tag, word(offsetof(AccessBody, length))});
    if (transport_.asked.size() > 32) transport_.asked.pop_front();
  }
  if (header.kind == MessageKind::kGetData) ++g_happened[kGetAnswered];
  if (header.kind == MessageKind::kAnnounceGet) ++g_happened[kGetAnsweredByTransfer];
  if (header.kind == MessageKind::kRefused) ++g_happened[kRefusal];
  return Code::kOk;
}

void FuzzEndpoint::open() {
  if (opened_ || broken_ || handler_ == nullptr) return;
  opened_ = true;
  handler_->on_message(encode_header({.kind = MessageKind::kOpen,
                                      .channel = transport_.number(),
                                      .tag = rail_,
                                      .value = transport_.last_sent}),
                       {});
}

uint64_t FuzzEndpoint::some_id(Script& script) const {
  const uint8_t chosen = script.byte();
  if (transport_.seen.empty() || chosen < 64) return script.number();
  return transport_.seen[chosen % transport_.seen.size()];
}

// Returns a range of a registered memory, or an invalid one.
AccessBody FuzzEndpoint::access_body(Script& script) const {
  AccessBody body{};
  const uint8_t chosen = script.byte();
  body.region = chosen < 240 ? transport_.regions[chosen % transport_.regions.size()]
                             : transport_.regions[0] + (script.number() << (chosen % 2 * 32));
  switch (script.byte() % 8) {
    case 0:
      body.offset = script.number();
      body.length = script.number();
      break;
    case 1:  // up to the end, or some bytes past it
      body.length = script.byte();
      body.offset = Arena::kSize - body.length + script.byte() % 3;
      break;
    case 2:  // exceeds 64 bits
      body.length = script.byte();
      body.offset = UINT64_MAX - body.length + script.byte() % 3;
      break;
    case 3:
      body.length = Arena::kSize;
      break;
    default:
      body.offset = uint64_t{script.byte()} * 8;
      body.length = script.byte();
  }
  return body;
}

template <typename Body>
std::vector<std::byte> bytes_of(const Body& body, size_t more = 0) {
  std::vector<std::byte> bytes(sizeof(body) + more, std::byte{0x3c});
  std::memcpy(bytes.data(), &body, sizeof(body));
  return bytes;
}

// Makes a payload of the form required by |kind|, and the matching fields of |header|.
std::vector<std::byte> FuzzEndpoint::body_of(MessageKind kind, Script& script, WireHeader& header) {
  const uint8_t shape = script.byte();
  header.value = script.number();
  const FuzzTransport::Asked* answered = nullptr;
  if (kind >= MessageKind::kGetData && kind <= MessageKind::kRefused && shape < 240) {
    for (const FuzzTransport::Asked& each : transport_.asked) {
      const bool fits = kind == MessageKind::kRefused ||
                        (each.kind == MessageKind::kAtomic) == (kind == MessageKind::kAtomicDone);
      if (fits && (answered == nullptr || script.byte() % 2 == 0)) answered = &each;
    }
    if (answered != nullptr) header.tag = answered->id;
  }
  switch (shape < 240 ? kind : MessageKind::kPastLast) {
    case MessageKind::kGrant: {
      GrantBody grant{some_id(script), shape < 230 ? rail_ : script.number(),
                      script.number(), script.number(),
                      script.number(), {{script.number(), 0, 0}}};
      if (shape < 120) {
        grant.offset = 0;
        grant.accepted = grant.length;
      }
      return bytes_of(grant);
    }
    case MessageKind::kOffer:
      if (shape < 200 && !exposed_.empty()) {
        header.tag = exposed_[script.byte() % exposed_.size()].cookie;
      }
      return bytes_of(
          OfferBody{.region = {{script.byte() % 3u, 0, 0}},
                    .offset = shape < 100 ? 0 : script.number(),
                    .length = static_cast<uint32_t>(script.number()),
                    .region_offset = shape < 100 ? 0 : static_cast<uint32_t>(script.number()),
                    .region_bytes = static_cast<uint32_t>(script.number()),
                    .number = script.byte()});
    case MessageKind::kReshardNote:
      header.value = script.byte() % 9u;
      return bytes_of(ReshardNoteBody{.channel = script.byte() % 3u,
                                      .reply_channel = script.byte(),
                                      .number = shape == 0 ? ~0U : script.byte() % 4u,
                                      .origin = static_cast<int32_t>(script.byte()),
                                      .content = script.byte() % 3u,
                                      .execution = script.number(),
                                      .step = script.number(),
                                      .micro_batch = script.number(),
                                      .code = static_cast<int32_t>(script.number()),
                                      .confirmed = static_cast<uint16_t>(script.byte() % 2u),
                                      .older = static_cast<uint16_t>(script.byte() % 20u)});
    case MessageKind::kAnnounce:
      return bytes_of(AnnounceBody{script.number(), rail_, {{uint64_t{shape} % 2, 1, 1}}});
    case MessageKind::kPull: {
      header.value = script.number();
      return bytes_of(PullBody{script.number(),
                               shape < 220 ? rail_ : script.number(),
                               {{1, shape, 1}},
                               script.number()});
    }
    case MessageKind::kPut: {
      const AccessBody body = access_body(script);
      const bool placed = (header.flags & kFlagPlaced) != 0 && shape < 200;
      const uint64_t bytes = placed ? 0 : body.length;
      return bytes_of(body, std::min<uint64_t>(bytes, capabilities_.max_payload_bytes));
    }
    case MessageKind::kAnnouncePut: {
      AnnouncePutBody body{};
      body.range = access_body(script);
      if (shape < 60) body.ahead = shape < 30 ? script.byte() : script.number();
      body.announcement = {script.number() + 1, rail_, {{uint64_t{shape} % 2, 1, 1}}};
      return bytes_of(body);
    }
    case MessageKind::kGet:
      return bytes_of(access_body(script));
    case MessageKind::kAtomic: {
      AtomicBody body{access_body(script), static_cast<AtomicAction>(1 + shape % 2),
                      script.number(), script.number()};
      if (shape < 200) body.range.length = 8;
      if (shape >= 230) body.action = static_cast<AtomicAction>(script.number());
      return bytes_of(body);
    }
    case MessageKind::kGetData: {
      const uint64_t length = answered != nullptr ? answered->length : script.number();
      return std::vector<std::byte>(std::min<uint64_t>(length, capabilities_.max_payload_bytes));
    }
    case MessageKind::kAnnounceGet:
      if (answered != nullptr && shape < 220) header.value = answered->length;
      return bytes_of(AnnounceBody{script.number() + 1, rail_, {{uint64_t{shape} % 2, 1, 1}}});
    case MessageKind::kRefused:
      header.value = static_cast<uint64_t>(-int64_t{script.byte()});
      return {};
    default:
      break;
  }
  std::vector<std::byte> payload(
      std::min<uint64_t>(script.number(), capabilities_.max_payload_bytes));
  if (shape % 2 == 0) header.value = payload.size();
  return payload;
}

void FuzzEndpoint::deliver(Script& script) {
  WireHeader header{.kind = static_cast<MessageKind>(script.byte() % (kKinds + 1))};
  header.flags = static_cast<uint8_t>(script.byte() % 16);
  header.channel = script.byte() < 200 ? 0 : static_cast<uint16_t>(script.number());
  header.sequence = script.byte() < 240 ? next_sequence_ : script.byte();
  header.acknowledged =
      script.byte() < 250 ? transport_.last_sent : static_cast<uint32_t>(script.number());
  header.credit = static_cast<uint32_t>(script.number());
  header.tag = script.byte() < 128 ? script.byte() % 4 : some_id(script);
  const std::vector<std::byte> payload = body_of(header.kind, script, header);
  const bool in_order = header.sequence == next_sequence_ && header.kind != MessageKind::kOpen &&
                        header.kind != MessageKind::kUpdate;
  if (in_order) ++next_sequence_;
  if ((in_order || header.kind == MessageKind::kUpdate) && header.kind < MessageKind::kPastLast) {
    ++g_taken[static_cast<size_t>(header.kind)];
  }
  Arena& arena = transport_.arena;
  arena.require_same();
  FuzzTransport& transport = transport_;  // this object may be gone afterwards
  const bool is_put = header.kind == MessageKind::kPut;
  const bool is_atomic = header.kind == MessageKind::kAtomic;
  AccessBody named{};
  if (payload.size() >= sizeof(named)) std::memcpy(&named, payload.data(), sizeof(named));
  handler_->on_message(encode_header(header), payload);
  if (!is_put && !is_atomic) {
    arena.require_same();
    return;
  }
  const auto found = std::find(transport.regions.begin(), transport.regions.end(), named.region);
  const auto index = static_cast<size_t>(found - transport.regions.begin());
  if (arena.take_change(index, named.offset, named.length,
                        is_put ? HETCOMM_ACCESS_PUT : HETCOMM_ACCESS_ATOMIC)) {
    ++g_happened[is_put ? kPutDone : kAtomicHappened];
  }
}

// Performs a put by the peer into exposed memory.
void FuzzEndpoint::land(Script& script) {
  if (exposed_.empty()) return;
  const Exposed& target = exposed_[script.byte() % exposed_.size()];
  const uint64_t total = total_bytes(target.extents);
  // Mostly puts all bytes, so that transfers end.
  const uint64_t length = script.byte() < 160 ? total : std::min(script.number(), total);
  if (target.access == Access::kGetSource || length == 0) return;
  const std::vector<std::byte> data(length, static_cast<std::byte>(script.byte()));
  scatter(target.extents, total - length, data);
  for_each_piece(target.extents, total - length, length, [&](std::byte* piece, size_t size) {
    transport_.arena.require_right(piece, size, HETCOMM_ACCESS_PUT);
    if (transport_.arena.accept_change(piece, size)) ++g_happened[kPutLanded];
  });
  const uint64_t cookie = target.cookie;
  Arena& arena = transport_.arena;
  handler_->on_put(cookie, length);
  arena.require_same();
}

void FuzzEndpoint::complete(Script& script) {
  if (bulks_.empty()) return;
  const size_t index = script.byte() % bulks_.size();
  Bulk* bulk = bulks_[index];
  bulks_.erase(bulks_.begin() + static_cast<std::ptrdiff_t>(index));
  static constexpr Code kOutcomes[] = {Code::kOk, Code::kOk, Code::kOk, Code::kCancelled,
                                       Code::kUnsupported};
  handler_->on_bulk_complete(*bulk, kOutcomes[script.byte() % std::size(kOutcomes)]);
}

// Maps a requested region, refuses to, or revokes the mapping.
void FuzzEndpoint::answer_map(Script& script) {
  if (wanted_.empty()) return;
  const auto [key, length] = wanted_[script.byte() % wanted_.size()];
  const uint8_t how = script.byte();
  if (how >= 200) {
    handler_->on_unmap(key);
  } else if (how >= 150 || length > (1u << 20)) {
    handler_->on_mapped(key, Status(Code::kOutOfResources));
  } else {
    auto bytes = std::make_shared<std::vector<std::byte>>(length + 1);
    handler_->on_mapped(key, MappedRegion{bytes->data(), length, bytes});
  }
}

void FuzzEndpoint::break_down() {
  broken_ = true;
  exposed_.clear();
  bulks_.clear();
  handler_->on_failed(Status(Code::kPeerLost, "the input says so"));
}

class FuzzFactory final : public TransportFactory {
 public:
  explicit FuzzFactory(FuzzTransport** made) : made_(made) {}
  std::string_view name() const override { return "fuzz"; }
  Status probe(const Config&) const override { return {}; }
  Result<std::unique_ptr<Transport>> create(
      const TransportEnvironment& environment) const override {
    auto transport = std::make_unique<FuzzTransport>(environment.handler);
    *made_ = transport.get();
    return std::unique_ptr<Transport>(std::move(transport));
  }

 private:
  FuzzTransport** made_;
};

Factories fuzz_factories(FuzzTransport** made) {
  Factories factories;
  factories.push_back(std::make_unique<FuzzFactory>(made));
  return factories;
}

void require_ok(const Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "fuzz_core_messages: %s: %s\n", what, std::string(status.text()).c_str());
  std::abort();
}

// The fuzzed rank, and a passive rank for the control plane.
class Job {
 public:
  Job()
      : other_([this] {
          FuzzTransport* unused = nullptr;
          CoreMember member(store_, 1, 2, "PROGRESS=thread;LOG=error;", fuzz_factories(&unused));
          stop_.wait(false);
        }),
        me_(std::make_unique<CoreMember>(store_, 0, 2,
                                         "PROGRESS=caller;LOG=error;CREDIT_BYTES=64K;",
                                         fuzz_factories(&transport_))) {
    for (size_t i = 0; i < Arena::kRights.size(); ++i) {
      memories_.emplace_back(me_->context().devices(), 0, transport_->arena.at(i), Arena::kSize,
                             false);
      register_memory(i);
    }
    import_memory();
    // A connection exists before the first action of the input.
    const Engine::Baton baton(me_->context().engine());
    me_->communicator().job().pair(1).ensure_connected();
  }
  ~Job() {
    me_->communicator().abort("the end");
    for (Memory& memory : memories_) unregister(memory);
    memories_.clear();
    remote_.reset();
    me_.reset();
    stop_ = true;
    stop_.notify_one();
    other_.join();
  }

  // Unmatched messages use up the peer's credit, so a job serves only some inputs.
  bool usable() {
    constexpr uint64_t kMaxInputs = 64;
    if (inputs_ > kMaxInputs) return false;
    const Pair* pair = me_->communicator().job().find_pair(1);
    return pair == nullptr || pair->state() != PairState::kLost;
  }

  void run(Script& script) {
    while (!script.empty() && usable()) {
      switch (script.byte() % 12) {
        case 0:
          post(OperationKind::kReceive, script);
          break;
        case 1:
          post(OperationKind::kSend, script);
          break;
        case 2:
          if (!running_.empty()) cancel(running_[script.byte() % running_.size()]);
          break;
        case 3:
          access(script);
          break;
        case 4:
          if (script.byte() < 16) register_anew(script.byte() % memories_.size());
          break;
        default:
          transport_->script = &script;
      }
      drive();
    }
    transport_->script = nullptr;
    for (Running& each : running_) cancel(each);
    for (int i = 0; i < 1000 && !running_.empty(); ++i) drive();
    require(running_.empty(), "a cancelled operation does not end");
    transport_->arena.require_same();
    ++inputs_;
  }

 private:
#ifdef HETCOMM_ASAN
  static constexpr size_t kAround = 0;  // exactly as long as the message: the sanitizer looks
#else
  static constexpr size_t kAround = 64;  // guard bytes
#endif
  static constexpr std::byte kUntouched{0xd7};
  struct Running {
    Operation* operation;
    uint32_t generation;
    OperationKind kind;
    uint64_t size;
    std::unique_ptr<std::byte[]> bytes;
    std::unique_ptr<uint64_t> result;

    std::byte* data() const { return bytes.get() + kAround; }
    bool guards_intact() const {
      const auto same = [](std::byte each) { return each == kUntouched; };
      return std::all_of(bytes.get(), data(), same) &&
             std::all_of(data() + size, data() + size + kAround, same);
    }
  };

  void register_memory(size_t index) {
    require_ok(me_->communicator().memories().register_memory(memories_[index],
                                                              Arena::kRights[index], true),
               "register");
    transport_->regions[index] = registration_of(memories_[index])->id;
  }
  static void unregister(Memory& memory) {
    require_ok(RegisteredMemories::unregister_memory(memory, 20'000'000'000), "unregister");
  }
  void register_anew(size_t index) {
    transport_->script = nullptr;
    unregister(memories_[index]);
    register_memory(index);
  }
  // The peer's memory. Only the exported bytes are backed by real memory.
  void import_memory() {
    ExportedMemory exported =
        ExportedMemory::decode(RegisteredMemories::export_memory(memories_[3]).value()).value();
    exported.rank = 1;
    exported.length = 300'000;
    ExportedMemory imported;
    std::vector<RemoteKey> keys;
    require_ok(me_->communicator().memories().import_memory(exported.encode(), &imported, &keys),
               "import");
    remote_ = std::make_unique<RemoteMemory>(me_->communicator(), imported, std::move(keys));
  }

  Running make_running(OperationKind kind, uint64_t size) {
    Running running{nullptr,
                    0,
                    kind,
                    size,
                    std::make_unique<std::byte[]>(size + 2 * kAround),
                    std::make_unique<uint64_t>(0)};
    std::fill_n(running.bytes.get(), size + 2 * kAround, kUntouched);
    return running;
  }
  void add(Running running) {
    running.generation = running.operation->generation();
    running_.push_back(std::move(running));
  }
  void post(OperationKind kind, Script& script) {
    const uint64_t size = std::min<uint64_t>(script.number(), 300'000);
    Running running = make_running(kind, size);
    running.operation = me_->post(kind, 1, script.byte() % 4, running.data(), size);
    add(std::move(running));
  }
  void access(Script& script) {
    static constexpr OperationKind kKindsHere[] = {
        OperationKind::kPut,         OperationKind::kPut,      OperationKind::kGet,
        OperationKind::kGet,         OperationKind::kFetchAdd, OperationKind::kFetchAdd,
        OperationKind::kCompareSwap, OperationKind::kFlush};
    const OperationKind kind = kKindsHere[script.byte() % std::size(kKindsHere)];
    const bool has_bytes = kind == OperationKind::kPut || kind == OperationKind::kGet;
    // Mostly small sizes: the answer to a large request is a transfer of several messages.
    const uint8_t chosen = script.byte();
    const uint64_t size = !has_bytes     ? 0
                          : chosen < 160 ? chosen
                                         : std::min<uint64_t>(script.number(), 200'000);
    Running running = make_running(kind, size);
    if (kind == OperationKind::kFlush) {
      running.operation = flush();
    } else {
      const AccessArguments arguments{.remote = remote_.get(),
                                      .offset = uint64_t{script.byte()} * 8,
                                      .operand = script.number(),
                                      .compare = script.number(),
                                      .result = running.result.get()};
      const bool notify = kind == OperationKind::kPut && script.byte() % 2 == 0;
      running.operation =
          me_->access(kind, arguments, has_bytes ? running.data() : nullptr, size, notify);
    }
    add(std::move(running));
  }
  Operation* flush() {
    const AccessArguments nothing{};
    std::string text;
    Operation* operation = nullptr;
    const Code code = me_->communicator().poster().post(
        {.kind = OperationKind::kFlush, .peer = 1, .tag = 0, .ignore = 0, .access = &nothing},
        &operation, &text);
    require(code == Code::kOk, "a flush is not taken");
    return operation;
  }
  void cancel(Running& each) {
    const Engine::Baton baton(me_->communicator().job().engine());
    if (each.operation->is(each.generation, OperationState::kPending)) {
      me_->communicator().cancel(*each.operation);
    }
  }
  static void note_end(const Running& running) {
    if (running.operation->outcome.code != Code::kOk) return;
    switch (running.kind) {
      case OperationKind::kPut:
        ++g_happened[kOwnPut];
        break;
      case OperationKind::kGet:
        ++g_happened[kOwnGet];
        break;
      case OperationKind::kFetchAdd:
      case OperationKind::kCompareSwap:
        ++g_happened[kOwnAtomic];
        break;
      case OperationKind::kFlush:
        ++g_happened[kOwnFlush];
        break;
      default:
        break;
    }
  }
  void drive() {
    me_->communicator().job().engine().poke();
    std::erase_if(running_, [&](Running& each) {
      if (!each.operation->claim(each.generation)) return false;
      note_end(each);
      require(each.guards_intact(), "an operation wrote outside of its buffer");
      me_->communicator().job().engine().pool().recycle(each.operation);
      return true;
    });
    take_notifications();
  }
  void take_notifications() {
    for (size_t i = 0; i < memories_.size(); ++i) {
      if (!registration_of(memories_[i])->has_notification()) continue;
      hetcomm_notification_t notification{};
      require_ok(RegisteredMemories::wait_notification(memories_[i], me_->context().engine(),
                                                       HETCOMM_TIMEOUT_POLL, &notification),
                 "notification");
      require((Arena::kRights[i] & HETCOMM_ACCESS_PUT) != 0,
              "a notification in memory that nobody may put to");
      require(notification.source == 1, "a notification of nobody");
      require(notification.offset <= Arena::kSize &&
                  notification.length <= Arena::kSize - notification.offset,
              "a notification of a range outside of the memory");
      ++g_happened[kNotification];
    }
  }

  hetcomm_test::LocalStore store_;
  std::atomic<bool> stop_{false};
  FuzzTransport* transport_ = nullptr;
  std::thread other_;
  std::unique_ptr<CoreMember> me_;
  std::deque<Memory> memories_;
  std::unique_ptr<RemoteMemory> remote_;
  std::vector<Running> running_;
  uint64_t inputs_ = 0;
};

}  // namespace
}  // namespace hetcomm::test

// Names a property that has not occurred yet; null: all have occurred.
extern "C" const char* fuzz_incomplete() {
  using namespace hetcomm::test;
  static std::string missing;
  missing.clear();
  for (size_t i = 0; i < kEventCount; ++i) {
    if (g_happened[i] == 0) missing += std::string(missing.empty() ? "" : ", ") + kEventNames[i];
  }
  for (size_t kind = 2; kind < kKinds; ++kind) {
    if (g_taken[kind] == 0) missing += ", kind " + std::to_string(kind);
  }
  return missing.empty() ? nullptr : missing.c_str();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using hetcomm::test::Job;
  // Initializes the cryptography library before the static |job|, so that its cleanup at exit runs
  // after ~Job.
  static const hetcomm::Secret first = hetcomm::secret_from({});
  static_cast<void>(first);
  static std::unique_ptr<Job> job;
  if (job == nullptr || !job->usable()) {
    job.reset();
    job = std::make_unique<Job>();
  }
  hetcomm::test::Script script(data, size);
  job->run(script);
  return 0;
}
