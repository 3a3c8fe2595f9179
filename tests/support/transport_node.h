// One rank at the transport level, without core: a Transport with its environment (poller, coarse
// clock, configuration, credentials), and rails whose handlers record every upcall.
//
// Every step checks the general rules of transport.h in every test:
//
//   * upcalls are made only from progress() or the poller, never inside a call on the endpoint;
//   * each accepted bulk operation completes at most once, and a cancelled one never;
//   * on_failed is called at most once per endpoint, and no upcall follows it.
//
// A wait that takes too long throws Abandoned, which run_pair() (transport_pair.h) turns into a
// test failure: a defect shows as a failure, not as a hang.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "src/capi/variables.h"
#include "src/net/poller.h"
#include "src/system/clock.h"
#include "src/system/config.h"
#include "src/system/log.h"
#include "tests/support/pattern.h"
#include "transports/transport.h"

namespace hetcomm::test {

inline constexpr uint64_t kMillisecond = 1'000'000;
inline constexpr uint64_t kSecond = 1'000'000'000;
// Longer than any step takes on a busy machine, but shorter than a test's watchdog.
inline constexpr uint64_t kPatience = 15 * kSecond;

struct Abandoned : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Node;

// An endpoint and the record of what it reported.
class Rail final : public EndpointHandler {
 public:
  struct Message {
    MessageHeader header;
    std::vector<std::byte> payload;
  };
  struct Completion {
    Bulk* bulk;
    Code code;
  };

  Rail(Node& node, std::unique_ptr<Endpoint> endpoint) : node_(node) { adopt(std::move(endpoint)); }
  Rail(const Rail&) = delete;
  Rail& operator=(const Rail&) = delete;
  ~Rail() { close(); }

  // Call the endpoint's functions and check their results.
  Code send(const MessageHeader& header, const ExtentView& payload) {
    const Inside inside(*this);
    return endpoint_->send(header, payload);
  }
  // Call the following functions only if the endpoint supports them.
  Code put(Bulk& bulk) {
    gets_.erase(&bulk);
    return start(bulk, [&] { return abilities_.puts->put(bulk); });
  }
  Code get(Bulk& bulk) {
    gets_.insert(&bulk);
    return start(bulk, [&] { return abilities_.gets->get(bulk); });
  }
  Result<RemoteKey> expose(Extents extents, Access access, uint64_t cookie) {
    const Inside inside(*this);
    return abilities_.exposer->expose(extents, access, cookie);
  }
  void revoke(const RemoteKey& key) {
    const Inside inside(*this);
    abilities_.exposer->revoke(key);
  }
  void release(const RemoteKey& key) {
    const Inside inside(*this);
    abilities_.exposer->release(key);
  }
  void cancel(Bulk& bulk) {
    const Inside inside(*this);
    if (gets_.contains(&bulk)) {
      abilities_.gets->cancel(bulk);
    } else {
      abilities_.puts->cancel(bulk);
    }
    running_.erase(&bulk);
  }
  // Destroys the endpoint.
  void close() {
    const Inside inside(*this);
    endpoint_.reset();
    running_.clear();
  }
  Endpoint& endpoint() { return *endpoint_; }
  const EndpointAbilities& abilities() const { return abilities_; }
  bool open() const { return endpoint_ != nullptr; }
  const Capabilities& capabilities() const { return endpoint_->capabilities(); }
  Node& node() { return node_; }
  size_t running() const { return running_.size(); }

  // Passes every message to |hook| from now on, beginning with those already recorded.
  void listen(std::function<void(const MessageHeader&, ConstByteSpan)> hook) {
    message_hook_ = std::move(hook);
    for (; !messages.empty(); messages.pop_front()) {
      message_hook_(messages.front().header, messages.front().payload);
    }
  }

  // Upcalls recorded so far:
  std::deque<Message> messages;
  std::map<uint64_t, uint64_t> put_bytes;  // by cookie
  std::vector<Completion> completions;
  int writable = 0;
  int failed = 0;
  Status failure;

  void on_message(const MessageHeader& header, ConstByteSpan payload) override;
  void on_put(uint64_t cookie, uint64_t length) override;
  void on_bulk_complete(Bulk& bulk, Code code) override;
  void on_mapped(const RemoteKey& key, const Result<MappedRegion>& mapped) override;
  void on_unmap(const RemoteKey& key) override;
  void on_writable() override;
  void on_doubt(const StreamId& stream) override;
  void on_failed(const Status& why) override;

