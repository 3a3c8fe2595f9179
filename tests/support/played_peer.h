// Fixture with one real rank and a peer that the test simulates: the test sends the peer's messages
// one by one and inspects the rank's messages. The transport in this file has one connection, and
// has regions only with PlayedOptions::maps. A real rank 1 also runs, for the control plane only.
//
//   class Owner : public WithPlayedPeer { ... };
//   say({.kind = MessageKind::kGet, .tag = 7}, AccessBody{...});
//   drive();
//   ... peer_->taken[MessageKind::kGetData], peer_->heard ...
#pragma once

#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "src/core/job/job.h"
#include "src/core/peer/pair.h"
#include "tests/support/core_job.h"
#include "tests/support/core_window.h"

namespace hetcomm::test {

struct PlayedMessage {
  WireHeader header;
  std::vector<std::byte> payload;
};

class PlayedTransport;

// Abilities of the transport, and the rank's devices.
struct PlayedOptions {
  bool maps = false;  // supports regions in both directions, lossless
  std::vector<Device> devices{};
};

class PlayedEndpoint final : public Endpoint,
                             public PutStarter,
                             public MemoryExposer,
                             public RegionMapper {
 public:
  explicit PlayedEndpoint(PlayedTransport& transport);
  ~PlayedEndpoint() override;
  void set_handler(EndpointHandler* handler) override { handler_ = handler; }
  const Capabilities& capabilities() const override;
  EndpointAbilities abilities() override;
  Code send(const MessageHeader& header, const ExtentView& payload) override;
  Code put(Bulk& bulk) override;
  void map(const RemoteKey& key, uint64_t length) override;
  Result<RemoteKey> expose(Extents extents, Access access, uint64_t cookie) override {
    if (access == Access::kPutTarget) {
      targets_.push_back({keys_ + 1, {extents.begin(), extents.end()}, cookie});
    }
    return RemoteKey{{++keys_, 0, 0}};
  }
  void revoke(const RemoteKey& key) override {
    std::erase_if(targets_, [&](const Target& each) { return each.key == key.words[0]; });
  }
  void release(const RemoteKey& key) override { revoke(key); }
  bool cancel(Bulk&) override { return false; }
  bool flushed() const override { return true; }
  std::string describe() const override { return "played"; }
  void close() override { closed_ = true; }
  void deliver();

 private:
  PlayedTransport& transport_;
  EndpointHandler* handler_ = nullptr;
  bool opened_ = false;
  bool closed_ = false;
  uint64_t keys_ = 0;
  struct Target {
    uint64_t key;
    std::vector<iovec> extents;
    uint64_t cookie;
  };
  std::vector<Target> targets_;
};

class PlayedTransport final : public Transport, public RegionPublisher {
 public:
  PlayedTransport(TransportHandler& handler, bool maps) : handler_(handler) {
    can_.map = can_.lossless = maps;
    can_.put = can_.target_sees_put = true;
    can_.max_payload_bytes = 2048;
    can_.eager_limit_bytes = 1024;
    can_.chunk_bytes = 1 << 20;
  }
  const Capabilities& capabilities() const override { return can_; }
  TransportAbilities abilities() override { return {.regions = can_.map ? this : nullptr}; }
  Result<RemoteKey> publish(const Region& region) override {
    regions[++last_region] = region;
    return RemoteKey{{last_region, 0, 0}};
  }
  bool withdraw(const RemoteKey& key) override {
    ++withdrawals;
    if (lets_go) regions.erase(key.words[0]);
    return lets_go;
  }
  std::vector<std::byte> contact() const override { return std::vector<std::byte>(4); }
  Status start() override { return {}; }
  Status reach(ConstByteSpan) const override { return {}; }
  void connect(const Destination& destination, ConstByteSpan) override {
    if (connects++ == 0) connecting_ = destination;  // once cut, it is not connected again
  }
  void cancel_connect(const Destination&) override { connecting_.reset(); }
  int progress() override {
    if (connecting_) {
      const Destination destination = *std::exchange(connecting_, std::nullopt);
      number = destination.transport;
      handler_.on_connected(destination,
                            std::unique_ptr<Endpoint>(std::make_unique<PlayedEndpoint>(*this)));
    } else if (endpoint != nullptr) {
      endpoint->deliver();
    }
    return 0;
  }
  bool prepare_sleep(Sleep) override { return true; }
  bool may_sleep_on() const override { return true; }
  void finish_sleep() override {}
  uint64_t next_timer_ns() const override { return kForever; }

