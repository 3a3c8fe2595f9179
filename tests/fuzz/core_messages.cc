// Fuzz target: what core makes of the messages of a proved but hostile peer.
//
// One rank of core runs over a transport of this file, whose connections say what the input tells
// them to: messages of every kind with sequence numbers, ids, keys and lengths that are sometimes
// right, puts into whatever is exposed, completions, breaks. Beside that the input posts and
// cancels sends and receives. Checked: no access outside of the buffers, no exposure or transfer
// that outlives its operation (the buffers are freed then, and the sanitizers look), and that every
// operation that is cancelled ends.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "src/core/job/mesh.h"
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

class FuzzTransport;

class FuzzEndpoint final : public Endpoint,
                           public PutStarter,
                           public GetStarter,
                           public ImmediateReader,
                           public MemoryExposer {
 public:
  explicit FuzzEndpoint(FuzzTransport& transport);
  ~FuzzEndpoint() override;

  void set_handler(EndpointHandler* handler) override { handler_ = handler; }
  const Capabilities& capabilities() const override { return capabilities_; }
  EndpointAbilities abilities() override {
    return {.puts = this, .gets = this, .immediate_gets = this, .exposer = this};
  }
  Code send(const MessageHeader& header, const SegmentView& payload) override;
  Code put(Bulk& bulk) override { return accept(bulk); }
  Code get(Bulk& bulk) override { return accept(bulk); }
  Code get_now(Bulk& bulk) override {
    if (broken_) return Code::kPeerLost;
    // Writes all of it, as a transport would.
    for_each_piece(bulk.local.segments, bulk.local.offset, bulk.local.length,
                   [](std::byte* piece, size_t length) { std::memset(piece, 0x5a, length); });
    constexpr Code kOutcomes[] = {Code::kOk, Code::kOk, Code::kOk, Code::kCancelled,
                                  Code::kPermissionDenied};
    return kOutcomes[bulk.key.words[1] % std::size(kOutcomes)];
  }
  Result<RemoteKey> expose(Segments segments, Access access, uint64_t cookie) override {
    require(!broken_, "exposed on a broken connection");
    exposed_.push_back({++keys_, {segments.begin(), segments.end()}, access, cookie});
    return RemoteKey{{keys_, 0, 0}};
  }
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
  void close() override {}

  // From progress(), as the input says.
  void open();
  void deliver(Script& script);
  void land(Script& script);
  void complete(Script& script);
  void break_down();
  bool broken() const { return broken_; }

 private:
  struct Exposed {
    uint64_t id;
    std::vector<iovec> segments;
    Access access;
    uint64_t cookie;
  };
  Code accept(Bulk& bulk) {
    if (broken_) return Code::kPeerLost;
    // Reads all of it, as a transport would.
    uint64_t sum = 0;
    for_each_piece(bulk.local.segments, bulk.local.offset, bulk.local.length,
                   [&](const std::byte* piece, size_t length) {
                     sum +=
                         static_cast<uint64_t>(piece[0]) + static_cast<uint64_t>(piece[length - 1]);
                   });
    sum_ = sum;
    bulks_.push_back(&bulk);
    return Code::kOk;
  }

  FuzzTransport& transport_;
  EndpointHandler* handler_ = nullptr;
  Capabilities capabilities_;
  bool broken_ = false;
  bool opened_ = false;
  uint32_t next_sequence_ = 1;
  uint64_t rail_ = 0;
  volatile uint64_t sum_ = 0;
  uint64_t keys_ = 0;
  std::vector<Exposed> exposed_;
  std::vector<Bulk*> bulks_;
};