 private:
  // Marks a call on the endpoint. An upcall during the call is a violation.
  class Inside {
   public:
    explicit Inside(Rail& rail) : rail_(rail) { ++rail_.inside_; }
    ~Inside() { --rail_.inside_; }

   private:
    Rail& rail_;
  };
  void adopt(std::unique_ptr<Endpoint> endpoint);
  template <typename Call>
  Code start(Bulk& bulk, Call&& call) {
    const Inside inside(*this);
    const Code code = call();
    if (code == Code::kOk) running_.insert(&bulk);
    return code;
  }
  void check_upcall(const char* name);

  Node& node_;
  std::unique_ptr<Endpoint> endpoint_;
  EndpointAbilities abilities_;
  std::function<void(const MessageHeader&, ConstByteSpan)> message_hook_;
  int inside_ = 0;
  std::set<const Bulk*> running_;
  std::set<const Bulk*> gets_;  // the bulks most recently started as gets
};

class Node final : public TransportHandler {
 public:
  struct Options {
    const TransportFactory& factory;
    std::string settings;
    Credentials credentials;
    int rank = 0;
    int size = 2;
  };

  explicit Node(const Options& options)
      : credentials_(options.credentials),
        config_(load(options.settings)),
        interfaces_(choose_interfaces(config_)),
        poller_(make_poller()) {
    log_.set_rank(options.rank);
    now_ = now_ns();
    auto transport = options.factory.create(TransportEnvironment{options.rank, options.size,
                                                                 credentials_, config_, interfaces_,
                                                                 log_, poller_, now_, *this});
    if (!transport.ok()) throw Abandoned("create: " + std::string(transport.status().text()));
    transport_ = std::move(transport).value();
    const Status started = transport_->start();
    if (!started.ok()) throw Abandoned("start: " + std::string(started.text()));
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  ~Node() {
    accepted.clear();
    connected.clear();
    transport_.reset();
  }

  Transport& transport() { return *transport_; }
  // Destroys the transport like a process that ends without closing its connections individually.
  void destroy_transport() {
    accepted.clear();
    connected.clear();
    transport_.reset();
  }

  // Starts connecting to |peer|. No upcall may happen during the call.
  void connect(int peer, ConstByteSpan contact) { transport_->connect({.rank = peer}, contact); }

  // Makes progress once everywhere and returns the number of things done.
  int step() {
    now_ = now_ns();
    progressing_ = true;
    int done = poller_.poll();
    done += transport_->progress();
    progressing_ = false;
    return done;
  }

  // Sleeps like a context, for at most |limit_ns|. Returns false if the transport refused the
  // sleep.
  bool sleep(uint64_t limit_ns) {
    const bool may_sleep = transport_->prepare_sleep(Sleep::kLong);
    if (may_sleep) wait_in_poller(limit_ns);
    transport_->finish_sleep();
    return may_sleep;
  }
  // Sleeps while another thread of the context starts |work()|. The transport is asked only
  // afterwards whether the sleep may continue, so its second check cannot hide an event that
  // prepare_sleep() missed.
  template <typename Work>
  bool sleep(uint64_t limit_ns, Work&& work) {
    bool may_sleep = transport_->prepare_sleep(Sleep::kLong);
    if (may_sleep) {
      work();
      may_sleep = transport_->may_sleep_on();
    }
    if (may_sleep) wait_in_poller(limit_ns);
    transport_->finish_sleep();
    return may_sleep;
  }

  // Steps until |done|. Returns false if |limit_ns| expired first.
  template <typename Done>
  [[nodiscard]] bool try_until(Done&& done, uint64_t limit_ns) {
    const uint64_t deadline = now_ns() + limit_ns;
    int idle = 0;
    while (!done()) {
      idle = step() > 0 ? 0 : idle + 1;
      if (now_ns() > deadline) return done();
      if (idle > 20) sleep(kMillisecond);
    }
    return true;
  }
  template <typename Done>
  void until(const char* what, Done&& done, uint64_t limit_ns = kPatience) {
    if (!try_until(done, limit_ns)) throw Abandoned(std::string("waited too long for ") + what);
  }
  // Keeps stepping for |duration_ns|.
  void linger(uint64_t duration_ns) {
    (void)try_until([] { return false; }, duration_ns);
  }

  bool progressing() const { return progressing_; }
  Log& log() { return log_; }
  Poller& poller() { return poller_; }

  // Outcomes of connect() and incoming connections, by peer. With |refuse|, accepted endpoints are
  // dropped.
  std::map<int, std::unique_ptr<Rail>> connected;
  std::map<int, std::unique_ptr<Rail>> accepted;
  std::map<int, Status> connect_failed;
  int connect_outcomes = 0;
  int accepts = 0;
  bool refuse = false;

  void on_connected(const Destination& destination,
                    Result<std::unique_ptr<Endpoint>> endpoint) override {
    EXPECT_TRUE(progressing_) << "on_connected from outside of progress";
    ++connect_outcomes;
    if (endpoint.ok()) {
      connected[destination.rank] = std::make_unique<Rail>(*this, std::move(endpoint).value());
    } else {
      EXPECT_FALSE(endpoint.status().ok());
      connect_failed[destination.rank] = endpoint.status();
    }
  }
  void on_accepted(int peer, std::unique_ptr<Endpoint> endpoint) override {
    EXPECT_TRUE(progressing_) << "on_accepted from outside of progress";
    ++accepts;
    if (!refuse) accepted[peer] = std::make_unique<Rail>(*this, std::move(endpoint));
  }

 private:
  Config load(const std::string& settings) {
    log_.set_level(LogLevel::kError);
    auto config = Config::load(kVariables, nullptr, settings, log_);
    if (!config.ok()) throw Abandoned("settings: " + std::string(config.status().text()));
    return std::move(config).value();
  }
  void wait_in_poller(uint64_t limit_ns) const {
    const uint64_t now = now_ns();
    const uint64_t timer = transport_->next_timer_ns();
    poller_.wait(std::min(limit_ns, timer > now ? timer - now : 0));
  }
  static Poller make_poller() {
    auto poller = Poller::create();
    if (!poller.ok()) throw Abandoned("poller: " + std::string(poller.status().text()));
    return std::move(poller).value();
  }

  Credentials credentials_;
  Log log_;
  Config config_;
  ChosenInterfaces interfaces_;
  Poller poller_;
  uint64_t now_ = 0;
  bool progressing_ = false;
  std::unique_ptr<Transport> transport_;
};

inline void Rail::adopt(std::unique_ptr<Endpoint> endpoint) {
  endpoint_ = std::move(endpoint);
  abilities_ = endpoint_->abilities();
  endpoint_->set_handler(this);
}

inline void Rail::check_upcall(const char* name) {
  EXPECT_TRUE(node_.progressing()) << name << " from outside of progress";
  EXPECT_EQ(inside_, 0) << name << " from inside a call on the endpoint";
  EXPECT_EQ(failed, 0) << name << " after on_failed";
  EXPECT_NE(endpoint_, nullptr) << name << " after the endpoint's destruction";
}

inline void Rail::on_message(const MessageHeader& header, ConstByteSpan payload) {
  check_upcall("on_message");
  if (message_hook_) {
    message_hook_(header, payload);
  } else {
    messages.push_back({header, {payload.begin(), payload.end()}});
  }
}

inline void Rail::on_put(uint64_t cookie, uint64_t length) {
  check_upcall("on_put");
  put_bytes[cookie] += length;
}

inline void Rail::on_bulk_complete(Bulk& bulk, Code code) {
  check_upcall("on_bulk_complete");
  EXPECT_EQ(running_.erase(&bulk), 1u) << "completion of an operation that is not running";
  EXPECT_NE(code, Code::kWouldBlock);
  EXPECT_NE(code, Code::kPending);
  completions.push_back({&bulk, code});
}

inline void Rail::on_mapped(const RemoteKey& /*key*/, const Result<MappedRegion>& /*mapped*/) {
  check_upcall("on_mapped");
}

inline void Rail::on_unmap(const RemoteKey& /*key*/) { check_upcall("on_unmap"); }

inline void Rail::on_doubt(const StreamId& /*stream*/) { check_upcall("on_doubt"); }

inline void Rail::on_writable() {
  check_upcall("on_writable");
  ++writable;
}

inline void Rail::on_failed(const Status& why) {
  check_upcall("on_failed");
  EXPECT_FALSE(why.ok());
  EXPECT_FALSE(why.text().empty());
  ++failed;
  failure = why;
  running_.clear();
}

}  // namespace hetcomm::test