  PlayedEndpoint* endpoint = nullptr;
  std::deque<PlayedMessage> to_deliver;  // sequences and acknowledgements are filled in
  bool takes = true;                     // accepts messages from the rank
  bool acknowledges = true;              // otherwise always acknowledges 0
  bool holds_back = false;               // repeats the last acknowledgement
  uint32_t acknowledged = 0;             // last sequence acknowledged
  bool puts = false;                     // fills granted memory with 0x77 by puts
  uint64_t put_bytes = UINT64_MAX;       // limit on the bytes reported as arrived
  bool records = false;                  // records the rank's messages in |heard|
  std::vector<PlayedMessage> heard;
  uint32_t sequence = 0;  // sequence number of the peer's last message
  uint32_t credit = 0;    // credit returned by the peer
  uint32_t last_taken = 0;
  uint64_t delivered = 0;
  uint64_t connects = 0;
  size_t number = 0;  // index among the peer's transports
  std::map<MessageKind, uint64_t> taken;
  AnnounceBody last_request{};
  // For regions:
  std::map<uint64_t, Region> regions;  // published by the rank
  uint64_t last_region = 0;
  bool lets_go = true;  // releases regions that the rank withdraws
  uint64_t withdrawals = 0;
  // Keys and lengths that the rank wants to map.
  std::vector<std::pair<RemoteKey, uint64_t>> wanted;
  // Pending results of map requests.
  std::vector<std::pair<RemoteKey, Result<MappedRegion>>> mapped;
  bool is_cut = false;  // breaks the connection
  // Puts started by the rank. They transfer no data.
  uint64_t puts_begun = 0;

 private:
  TransportHandler& handler_;
  Capabilities can_;
  std::optional<Destination> connecting_;
};

inline PlayedEndpoint::PlayedEndpoint(PlayedTransport& transport) : transport_(transport) {
  transport.endpoint = this;
}
inline PlayedEndpoint::~PlayedEndpoint() {
  if (transport_.endpoint == this) transport_.endpoint = nullptr;
}
inline const Capabilities& PlayedEndpoint::capabilities() const {
  return transport_.capabilities();
}
inline EndpointAbilities PlayedEndpoint::abilities() {
  return {.puts = this, .exposer = this, .mapper = capabilities().map ? this : nullptr};
}
inline Code PlayedEndpoint::put(Bulk& /*bulk*/) {
  ++transport_.puts_begun;
  return Code::kWouldBlock;
}
inline void PlayedEndpoint::map(const RemoteKey& key, uint64_t length) {
  transport_.wanted.emplace_back(key, length);
}

inline Code PlayedEndpoint::send(const MessageHeader& bytes, const ExtentView& payload) {
  const WireHeader header = decode_header(bytes);
  if (header.kind == MessageKind::kOpen) return Code::kOk;
  if (!transport_.takes) return Code::kWouldBlock;
  ++transport_.taken[header.kind];
  if (header.kind == MessageKind::kAnnounce) {
    gather(payload.extents, payload.offset,
           std::as_writable_bytes(std::span(&transport_.last_request, 1)));
  }
  if (transport_.records) {
    PlayedMessage message{header, std::vector<std::byte>(payload.length)};
    gather(payload.extents, payload.offset, message.payload);
    transport_.heard.push_back(std::move(message));
  }
  if (header.kind != MessageKind::kUpdate) transport_.last_taken = header.sequence;
  return Code::kOk;
}

inline void PlayedEndpoint::deliver() {
  if (handler_ == nullptr) return;
  if (!std::exchange(opened_, true)) {
    handler_->on_message(encode_header({.kind = MessageKind::kOpen,
                                        .channel = static_cast<uint16_t>(transport_.number),
                                        .tag = 1,
                                        .value = transport_.last_taken}),
                         {});
  }
  if (closed_) return;
  if (transport_.is_cut) {
    closed_ = true;
    handler_->on_failed(Status(Code::kPeerLost, "cut"));
    return;
  }
  for (const auto& [key, region] : std::exchange(transport_.mapped, {})) {
    handler_->on_mapped(key, region);
  }
  while (transport_.puts && !targets_.empty()) {
    const Target target = std::move(targets_.back());
    targets_.pop_back();
    const uint64_t length = total_bytes(target.extents);
    const std::vector<std::byte> bytes(length, std::byte{0x77});
    scatter(target.extents, 0, bytes);
    handler_->on_put(target.cookie, std::min(length, transport_.put_bytes));
  }
  // Each message acknowledges the rank's earlier messages.
  while (!closed_ && !transport_.to_deliver.empty()) {
    PlayedMessage message = std::move(transport_.to_deliver.front());
    transport_.to_deliver.pop_front();
    if (message.header.kind != MessageKind::kUpdate) {
      message.header.sequence = ++transport_.sequence;
    }
    if (!transport_.holds_back) transport_.acknowledged = transport_.last_taken;
    message.header.acknowledged = transport_.acknowledges ? transport_.acknowledged : 0;
    message.header.credit = transport_.credit;
    ++transport_.delivered;
    handler_->on_message(encode_header(message.header), message.payload);
  }
}

class PlayedFactory final : public TransportFactory {
 public:
  PlayedFactory(PlayedTransport** made, bool maps) : made_(made), maps_(maps) {}
  std::string_view name() const override { return "played"; }
  Status probe(const Config&) const override { return {}; }
  Result<std::unique_ptr<Transport>> create(
      const TransportEnvironment& environment) const override {
    auto transport = std::make_unique<PlayedTransport>(environment.handler, maps_);
    *made_ = transport.get();
    return std::unique_ptr<Transport>(std::move(transport));
  }

