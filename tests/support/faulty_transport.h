// A transport that wraps another one and misbehaves in every way that transport.h allows, by a
// seeded plan:
//
//   refusals          send, put and get return kWouldBlock at random; on_writable follows from a
//                     later progress()
//   delays            upcalls wait for some calls of progress(); order stays within one endpoint's
//                     messages, and is mixed between endpoints, and between messages, puts and
//                     completions of one endpoint
//   failing rails     at a random put, send or get the connection breaks on both sides while the
//                     peer lives; a put that was reported complete just before may be lost (so such
//                     an endpoint is not |lossless|)
//   failing connects  the first connects end in an error
//   masks             no put, no get, small messages, small chunks, no protection in transit
//   regions           put and get access published memory without the target, as hardware would, by
//                     a copy during some progress() of the initiator; for ranks that are threads.
//                     When the rail breaks, half of a put may have been written; access to
//                     withdrawn memory breaks the rail
//   black holes       a message or put that is longer than the network carries is accepted and
//                     lost, and breaks its connection
//   late writes       writes into such memory that were in flight on a broken rail land some calls
//                     of the owner's progress() later, unless the owner has closed that
//                     connection; and the owner learns late that the connection ended
//
// It respects the contract: everything it reports, and when, could come from some real transport.
// Each transport has its own state and, like every transport, runs under the progress baton.
// Threads may share a factory.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tests/support/pattern.h"
#include "transports/transport.h"

namespace hetcomm::test {

struct FaultPlan {
  uint64_t seed = 1;
  double refuse = 0;         // probability per send, put or get
  uint32_t max_delay = 0;    // upcalls wait for up to this many progress() calls
  size_t first_delayed = 0;  // earlier instances do not delay upcalls
  double fail_rail = 0;      // probability of a break per put, get or send
  double fail_empty = 0;     // probability of a break per message without bytes
  double fail_direct = 0;    // probability of a break per put or get to published memory
  bool late_writes = false;
  bool lose_reported_put =
      false;  // reports the put complete at which the rail breaks, and loses it
  uint32_t max_rail_failures = UINT32_MAX;  // per transport
  uint32_t connect_failures = 0;            // number of first connects that fail, per transport
  std::optional<size_t> failing_instance;   // only connects of this instance fail
  std::optional<size_t> hanging_instance;   // connects of this instance never end
  bool hangs = false;                       // connects never end; the factory sets it
  std::optional<uint64_t> carried_bytes;    // longer transfers are lost and break the connection
  const std::atomic<bool>* hole = nullptr;  // while false, everything is carried; null: like true
  uint32_t carried_after = UINT32_MAX;      // losses in a row before one transfer succeeds
  std::optional<size_t> carrying_instance;  // this instance carries everything
  bool no_put = false;
  bool no_get = false;
  double fail_get_now = 0;  // probability that get_now() fails
  bool regions = false;
  size_t instances = 1;                 // number of transports that share the load
  bool bound = false;                   // instead: one per network interface of the rank
  std::optional<uint64_t> bytes_per_s;  // rate that each transport claims
  bool unprotected = false;
  std::optional<uint32_t> max_payload_bytes;
  std::optional<uint64_t> eager_limit_bytes;
  std::optional<uint64_t> chunk_bytes;
};

namespace internal {

inline Capabilities masked(Capabilities capabilities, const FaultPlan& plan) {
  if (plan.no_put) capabilities.put = capabilities.target_sees_put = false;
  if (plan.no_get) capabilities.get = capabilities.gets_now = false;
  if (plan.bytes_per_s) capabilities.bandwidth_bytes_per_s = *plan.bytes_per_s;
  if (plan.unprotected) capabilities.protected_in_transit = false;
  if (plan.fail_rail > 0 || plan.fail_direct > 0 || plan.fail_empty > 0 || plan.carried_bytes) {
    capabilities.lossless = false;
  }
  capabilities.regions = capabilities.regions || plan.regions;
  capabilities.map = false;  // the injector maps nothing
  const auto shrink = [](auto& value, const auto& limit) {
    if (limit) value = std::min(value, *limit);
  };
  shrink(capabilities.max_payload_bytes, plan.max_payload_bytes);
  shrink(capabilities.eager_limit_bytes, plan.eager_limit_bytes);
  shrink(capabilities.chunk_bytes, plan.chunk_bytes);
  return capabilities;
}

struct KeyHash {
  size_t operator()(const RemoteKey& key) const {
    return static_cast<size_t>(mix(key.words[0] ^ mix(key.words[1] ^ mix(key.words[2]))));
  }
};

// The memory published by all ranks in this process.
class FaultyRegions {
 public:
  static FaultyRegions& all() {
    static FaultyRegions regions;
    return regions;
  }
  RemoteKey publish(const Region& region) {
    const std::lock_guard lock(mutex_);
    regions_[++last_] = region;
    return RemoteKey{{last_, 0, kMark}};
  }
  void withdraw(const RemoteKey& key) {
    const std::lock_guard lock(mutex_);
    regions_.erase(key.words[0]);
  }
  static bool names(const RemoteKey& key) { return key.words[2] == kMark; }