class FuzzTransport final : public Transport {
 public:
  explicit FuzzTransport(TransportHandler& handler) : handler_(handler) {
    can_.put = can_.get = can_.gets_now = can_.target_sees_put = true;
    can_.max_payload_bytes = 2048;
    can_.eager_limit_bytes = 70'000;
    can_.chunk_bytes = 1 << 20;
  }
  const Capabilities& capabilities() const override { return can_; }
  TransportAbilities abilities() override { return {}; }
  std::vector<std::byte> descriptor() const override { return std::vector<std::byte>(4); }
  Status start() override { return {}; }
  Status reach(ConstByteSpan) const override { return {}; }
  void connect(int peer, ConstByteSpan) override { connecting_ = peer; }
  void cancel_connect(int) override { connecting_ = -1; }
  int progress() override {
    if (connecting_ >= 0) {
      const int peer = std::exchange(connecting_, -1);
      handler_.on_connected(peer, std::unique_ptr<Endpoint>(std::make_unique<FuzzEndpoint>(*this)));
      return 1;
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
        if (now.byte() < 20) endpoint->break_down();
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
  Script* script = nullptr;   // one action of it at the next progress()
  uint32_t last_sent = 0;     // sequence of core's last message
  std::deque<uint64_t> seen;  // ids that core has named

 private:
  TransportHandler& handler_;
  Capabilities can_;
  int connecting_ = -1;
};

FuzzEndpoint::FuzzEndpoint(FuzzTransport& transport)
    : transport_(transport), capabilities_(transport.capabilities()) {
  transport.endpoint = this;
}
FuzzEndpoint::~FuzzEndpoint() {
  if (transport_.endpoint == this) transport_.endpoint = nullptr;
}

Code FuzzEndpoint::send(const MessageHeader& bytes, const SegmentView& payload) {
  if (broken_) return Code::kPeerLost;
  const WireHeader header = decode_header(bytes);
  std::vector<std::byte> body(payload.length);
  gather(payload.segments, payload.offset, body);
  if (header.kind == MessageKind::kOpen) {
    next_sequence_ = static_cast<uint32_t>(header.value) + 1;
    rail_ = header.tag;
  } else if (header.kind != MessageKind::kUpdate) {
    transport_.last_sent = header.sequence;
  }
  if (body.size() >= 8) {
    uint64_t id = 0;
    std::memcpy(&id, body.data(), 8);
    transport_.seen.push_back(id);
    if (transport_.seen.size() > 32) transport_.seen.pop_front();
  }
  return Code::kOk;
}

void FuzzEndpoint::open() {
  if (opened_ || broken_ || handler_ == nullptr) return;
  opened_ = true;
  handler_->on_message(
      encode_header({.kind = MessageKind::kOpen, .tag = rail_, .value = transport_.last_sent}), {});
}

void FuzzEndpoint::deliver(Script& script) {
  const auto some_id = [&]() -> uint64_t {
    const uint8_t chosen = script.byte();
    if (transport_.seen.empty() || chosen < 64) return script.number();
    return transport_.seen[chosen % transport_.seen.size()];
  };
  WireHeader header{.kind = static_cast<MessageKind>(script.byte() % 15)};
  header.flags = static_cast<uint8_t>(script.byte() % 4);
  header.channel = script.byte() < 200 ? 0 : static_cast<uint16_t>(script.number());
  header.sequence = script.byte() < 240 ? next_sequence_ : script.byte();
  header.acknowledged =
      script.byte() < 250 ? transport_.last_sent : static_cast<uint32_t>(script.number());
  header.credit = static_cast<uint32_t>(script.number());
  header.tag = script.byte() < 128 ? script.byte() % 4 : some_id();
  std::vector<std::byte> payload;
  const uint8_t shape = script.byte();
  if (header.kind == MessageKind::kGrant && shape < 240) {
    GrantBody grant{some_id(),       script.byte() < 240 ? rail_ : script.number(),
                    script.number(), script.number(),
                    script.number(), {{script.number(), 0, 0}}};
    if (shape < 120) {
      grant.offset = 0;
      grant.accepted = grant.length;
    }
    payload.resize(sizeof(grant));
    std::memcpy(payload.data(), &grant, sizeof(grant));
  } else if (header.kind == MessageKind::kRequest && shape < 240) {
    const RequestBody request{script.number(), rail_, {{uint64_t{shape} % 2, 1, 1}}};
    payload.resize(sizeof(request));
    std::memcpy(payload.data(), &request, sizeof(request));
  } else if (header.kind == MessageKind::kPull && shape < 240) {
    const PullBody pull{
        script.number(), shape < 220 ? rail_ : script.number(), {{1, shape, 1}}, script.number()};
    payload.resize(sizeof(pull));
    std::memcpy(payload.data(), &pull, sizeof(pull));
  } else {
    payload.resize(std::min<uint64_t>(script.number(), capabilities_.max_payload_bytes));
  }
  header.value = shape % 2 == 0 ? payload.size() : script.number();
  if (header.sequence == next_sequence_ && header.kind != MessageKind::kOpen &&
      header.kind != MessageKind::kUpdate) {
    ++next_sequence_;
  }
  handler_->on_message(encode_header(header), payload);
}

// A put of the peer into something exposed.
void FuzzEndpoint::land(Script& script) {
  if (exposed_.empty()) return;
  const Exposed& target = exposed_[script.byte() % exposed_.size()];
  const uint64_t total = total_bytes(target.segments);
  const uint64_t length = std::min(script.number(), total);
  if (target.access == Access::kGetSource || length == 0) return;
  const std::vector<std::byte> data(length, std::byte{0x5a});
  scatter(target.segments, total - length, data);
  const uint64_t cookie = target.cookie;
  handler_->on_put(cookie, length);
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

// The rank that is fuzzed, and another that only lives, for the control plane.
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
                                         fuzz_factories(&transport_))) {}
  ~Job() {
    me_->communicator().abort("the end");
    me_.reset();
    stop_ = true;
    stop_.notify_one();
    other_.join();
  }

