// The initiator's end of a shm connection without an endpoint: a test writes arbitrary data into
// the shared memory.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "src/net/connector.h"
#include "src/net/key.h"
#include "src/system/random.h"
#include "tests/support/transport_node.h"
#include "transports/shm/contact.h"
#include "transports/shm/factory.h"
#include "transports/shm/setup.h"
#include "transports/shm/wake.h"

namespace hetcomm::test {

inline Credentials fresh_credentials() {
  Credentials credentials;
  Result<Secret> secret = random_secret();
  if (!fill_random(credentials.identity.job).ok() || !secret.ok()) {
    throw Abandoned("no randomness");
  }
  credentials.secret = secret.value();
  return credentials;
}

// A socket to |node| on which rank 0 has proved itself.
class ProvedSocket final : public ConnectHandler {
 public:
  ProvedSocket(Node& node, const Credentials& credentials) : poller_(make_poller()) {
    auto target = shm::Contact::decode(node.transport().contact());
    if (!target.ok()) throw Abandoned("contact");
    Hello hello;
    hello.role = Role::kShm;
    hello.identity = credentials.identity;
    hello.source = 0;
    hello.destination = 1;
    connector_ = Connector::create(poller_, {Address::local(target->socket)}, credentials.secret,
                                   std::move(hello), now_ns() + kPatience, *this);
    node.until("the proof", [&] {
      poller_.poll();
      if (connector_ != nullptr) connector_->expire(now_ns());
      return connector_ == nullptr;
    });
    if (!socket_.valid()) throw Abandoned("no proof");
  }
  void on_connect(Result<StreamSocket> socket) override {
    connector_.reset();
    if (socket.ok()) socket_ = std::move(socket).value().take_fd();
  }
  UniqueFd take() { return std::move(socket_); }
  Poller& poller() { return poller_; }

 private:
  static Poller make_poller() {
    auto poller = Poller::create();
    if (!poller.ok()) throw Abandoned("poller");
    return std::move(poller).value();
  }
  Poller poller_;
  std::unique_ptr<Connector> connector_;
  UniqueFd socket_;
};

// A completed setup exchange with |node|, whose endpoint is then node.accepted[0].
class RawPeer final : public shm::SetupHandler {
 public:
  struct Options {
    shm::Geometry geometry;
    bool membarrier = true;
  };
  RawPeer(Node& node, const Credentials& credentials) : RawPeer(node, credentials, Options()) {}
  RawPeer(Node& node, const Credentials& credentials, Options options)
      : node_(node),
        proved_(node, credentials),
        context_{proved_.poller(), options.geometry, options.membarrier, {}, {}} {
    auto setup = shm::Setup::offer(proved_.take(), context_, options.geometry.ring_bytes, *this);
    if (!setup.ok()) throw Abandoned(std::string(setup.status().text()));
    setup_ = std::move(setup).value();
    node.until("the answer", [&] {
      proved_.poller().poll();
      return !setup_;
    });
  }
  void on_setup(shm::Setup&, Result<shm::Connection> result) override {
    outcome = result.status();
    if (result.ok()) connection = std::move(result).value();
    setup_.reset();
  }

  // Returns the node's end of the connection.
  Rail& rail() {
    node_.until("on_accepted", [&] { return node_.accepted.contains(0); });
    return *node_.accepted.at(0);
  }
  shm::Side& mine() { return connection.memory.side(0); }
  shm::Side& theirs() { return connection.memory.side(1); }

  Status outcome;
  shm::Connection connection;

 private:
  Node& node_;
  ProvedSocket proved_;
  shm::SetupContext context_;
  std::unique_ptr<shm::Setup> setup_;
};

// Rank 1 in a two-rank shm job.
class ShmNode {
 public:
  explicit ShmNode(const std::string& settings = "", int rank = 1)
      : ShmNode(fresh_credentials(), settings, rank) {}
  ShmNode(const Credentials& shared, const std::string& settings, int rank)
      : credentials(shared),
        factory_(make_shm_factory()),
        node({*factory_, settings, credentials, rank, 2}) {}

  Credentials credentials;

  // Records warnings from now on.
  void watch_log() {
    node.log().set_level(LogLevel::kWarn);
    node.log().set_sink(
        [](void* lines, int32_t, const char* line) {
          static_cast<std::vector<std::string>*>(lines)->emplace_back(line);
        },
        &lines_);
  }
  // Returns whether any warning contains all |parts|.
  bool has_warned(const std::vector<std::string>& parts) const {
    return std::any_of(lines_.begin(), lines_.end(), [&](const std::string& line) {
      return std::all_of(parts.begin(), parts.end(), [&](const std::string& part) {
        return line.find(part) != std::string::npos;
      });
    });
  }
  size_t warnings() const { return lines_.size(); }

 private:
  std::unique_ptr<TransportFactory> factory_;
  std::vector<std::string> lines_;

 public:
  Node node;
};

// Both ends of a connection in one thread. |near| is rank 0.
class ShmPair {
 public:
  explicit ShmPair(const std::string& settings = "")
      : near_node_(settings, 0), far_node_(near_node_.credentials, settings, 1) {
    near_node_.node.connect(1, far_node_.node.transport().contact());
    until("the connection",
          [&] { return near_node_.node.connect_outcomes > 0 && far_node_.node.accepts > 0; });
  }
  Node& near_node() { return near_node_.node; }
  Node& far_node() { return far_node_.node; }
  Rail& near() { return *near_node_.node.connected.at(1); }
  Rail& far() { return *far_node_.node.accepted.at(0); }
  int step() { return near_node_.node.step() + far_node_.node.step(); }
  template <typename Done>
  void until(const char* what, Done&& done) {
    near_node_.node.until(what, [&] {
      far_node_.node.step();
      return done();
    });
  }

 private:
  ShmNode near_node_;
  ShmNode far_node_;
};

}  // namespace hetcomm::test