  uint64_t add_connection() {
    const std::lock_guard lock(mutex_);
    return ++connections_;
  }
  // Records that |bulk|, sent by that end, is in flight over |connection|.
  void write_late(uint64_t connection, bool from_connector, const Bulk& bulk) {
    LateWrite write{connection, from_connector, bulk.key, bulk.remote_offset, {}};
    for_each_piece(bulk.local.extents, bulk.local.offset, bulk.local.length,
                   [&](const std::byte* piece, size_t size) {
                     write.bytes.insert(write.bytes.end(), piece, piece + size);
                   });
    const std::lock_guard lock(mutex_);
    late_.push_back(std::move(write));
  }
  // Ends the late writes from that end of the connection: they land at the other end, or are lost.
  void end_late(uint64_t connection, bool from_connector, bool lands) {
    std::vector<LateWrite> now;
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(late_, [&](LateWrite& write) {
        if (write.connection != connection || write.from_connector != from_connector) return false;
        now.push_back(std::move(write));
        return true;
      });
    }
    for (LateWrite& write : now) {
      if (!lands) continue;
      const iovec piece{write.bytes.data(), write.bytes.size()};
      const Bulk bulk{.local = {{&piece, 1}, 0, piece.iov_len},
                      .key = write.key,
                      .remote_offset = write.offset};
      if (move(bulk, false, bulk.local.length)) ++landed_late_;
    }
  }
  uint64_t landed_late() const { return landed_late_; }
  // Makes bytes moved before this call visible after it. ThreadSanitizer does not track
  // synchronization through memory that one process maps twice.
  void settle() { const std::lock_guard lock(mutex_); }

  // Moves the first |length| bytes of |bulk|. Returns false if that is not permitted.
  bool move(const Bulk& bulk, bool is_get, uint64_t length) {
    const std::lock_guard lock(mutex_);
    const auto found = regions_.find(bulk.key.words[0]);
    if (found == regions_.end()) return false;
    const Region& region = found->second;
    if (!(is_get ? region.readable : region.writable) || bulk.remote_offset > region.length ||
        bulk.local.length > region.length - bulk.remote_offset) {
      return false;
    }
    std::byte* at = region.address + bulk.remote_offset;
    for_each_piece(bulk.local.extents, bulk.local.offset, length,
                   [&](std::byte* piece, size_t size) {
                     is_get ? std::memcpy(piece, at, size) : std::memcpy(at, piece, size);
                     at += size;
                   });
    return true;
  }

 private:
  struct LateWrite {
    uint64_t connection;
    bool from_connector;
    RemoteKey key;
    uint64_t offset;
    std::vector<std::byte> bytes;
  };
  static constexpr uint64_t kMark = 0x726567696f6e;
  std::mutex mutex_;
  uint64_t connections_ = 0;
  std::vector<LateWrite> late_;
  std::atomic<uint64_t> landed_late_{0};
  uint64_t last_ = 0;
  std::unordered_map<uint64_t, Region> regions_;
};

// The state shared by the endpoints of one faulty transport.
struct FaultState {
  FaultPlan plan;
  Random random{1};
  uint64_t tick = 0;  // counts progress() calls
  uint32_t rail_failures = 0;
  uint32_t connects = 0;
  uint32_t lost_in_row = 0;

