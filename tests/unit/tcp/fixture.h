// Shared by the tcp tests: a rank with everything that a transport needs, and handlers that record
// their upcalls.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/capi/variables.h"
#include "src/net/credentials.h"
#include "src/net/key.h"
#include "src/net/poller.h"
#include "src/system/clock.h"
#include "src/system/config.h"
#include "src/system/log.h"
#include "transports/tcp/factory.h"
#include "transports/transport.h"

namespace hetcomm::test {

inline MessageHeader make_header(uint64_t number) {
  MessageHeader header{};
  std::memcpy(header.data(), &number, sizeof(number));
  return header;
}
inline uint64_t number_of(const MessageHeader& header) {
  uint64_t number = 0;
  std::memcpy(&number, header.data(), sizeof(number));
  return number;
}

// Returns bytes that depend on |seed| and position, so that misplaced bytes are detected.
inline std::vector<std::byte> pattern(size_t size, uint64_t seed) {
  std::vector<std::byte> bytes(size);
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (size_t i = 0; i < size; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    bytes[i] = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

inline iovec piece(std::vector<std::byte>& bytes) { return {bytes.data(), bytes.size()}; }

// Records one endpoint's upcalls. Hooks run inside them.
class Recorder final : public EndpointHandler {
 public:
  struct Message {
    uint64_t number = 0;
    std::vector<std::byte> payload;
  };
  std::vector<Message> messages;
  std::map<uint64_t, uint64_t> put_bytes;  // by cookie
  std::vector<Bulk*> completed;
  int writable = 0;
  int failures = 0;
  Status failure;
  std::function<void()> message_hook;
  std::function<void()> put_hook;
  std::function<void()> complete_hook;
  std::function<void()> writable_hook;
  std::function<void()> failed_hook;
  std::function<void(const StreamId&)> doubt_hook;

  void on_message(const MessageHeader& header, ConstByteSpan payload) override {
    check_alive();
    messages.push_back({number_of(header), {payload.begin(), payload.end()}});
    if (message_hook) message_hook();
  }
  void on_put(uint64_t cookie, uint64_t length) override {
    check_alive();
    put_bytes[cookie] += length;
    if (put_hook) put_hook();
  }
  void on_bulk_complete(Bulk& bulk, Code code) override {
    check_alive();
    if (code != Code::kOk) std::abort();
    completed.push_back(&bulk);
    if (complete_hook) complete_hook();
  }
  void on_mapped(const RemoteKey&, const Result<MappedRegion>&) override {}
  void on_unmap(const RemoteKey&) override {}
  void on_writable() override {
    check_alive();
    ++writable;
    if (writable_hook) writable_hook();
  }
  void on_doubt(const StreamId& stream) override {
    check_alive();
    if (doubt_hook) doubt_hook(stream);
  }
  void on_failed(const Status& why) override {
    check_alive();
    ++failures;
    failure = why;
    if (failed_hook) failed_hook();
  }

 private:
  // Checks that no upcall follows on_failed.
  void check_alive() const {
    if (failures > 0) std::abort();
  }
};

inline Config make_config(const std::string& settings, Log& log) {
  Result<Config> config = Config::load(kVariables, nullptr, settings, log);
  if (!config.ok()) {
    std::fprintf(stderr, "%s\n", std::string(config.status().text()).c_str());
    std::abort();
  }
  return std::move(config).value();
}

inline Poller make_poller() {
  Result<Poller> poller = Poller::create();
  if (!poller.ok()) std::abort();
  return std::move(poller).value();
}

inline Credentials make_credentials() {
  Credentials credentials;
  credentials.identity.job.fill(std::byte{7});
  credentials.identity.epoch = 3;
  credentials.secret = secret_from({});
  return credentials;
}

// One rank. Endpoints are destroyed before the transport.
class Node final : public TransportHandler {
 public:
  Node(int rank, int size, const std::string& settings = "INTERFACE=lo;FAMILY=ipv4",
       Credentials credentials = make_credentials())
      : config(make_config(settings, log)),
        interfaces(choose_interfaces(config)),
        poller(make_poller()),
        identity(credentials),
        environment{.rank = rank,
                    .size = size,
                    .credentials = identity,
                    .config = config,
                    .interfaces = interfaces,
                    .log = log,
                    .poller = poller,
                    .now_ns = now,
                    .handler = *this} {
    log.set_level(LogLevel::kError);
    Result<std::unique_ptr<Transport>> made = make_tcp_factory()->create(environment);
    if (!made.ok()) {
      std::fprintf(stderr, "%s\n", std::string(made.status().text()).c_str());
      std::abort();
    }
    transport = std::move(made).value();
    if (!transport->start().ok()) std::abort();
  }

  void on_connected(const Destination& destination,
                    Result<std::unique_ptr<Endpoint>> endpoint) override {
    ++outcomes;
    if (endpoint.ok()) {
      adopt(destination.rank, std::move(endpoint).value());
    } else {
      connect_error = endpoint.status();
    }
  }
  void on_accepted(int peer, std::unique_ptr<Endpoint> endpoint) override {
    if (accepting) adopt(peer, std::move(endpoint));
  }

  // Runs one round of core's progress.
  int step() {
    now = now_ns();
    const int events = poller.poll();
    return events + transport->progress();
  }
  // Runs step(), and waits for an event where core would.
  void step_or_sleep(uint64_t limit_ns = 10'000'000) {
    if (step() > 0) return;
    if (transport->prepare_sleep(Sleep::kLong)) {
      const uint64_t timer = transport->next_timer_ns();
      now = now_ns();
      poller.wait(timer <= now ? 0 : std::min(timer - now, limit_ns));
    }
    transport->finish_sleep();
  }

  Endpoint& to(int peer) { return *endpoints.at(peer); }
  Recorder& from(int peer) { return *recorders.at(peer); }

  uint64_t now = now_ns();
  Log log;
  Config config;
  ChosenInterfaces interfaces;
  Poller poller;
  Credentials identity;
  TransportEnvironment environment;
  std::unique_ptr<Transport> transport;
  std::map<int, std::unique_ptr<Recorder>> recorders;
  std::map<int, std::unique_ptr<Endpoint>> endpoints;
  bool accepting = true;
  int outcomes = 0;
  Status connect_error;

 private:
  void adopt(int peer, std::unique_ptr<Endpoint> endpoint) {
    recorders[peer] = std::make_unique<Recorder>();
    endpoint->set_handler(recorders[peer].get());
    endpoints[peer] = std::move(endpoint);
  }
};

// Two connected ranks in one thread.
struct Pair {
  explicit Pair(const std::string& more = "", const std::string& base = "INTERFACE=lo;FAMILY=ipv4")
      : a(0, 2, base + ";" + more), b(1, 2, base + ";" + more) {
    a.transport->connect({.rank = 1}, b.transport->contact());
    if (!run([&] { return !a.endpoints.empty() && !b.endpoints.empty(); })) std::abort();
  }

  // Steps both ranks until |done|. Returns false on timeout.
  template <typename Done>
  bool run(Done&& done, uint64_t limit_ns = 20'000'000'000) {
    return run_nodes({&a, &b}, done, limit_ns);
  }
  template <typename Done>
  static bool run_nodes(std::initializer_list<Node*> nodes, Done&& done,
                        uint64_t limit_ns = 20'000'000'000) {
    const uint64_t deadline = now_ns() + limit_ns;
    while (!done()) {
      for (Node* node : nodes) node->step();
      if (now_ns() > deadline) return false;
    }
    return true;
  }
  // Steps both ranks for |time_ns|, to check that something does not happen.
  void idle(uint64_t time_ns = 20'000'000) {
    const uint64_t end = now_ns() + time_ns;
    while (now_ns() < end) {
      a.step();
      b.step();
    }
  }

  Endpoint& ea() { return a.to(1); }
  Endpoint& eb() { return b.to(0); }
  Recorder& ra() { return a.from(1); }
  Recorder& rb() { return b.from(0); }

  Node a;
  Node b;
};

}  // namespace hetcomm::test