 private:
  PlayedTransport** made_;
  const bool maps_;
};

// Runs a rank against a peer that sends the test's messages. A second real rank serves the control
// plane.
class WithPlayedPeer : public ::testing::Test {
 protected:
  explicit WithPlayedPeer(const std::string& settings = {}, uint64_t bytes = 256 << 10,
                          uint32_t first_sequence = 0, const PlayedOptions& options = {})
      : other_([this, settings, maps = options.maps] {
          PlayedTransport* unused = nullptr;
          CoreMember member(store_, 1, 2, "PROGRESS=thread;LOG=error;" + settings,
                            factories(&unused, maps));
          stop_.wait(false);
        }),
        me_(store_, 0, 2, "PROGRESS=caller;LOG=error;" + settings, factories(&peer_, options.maps),
            options.devices, first_sequence),
        bytes_(bytes),
        memory_(me_.context().devices(), 0, bytes_.data(), bytes_.size(), false) {
    expect_ok(me_.communicator().memories().register_memory(memory_, HETCOMM_ACCESS_ALL, true));
    peer_->sequence = peer_->last_taken = peer_->acknowledged = peer_->credit = first_sequence;
    const Engine::Baton baton(me_.context().engine());
    me_.communicator().job().pair(1).ensure_connected();
  }
  ~WithPlayedPeer() override {
    stop_ = true;
    stop_.notify_one();
    other_.join();
    me_.communicator().abort("the end");
    expect_ok(RegisteredMemories::unregister_memory(memory_, 20'000'000'000));
  }

  static Factories factories(PlayedTransport** made, bool maps) {
    Factories factories;
    factories.push_back(std::make_unique<PlayedFactory>(made, maps));
    return factories;
  }
  void drive(int passes = 50) {
    for (int i = 0; i < passes; ++i) me_.context().engine().poke();
  }
  uint64_t failures() {
    hetcomm_counters_t counters[2];
    const size_t count = me_.communicator().counters(1, 2, counters);
    return count > 0 ? counters[0].failures : 0;
  }
  template <typename Body>
  void say(WireHeader header, const Body& body, ConstByteSpan more = {}) {
    std::vector<std::byte> payload(sizeof(body));
    std::memcpy(payload.data(), &body, sizeof(body));
    payload.insert(payload.end(), more.begin(), more.end());
    peer_->to_deliver.push_back({header, std::move(payload)});
  }
  void say(const WireHeader& header) { peer_->to_deliver.push_back({header, {}}); }

  hetcomm_test::LocalStore store_;
  std::atomic<bool> stop_{false};
  PlayedTransport* peer_ = nullptr;
  std::thread other_;
  CoreMember me_;
  std::vector<std::byte> bytes_;
  Memory memory_;
};

}  // namespace hetcomm::test