  // Returns whether the network drops a message or put of |bytes|.
  bool loses(uint64_t bytes) {
    if (!plan.carried_bytes || bytes <= *plan.carried_bytes) return false;
    if (plan.hole != nullptr && !*plan.hole) return false;
    if (++lost_in_row <= plan.carried_after) return true;
    lost_in_row = 0;
    return false;
  }
  bool refuses() { return random.chance(plan.refuse); }
  uint64_t due() { return tick + random.between(0, plan.max_delay); }
  bool breaks_now() { return breaks_now(plan.fail_rail); }
  bool breaks_now(double probability) {
    if (probability <= 0 || rail_failures >= plan.max_rail_failures) return false;
    if (!random.chance(probability)) return false;
    ++rail_failures;
    return true;
  }
};

class FaultyEndpoint final : public Endpoint,
                             public PutStarter,
                             public GetStarter,
                             public ImmediateReader,
                             public MemoryExposer,
                             public DoubtResolver,
                             private EndpointHandler {
 public:
  FaultyEndpoint(FaultState& state, std::unordered_set<FaultyEndpoint*>& all,
                 std::unique_ptr<Endpoint> inner, bool connector)
      : state_(state),
        all_(all),
        inner_(std::move(inner)),
        inner_abilities_(inner_->abilities()),
        connector_(connector),
        capabilities_(masked(inner_->capabilities(), state.plan)) {
    all_.insert(this);
    inner_->set_handler(this);
    if (state.plan.late_writes && connector) name_connection();
  }
  ~FaultyEndpoint() override {
    drop_late();
    all_.erase(this);
  }
  void close() override {
    drop_late();
    if (inner_ != nullptr) inner_->close();
  }
  // Lets the writes land that were in flight from the peer's end when the connection broke.
  void land_late() {
    if (connection_ == 0 || !state_.random.chance(0.5)) return;
    FaultyRegions::all().end_late(connection_, !connector_, true);
  }

  // Closes the connection of a broken rail if break_rail() could not. It is never called inside an
  // upcall.
  void bury() {
    if (doomed_) inner_.reset();
  }

  void set_handler(EndpointHandler* handler) override { handler_ = handler; }
  const Capabilities& capabilities() const override { return capabilities_; }
  EndpointAbilities abilities() override {
    const bool regions = capabilities_.regions;
    return {.puts = capabilities_.put || regions ? this : nullptr,
            .gets = capabilities_.get || regions ? this : nullptr,
            .immediate_gets = capabilities_.gets_now ? this : nullptr,
            .exposer = capabilities_.put || capabilities_.get ? this : nullptr,
            .doubts = inner_abilities_.doubts != nullptr ? this : nullptr};
  }
  Code send(const MessageHeader& header, const ExtentView& payload) override {
    if (broken()) return Code::kPeerLost;
    if (state_.refuses()) return refuse();
    if (state_.loses(payload.length)) {
      blocks(messages_passage_);
      return Code::kOk;
    }
    // The first message opens the connection.
    if (std::exchange(opened_, true)) messages_passage_ = Passage::kPassed;
    const bool breaks = payload.length == 0 && state_.breaks_now(state_.plan.fail_empty);
    if (breaks || state_.breaks_now()) {
      // The message is accepted but lost with the connection.
      break_rail();
      return Code::kOk;
    }
    return inner_->send(header, payload);
  }
  Code put(Bulk& bulk) override {
    if (FaultyRegions::names(bulk.key)) return start_direct(bulk, false);
    if (!capabilities_.put) return Code::kUnsupported;
    gets_.erase(&bulk);
    if (!broken() && state_.loses(bulk.local.length)) {
      blocks(bulk_passage_);
      lost_ = &bulk;
      return Code::kOk;
    }
    bulk_passage_ = Passage::kPassed;
    return start(
        bulk, [&] { return inner_abilities_.puts->put(bulk); }, state_.plan.lose_reported_put);
  }
  Code get(Bulk& bulk) override {
    if (FaultyRegions::names(bulk.key)) return start_direct(bulk, true);
    if (!capabilities_.get) return Code::kUnsupported;
    gets_.insert(&bulk);
    return start(
        bulk, [&] { return inner_abilities_.gets->get(bulk); }, false);
  }
  // A failure may occur after some of the bytes were written.
  Code get_now(Bulk& bulk) override {
    if (broken()) return Code::kPeerLost;
    const Code code = inner_abilities_.immediate_gets->get_now(bulk);
    if (state_.breaks_now()) {
      break_rail();
      return Code::kPeerLost;
    }
    if (state_.refuses()) return Code::kCancelled;
    if (state_.random.chance(state_.plan.fail_get_now)) return Code::kPermissionDenied;
    return code;
  }
  Result<RemoteKey> expose(Extents extents, Access access, uint64_t cookie) override {
    if (broken()) return Status(Code::kPeerLost, "faulty: injected failure");
    auto key = inner_abilities_.exposer->expose(extents, access, cookie);
    // Cookies of sources are numbered separately.
    if (key.ok() && access == Access::kPutTarget) cookies_[key.value()] = cookie;
    return key;
  }
  void revoke(const RemoteKey& key) override {
    if (inner_ != nullptr) inner_abilities_.exposer->revoke(key);
    forget(key);
  }
  void release(const RemoteKey& key) override {
    if (inner_ != nullptr) inner_abilities_.exposer->release(key);
    forget(key);
  }
  void forget(const RemoteKey& key) {
    const auto found = cookies_.find(key);
    if (found == cookies_.end()) return;
    const uint64_t cookie = found->second;
    cookies_.erase(found);
    std::erase_if(puts_, [&](const HeldPut& held) { return held.cookie == cookie; });
  }
  bool cancel(Bulk& bulk) override {
    if (FaultyRegions::names(bulk.key)) {
      std::erase_if(direct_, [&](const HeldDirect& held) { return held.bulk == &bulk; });
      return false;
    }
    const size_t held =
        std::erase_if(completions_, [&](const HeldCompletion& done) { return done.bulk == &bulk; });
    if (held > 0 || &bulk == lost_ || inner_ == nullptr || inner_failed_) return false;
    return gets_.contains(&bulk) ? inner_abilities_.gets->cancel(bulk)
                                 : inner_abilities_.puts->cancel(bulk);
  }
  void resolve(const StreamId& stream, const PathReceipt& receipt) override {
    if (!broken()) inner_abilities_.doubts->resolve(stream, receipt);
  }
  bool flushed() const override { return broken() || inner_->flushed(); }
  // The path counts as blocked only if the network loses long messages.
  Passage passage() const override {
    if (!state_.plan.carried_bytes) return Passage::kNothing;
    return bulk_passage_ != Passage::kNothing ? bulk_passage_ : messages_passage_;
  }
  std::string describe() const override {
    return inner_ == nullptr ? "faulty, broken" : "faulty " + inner_->describe();
  }

  // Delivers the due upcalls and returns their number. The endpoint still exists afterwards, unless
  // core broke its rule not to destroy it inside its upcalls.
  int deliver() {
    int done = 0;
    FaultyRegions::all().settle();
    if (writable_due_ && *writable_due_ <= state_.tick && !broken()) {
      writable_due_.reset();
      handler_->on_writable();
      ++done;
    }
    done +=
        deliver_from(puts_, [&](const HeldPut& put) { handler_->on_put(put.cookie, put.length); });
    done += deliver_from(messages_, [&](const HeldMessage& message) {
      handler_->on_message(message.header, message.payload);
    });
    done += deliver_from(completions_, [&](const HeldCompletion& completion) {
      handler_->on_bulk_complete(*completion.bulk, completion.code);
    });
    done += deliver_direct();
    if (failure_due_ && *failure_due_ <= state_.tick && nothing_held()) {
      failure_due_.reset();
      drop_late();
      reported_ = true;
      handler_->on_failed(failure_);
      ++done;
    }
    return done;
  }
  bool holds_something() const {
    return !nothing_held() || !direct_.empty() || failure_due_ || (writable_due_ && !broken());
  }

 private:
  struct HeldMessage {
    uint64_t due;
    MessageHeader header;
    std::vector<std::byte> payload;
  };
  struct HeldPut {
    uint64_t due;
    uint64_t cookie;
    uint64_t length;
  };
  struct HeldCompletion {
    uint64_t due;
    Bulk* bulk;
    Code code;
  };

  struct HeldDirect {
    uint64_t due;
    Bulk* bulk;
    bool is_get;
  };

  Code start_direct(Bulk& bulk, bool is_get) {
    if (broken()) return Code::kPeerLost;
    if (state_.refuses()) return refuse();
    if (state_.breaks_now() || state_.breaks_now(state_.plan.fail_direct)) {
      FaultyRegions::all().move(bulk, is_get, bulk.local.length / 2);
      if (connection_ != 0 && !is_get) {
        FaultyRegions::all().write_late(connection_, connector_, bulk);
      }
      break_rail();
      direct_.clear();
      return Code::kOk;
    }
    direct_.push_back({state_.due() + 1, &bulk, is_get});
    return Code::kOk;
  }
  int deliver_direct() {
    int done = 0;
    while (!direct_.empty() && direct_.front().due <= state_.tick) {
      if (broken()) {
        direct_.clear();
        break;
      }
      const HeldDirect next = direct_.front();
      direct_.pop_front();
      ++done;
      if (FaultyRegions::all().move(*next.bulk, next.is_get, next.bulk->local.length)) {
        handler_->on_bulk_complete(*next.bulk, Code::kOk);
      } else {
        direct_.clear();
        break_rail();
      }
    }
    return done;
  }

  // Returns whether the rail has broken. Calls fail from that moment on, although core is notified
  // later.
  bool broken() const { return inner_ == nullptr || doomed_ || inner_failed_ || reported_; }
  bool nothing_held() const { return puts_.empty() && messages_.empty() && completions_.empty(); }
  Code refuse() {
    if (!writable_due_) writable_due_ = state_.due() + 1;
    return Code::kWouldBlock;
  }

  template <typename Call>
  Code start(Bulk& bulk, Call&& call, bool lose) {
    if (broken()) return Code::kPeerLost;
    if (state_.refuses()) return refuse();
    if (state_.breaks_now()) {
      break_rail();
      lost_ = &bulk;
      if (lose) completions_.push_back({state_.due() + 1, &bulk, Code::kOk});
      return Code::kOk;
    }
    return call();
  }

  // Blocks the path: records in |passage| that data was lost, and breaks the rail.
  void blocks(Passage& passage) {
    if (passage == Passage::kNothing) passage = Passage::kBlocked;
    break_rail();
    failure_ = Status(Code::kPeerLost, "faulty: the path is gone");
  }

  // Sends the connection's number in the first message, so that both ends use the same one.
  void name_connection() {
    const uint64_t number = FaultyRegions::all().add_connection();
    MessageHeader header{};
    std::memcpy(header.data(), &kNaming, sizeof(kNaming));
    std::memcpy(header.data() + sizeof(kNaming), &number, sizeof(number));
    if (inner_->send(header, ExtentView{}) == Code::kOk) connection_ = number;
  }
  bool names_connection(const MessageHeader& header) {
    if (!state_.plan.late_writes || connector_ || connection_ != 0) return false;
    if (std::memcmp(header.data(), &kNaming, sizeof(kNaming)) != 0) return false;
    std::memcpy(&connection_, header.data() + sizeof(kNaming), sizeof(connection_));
    return true;
  }
  // Discards the peer's late writes.
  void drop_late() {
    if (connection_ != 0) FaultyRegions::all().end_late(connection_, !connector_, false);
    connection_ = 0;
  }

  // Breaks the rail silently first. on_failed follows once the connection is closed. The peer sees
  // the connection close.
  void break_rail() {
    doomed_ = true;
    drop_late();
    if (upcalls_ == 0) inner_.reset();
    failure_ = Status(Code::kPeerLost, "faulty: injected failure");
    failure_due_ = state_.due() + 1;
  }

  template <typename Held, typename Report>
  int deliver_from(std::deque<Held>& held, Report&& report) {
    int done = 0;
    while (!held.empty() && held.front().due <= state_.tick) {
      const Held next = std::move(held.front());
      held.pop_front();
      report(next);
      ++done;
    }
    return done;
  }

  // Marks an upcall from the inner endpoint, which must not be destroyed during the upcall.
  class Upcall {
   public:
    explicit Upcall(int& count) : count_(count) { ++count_; }
    ~Upcall() { --count_; }

   private:
    int& count_;
  };
  bool delays() const { return state_.plan.max_delay > 0; }
  void on_message(const MessageHeader& header, ConstByteSpan payload) override {
    if (doomed_ || names_connection(header)) return;
    const Upcall upcall(upcalls_);
    if (!delays()) return handler_->on_message(header, payload);
    messages_.push_back({state_.due(), header, {payload.begin(), payload.end()}});
  }
  void on_put(uint64_t cookie, uint64_t length) override {
    if (doomed_) return;
    const Upcall upcall(upcalls_);
    if (!delays()) return handler_->on_put(cookie, length);
    puts_.push_back({state_.due(), cookie, length});
  }
  void on_bulk_complete(Bulk& bulk, Code code) override {
    if (doomed_) return;
    const Upcall upcall(upcalls_);
    if (!delays()) return handler_->on_bulk_complete(bulk, code);
    completions_.push_back({state_.due(), &bulk, code});
  }
  void on_mapped(const RemoteKey& /*key*/, const Result<MappedRegion>& /*mapped*/) override {}
  void on_unmap(const RemoteKey& /*key*/) override {}
  void on_writable() override {
    if (doomed_) return;
    const Upcall upcall(upcalls_);
    handler_->on_writable();
  }
  void on_doubt(const StreamId& stream) override {
    if (doomed_) return;
    const Upcall upcall(upcalls_);
    handler_->on_doubt(stream);
  }
  void on_failed(const Status& why) override {
    if (doomed_) return;
    inner_failed_ = true;
    failure_ = why;
    failure_due_ = state_.due() + (connection_ != 0 ? kToldLate : 0);
  }

  static constexpr uint64_t kNaming = 0xf1f2f3f4f5f6f7f8;
  static constexpr uint64_t kToldLate = 20;

  FaultState& state_;
  std::unordered_set<FaultyEndpoint*>& all_;
  std::unique_ptr<Endpoint> inner_;
  const EndpointAbilities inner_abilities_;  // valid while |inner_| exists
  const bool connector_;
  uint64_t connection_ = 0;  // identifies late writes until it is closed
  Capabilities capabilities_;
  EndpointHandler* handler_ = nullptr;
  Bulk* lost_ = nullptr;  // operation that broke the rail; the inner endpoint never saw it
  int upcalls_ = 0;
  bool doomed_ = false;
  bool opened_ = false;
  Passage messages_passage_ = Passage::kNothing;
  Passage bulk_passage_ = Passage::kNothing;
  bool inner_failed_ = false;
  bool reported_ = false;
  Status failure_;
  std::optional<uint64_t> failure_due_;
  std::optional<uint64_t> writable_due_;
  std::deque<HeldMessage> messages_;
  std::deque<HeldPut> puts_;
  std::deque<HeldCompletion> completions_;
  std::deque<HeldDirect> direct_;
  std::unordered_set<const Bulk*> gets_;  // bulks of gets passed to the inner endpoint
  std::unordered_map<RemoteKey, uint64_t, KeyHash> cookies_;
};

class FaultyTransport final : public Transport, public RegionPublisher, private TransportHandler {
 public:
  FaultyTransport(const FaultPlan& plan, int rank, TransportHandler& handler) : handler_(handler) {
    state_.plan = plan;
    state_.random = Random(mix(plan.seed) + static_cast<uint64_t>(rank));
  }
  // Adopts |inner|, which was created with inner_handler().
  void adopt(std::unique_ptr<Transport> inner) {
    inner_ = std::move(inner);
    capabilities_ = masked(inner_->capabilities(), state_.plan);
  }
  TransportHandler& inner_handler() { return *this; }

