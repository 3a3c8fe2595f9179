// A device copies slowly: a message that has fully arrived is copied to it, although its sender has
// left during the copy.
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/core_job.h"
#include "tests/support/on_device.h"
#include "tests/support/pattern.h"
#include "transports/shm/factory.h"
#include "transports/tcp/factory.h"

namespace hetcomm::test {
namespace {

// The message has several staging chunks, none of which must wait for another to be freed.
constexpr uint64_t kSize = 1'000'000;
constexpr const char* kSettings = "HETCOMM_STAGING_CHUNK=256K;HETCOMM_TIMEOUT=20s;";

Factories make_factories(const std::string& transport) {
  Factories factories;
  factories.push_back(transport == "shm" ? make_shm_factory() : make_tcp_factory());
  return factories;
}

// Copying a message takes a tenth of a second.
std::vector<Device> make_devices() {
  return {create_sim_device("sim-handle", "memory=64M:bandwidth=10M").value()};
}

class SlowDevice : public ::testing::TestWithParam<std::string> {};

void send(CoreMember& me) {
  std::vector<std::byte> bytes(kSize);
  fill_pattern(bytes, 3);
  const Status sent = me.finish(me.post(OperationKind::kSend, 1, 1, bytes.data(), bytes.size()));
  EXPECT_TRUE(sent.ok()) << sent.text();
}

void receive(CoreMember& me) {
  OnDevice memory(me, kSize);
  const Status received = me.finish(me.post(OperationKind::kReceive, 0, 1, memory.part(0, kSize)));
  EXPECT_TRUE(received.ok()) << received.text();
  EXPECT_EQ(find_mismatch(memory.contents(0, kSize), 3), std::nullopt);
}

TEST_P(SlowDevice, ReceivesAMessageWhoseSenderHasLeft) {
  const std::string transport = GetParam().substr(0, 3);
  const std::string progress = GetParam().ends_with("thread") ? "thread" : "caller";
  const std::string settings = kSettings + ("HETCOMM_PROGRESS=" + progress);
  hetcomm_test::LocalStore store;
  const auto live = [&](int rank, const auto& what) {
    return std::thread([&, rank] {
      CoreMember me(store, rank, 2, settings, make_factories(transport), make_devices());
      what(me);
      me.communicator().flush(5'000'000'000);
    });
  };
  std::thread sender = live(0, send);
  std::thread receiver = live(1, receive);
  sender.join();
  receiver.join();
}

INSTANTIATE_TEST_SUITE_P(Over, SlowDevice,
                         ::testing::Values("shm", "tcp", "shm_thread", "tcp_thread"),
                         [](const auto& kind) { return kind.param; });

}  // namespace
}  // namespace hetcomm::test