  bool usable() {
    const Pair* pair = me_->communicator().mesh().find_pair(1);
    return pair == nullptr || pair->state() != Pair::State::kLost;
  }

  void run(Script& script) {
    while (!script.empty() && usable()) {
      switch (script.byte() % 8) {
        case 0:
          post(OperationKind::kReceive, script);
          break;
        case 1:
          post(OperationKind::kSend, script);
          break;
        case 2:
          if (!running_.empty()) cancel(running_[script.byte() % running_.size()]);
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
  }

 private:
  struct Running {
    Operation* operation;
    uint32_t generation;
    std::unique_ptr<std::byte[]> bytes;  // exactly as long as the message: the sanitizer guards it
  };

  void post(OperationKind kind, Script& script) {
    const uint64_t size = std::min<uint64_t>(script.number(), 300'000);
    auto bytes = std::make_unique<std::byte[]>(size);
    Operation* operation = me_->post(kind, 1, script.byte() % 4, bytes.get(), size);
    running_.push_back({operation, operation->generation(), std::move(bytes)});
  }
  void cancel(Running& each) {
    const Engine::Baton baton(me_->communicator().mesh().engine());
    if (each.operation->is(each.generation, OperationState::kPending)) {
      me_->communicator().cancel(*each.operation);
    }
  }
  void drive() {
    me_->communicator().mesh().engine().poke();
    std::erase_if(running_, [&](Running& each) {
      if (!each.operation->claim(each.generation)) return false;
      me_->communicator().mesh().engine().pool().recycle(each.operation);
      return true;
    });
  }

  hetcomm_test::LocalStore store_;
  std::atomic<bool> stop_{false};
  FuzzTransport* transport_ = nullptr;
  std::thread other_;
  std::unique_ptr<CoreMember> me_;
  std::vector<Running> running_;
};

}  // namespace
}  // namespace hetcomm::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using hetcomm::test::Job;
  // Before the job, so that what the cryptography library keeps is given up after it.
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