  const Capabilities& capabilities() const override { return capabilities_; }
  TransportAbilities abilities() override {
    TransportAbilities inner = inner_->abilities();
    inner.regions = capabilities_.regions ? this : nullptr;
    return inner;
  }
  std::vector<std::byte> contact() const override { return inner_->contact(); }
  Status start() override { return inner_->start(); }
  Status reach(ConstByteSpan contact) const override { return inner_->reach(contact); }
  void connect(const Destination& destination, ConstByteSpan contact) override {
    if (state_.plan.hangs) {
      hanging_connects_.push_back(destination);
    } else if (state_.connects++ < state_.plan.connect_failures) {
      failing_connects_.push_back(destination);
    } else {
      inner_->connect(destination, contact);
    }
  }
  void cancel_connect(const Destination& destination) override {
    if (std::erase(hanging_connects_, destination) != 0) return;
    if (std::erase(failing_connects_, destination) == 0) inner_->cancel_connect(destination);
  }
  Result<RemoteKey> publish(const Region& region) override {
    if (!state_.plan.regions) return inner_->abilities().regions->publish(region);
    return FaultyRegions::all().publish(region);
  }
  bool withdraw(const RemoteKey& key) override {
    if (!state_.plan.regions) return inner_->abilities().regions->withdraw(key);
    FaultyRegions::all().withdraw(key);
    return true;
  }
  int progress() override {
    ++state_.tick;
    for (FaultyEndpoint* endpoint : endpoints_) {
      endpoint->bury();
      endpoint->land_late();
    }
    int done = inner_->progress();
    while (!failing_connects_.empty()) {
      const Destination destination = failing_connects_.front();
      failing_connects_.erase(failing_connects_.begin());
      handler_.on_connected(destination,
                            Status(Code::kPeerLost, "faulty: injected connect failure"));
      ++done;
    }
    // Upcalls may destroy endpoints and create new ones.
    const std::vector<FaultyEndpoint*> now(endpoints_.begin(), endpoints_.end());
    for (FaultyEndpoint* endpoint : now) {
      if (endpoints_.contains(endpoint)) done += endpoint->deliver();
    }
    return done;
  }
  bool prepare_sleep(Sleep sleep) override {
    return inner_->prepare_sleep(sleep) && !holds_something();
  }
  bool may_sleep_on() const override { return inner_->may_sleep_on() && !holds_something(); }
  void finish_sleep() override { inner_->finish_sleep(); }
  uint64_t next_timer_ns() const override { return inner_->next_timer_ns(); }

