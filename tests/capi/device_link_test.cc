// The path between two ranks, and between their devices, by an unmeasured link model:
//   - it crosses the NICs next to the devices, and the PCIe links that these NICs share;
//   - host memory has a path of its own; the way back crosses the opposite directions;
//   - both ranks report the same, for the other rank's devices too;
//   - the whole model is available as JSON, with the hosts and NICs of both ranks;
//   - a device that the other rank lacks is refused.
#include <unistd.h>

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <hetcomm/hetcomm.h>

#include "tests/support/local_bootstrap.h"

namespace hetcomm_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two switches with an accelerator and a NIC each. The uplink of the second one is narrow.
constexpr const char* kMachine = R"({
  "format": "hetcomm topology", "version": 1,
  "numa_nodes": [{"number": 0, "package": 0, "processors": "0-4095"}],
  "pci": [{"kind": "root complex", "address": "0000:00:00.0", "numa_nodes": [0], "children": [
    {"kind": "bridge", "address": "0000:00:01.0", "mbyte_per_s": 9000, "children": [
      {"kind": "function", "address": "0000:01:00.0", "class": "0302", "mbyte_per_s": 32000},
      {"kind": "function", "address": "0000:02:00.0", "class": "0200", "mbyte_per_s": 16000}]},
    {"kind": "bridge", "address": "0000:00:02.0", "mbyte_per_s": 500, "children": [
      {"kind": "function", "address": "0000:03:00.0", "class": "0302", "mbyte_per_s": 32000},
      {"kind": "function", "address": "0000:04:00.0", "class": "0200", "mbyte_per_s": 16000}]}]}],
  "nics": [{"interface": "near0", "state": "up", "mbit_per_s": 16000, "functions": ["0000:02:00.0"]},
           {"interface": "near1", "state": "up", "mbit_per_s": 8000, "functions": ["0000:04:00.0"]}]})";

struct Link {
  std::vector<std::string> names;
  std::vector<int32_t> kinds;
  hetcomm_link_t whole{};
};

Link link_of(hetcomm_communicator_t* communicator, int32_t from, int32_t device, int32_t to,
             int32_t to_device) {
  hetcomm_link_resource_t resources[8] = {};
  resources[0].struct_size = sizeof(resources[0]);
  Link link;
  link.whole.struct_size = sizeof(link.whole);
  size_t count = 0;
  EXPECT_EQ(hetcomm_communicator_device_link(communicator, from, device, to, to_device, 8,
                                             resources, &count, &link.whole),
            HETCOMM_OK)
      << hetcomm_last_error();
  for (size_t i = 0; i < count && i < 8; ++i) {
    link.names.emplace_back(resources[i].name);
    link.kinds.push_back(resources[i].kind);
  }
  return link;
}

void check_links(Rank& me) {
  hetcomm_communicator_t* const world = me.communicator();
  const Link first = link_of(world, 0, 1, 1, 1);
  EXPECT_THAT(first.names, ElementsAre("left pcie 0000:00:01.0 out", "left near0 out",
                                       "right near0 in", "right pcie 0000:00:01.0 in"));
  EXPECT_THAT(first.kinds, ElementsAre(HETCOMM_LINK_PCIE, HETCOMM_LINK_NIC, HETCOMM_LINK_NIC,
                                       HETCOMM_LINK_PCIE));
  EXPECT_EQ(first.whole.bytes_per_s, 2'000'000'000U);
  EXPECT_GT(first.whole.latency_ns, 0U);
  const Link second = link_of(world, 0, 2, 1, 1);
  EXPECT_THAT(second.names, ElementsAre("left pcie 0000:00:02.0 out", "left near1 out",
                                        "right near0 in", "right pcie 0000:00:01.0 in"));
  EXPECT_EQ(second.whole.bytes_per_s, 500'000'000U);
  const Link back = link_of(world, 1, 1, 0, 2);
  EXPECT_THAT(back.names, ElementsAre("right pcie 0000:00:01.0 out", "right near0 out",
                                      "left near1 in", "left pcie 0000:00:02.0 in"));
  size_t count = 0;
  hetcomm_link_t whole{};
  whole.struct_size = sizeof(whole);
  EXPECT_EQ(hetcomm_communicator_link(world, 0, 1, 0, nullptr, &count, &whole), HETCOMM_OK);
  EXPECT_EQ(count, link_of(world, 0, 0, 1, 0).names.size());
  EXPECT_EQ(hetcomm_communicator_device_link(world, 0, 2, 1, 2, 0, nullptr, &count, &whole),
            HETCOMM_OUT_OF_RANGE);
  EXPECT_THAT(hetcomm_last_error(), HasSubstr("rank 1 has no device 2"));
  std::string text(16384, ' ');
  ASSERT_EQ(hetcomm_communicator_link_model(world, HETCOMM_TOPOLOGY_JSON, text.size(), text.data(),
                                            &count),
            HETCOMM_OK);
  EXPECT_THAT(text, HasSubstr("\"left\""));
  EXPECT_THAT(text, HasSubstr("\"near1\""));
  EXPECT_EQ(hetcomm_communicator_barrier(world, 20'000'000'000), HETCOMM_OK);
}

TEST(DeviceLinks, LinksUseTheNicsOfTheDevices) {
  const std::string path =
      testing::TempDir() + "hetcomm-machine-" + std::to_string(getpid()) + ".json";
  std::ofstream(path) << kMachine;
  // This host lacks the NICs of the file, so transports use those that they find.
  const std::string common = "LOG=error;TOPOLOGY_TRUST=on;TOPOLOGY=" + path + ";";
  const std::string settings[] = {
      common + "HOST_LABEL=left;DEVICES=sim-handle:pci=0000:01:00.0,sim-handle:pci=0000:03:00.0",
      common + "HOST_LABEL=right;DEVICES=sim-handle:pci=0000:01:00.0"};
  LocalStore store;
  std::vector<std::thread> threads;
  for (int32_t index = 0; index < 2; ++index) {
    threads.emplace_back([&, index] {
      Rank rank(store, index, 2, settings[index].c_str());
      if (rank.ok()) check_links(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  unlink(path.c_str());
}

}  // namespace
}  // namespace hetcomm_test
