// Two ranks over fake verbs, driven by one thread. Not run on hardware.
#pragma once

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/fake_verbs.h"
#include "tests/support/transport_node.h"
#include "tests/support/transport_pair.h"
#include "transports/rdma/factory.h"

namespace hetcomm::test {

class FakePair {
 public:
  explicit FakePair(const std::string& settings = "", const rdma::Cm* cm = nullptr,
                    const rdma::Verbs* verbs = nullptr)
      : factory_(rdma::make_factory(verbs != nullptr ? *verbs : FakeFabric::verbs(), cm)),
        credentials_(make_credentials()),
        a({*factory_, settings, credentials_, 0, 2}),
        b({*factory_, settings, credentials_, 1, 2}) {}

  // Steps both ranks until |done|.
  template <typename Done>
  [[nodiscard]] bool run(Done&& done, uint64_t limit_ns = 5 * kSecond) {
    const uint64_t deadline = now_ns() + limit_ns;
    while (!done()) {
      if (now_ns() > deadline) return false;
      a.step();
      b.step();
    }
    return true;
  }
  bool connect() {
    const int before = a.connect_outcomes;
    const int accepted = b.accepts;
    a.connected.erase(1);
    a.connect(1, b.transport().contact());
    return run([&] { return a.connect_outcomes > before; }) && a.connected.contains(1) &&
           run([&] { return b.accepts > accepted; });
  }
  Rail& to_b() { return *a.connected.at(1); }
  Rail& to_a() { return *b.accepted.at(0); }
  // Returns the number of b's queue pair. The lower rank's is created first.
  static uint32_t pair_of_a() { return FakeFabric::queue_pairs().front(); }
  static uint32_t pair_of_b() { return FakeFabric::queue_pairs().back(); }

 private:
  std::unique_ptr<TransportFactory> factory_;
  Credentials credentials_;

 public:
  Node a;
  Node b;
};

inline MessageHeader numbered(uint64_t number) {
  MessageHeader header{};
  std::memcpy(header.data(), &number, sizeof(number));
  return header;
}

}  // namespace hetcomm::test