 private:
  bool holds_something() const {
    return !failing_connects_.empty() ||
           std::any_of(endpoints_.begin(), endpoints_.end(),
                       [](const FaultyEndpoint* each) { return each->holds_something(); });
  }
  void on_connected(const Destination& destination,
                    Result<std::unique_ptr<Endpoint>> endpoint) override {
    if (!endpoint.ok()) return handler_.on_connected(destination, std::move(endpoint));
    handler_.on_connected(destination, wrap(std::move(endpoint).value(), true));
  }
  void on_accepted(int peer, std::unique_ptr<Endpoint> endpoint) override {
    handler_.on_accepted(peer, wrap(std::move(endpoint), false));
  }
  std::unique_ptr<Endpoint> wrap(std::unique_ptr<Endpoint> inner, bool connector) {
    return std::make_unique<FaultyEndpoint>(state_, endpoints_, std::move(inner), connector);
  }

  FaultState state_;
  TransportHandler& handler_;
  std::unordered_set<FaultyEndpoint*> endpoints_;
  std::vector<Destination> failing_connects_;
  std::vector<Destination> hanging_connects_;
  Capabilities capabilities_;
  std::unique_ptr<Transport> inner_;
};

}  // namespace internal

class FaultyFactory final : public TransportFactory {
 public:
  FaultyFactory(std::unique_ptr<TransportFactory> inner, FaultPlan plan)
      : inner_(std::move(inner)), plan_(plan) {}

  std::string_view name() const override { return inner_->name(); }
  Status probe(const Config& config) const override { return inner_->probe(config); }
  size_t instances(const Config&) const override { return plan_.instances; }
  Status check_nic(const Config&, const BoundNic&) const override {
    return plan_.bound ? Status() : Status(Code::kUnsupported, "");
  }
  Result<std::unique_ptr<Transport>> create(
      const TransportEnvironment& environment) const override {
    FaultPlan plan = plan_;
    if (environment.instance < plan.first_delayed) plan.max_delay = 0;
    if (plan.failing_instance && *plan.failing_instance != environment.instance) {
      plan.connect_failures = 0;
    }
    plan.hangs = plan.hanging_instance == environment.instance;
    if (plan.carrying_instance == environment.instance) plan.carried_bytes.reset();
    auto faulty =
        std::make_unique<internal::FaultyTransport>(plan, environment.rank, environment.handler);
    TransportEnvironment inner_environment{environment.rank,
                                           environment.size,
                                           environment.credentials,
                                           environment.config,
                                           environment.interfaces,
                                           environment.log,
                                           environment.poller,
                                           environment.now_ns,
                                           faulty->inner_handler(),
                                           environment.instance,
                                           plan.bound ? nullptr : environment.nic};
    auto inner = inner_->create(inner_environment);
    if (!inner.ok()) return inner.status();
    faulty->adopt(std::move(inner).value());
    return std::unique_ptr<Transport>(std::move(faulty));
  }

 private:
  std::unique_ptr<TransportFactory> inner_;
  FaultPlan plan_;
};

}  // namespace hetcomm::test
