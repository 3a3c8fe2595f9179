// Ranks' descriptions of the links of their hosts, and the model estimated from them:
//    - NICs behind one PCIe link share it; the narrowest of several links in a row counts; a link
//      that carries a part of a bond's bytes limits nothing;
//    - an unknown rate, and that of a virtual NIC, becomes no resource;
//    - both directions of a NIC and of a PCIe link are separate resources;
//    - descriptions fit the bound and are decoded as they were encoded, and broken bytes are
//      refused;
//    - hosts with the same label are distinguished, in the order of ranks, also from labels that
//      look alike;
//    - ranks of one host that see different NICs describe it together;
//    - paths have the figures of the fastest transport that all ranks of both clusters have;
//    - any labels and clusters make a model that passes its check, or a text with the exceeded
//      limit;
//    - links that never limit are left out if there would be too many resources.
#include "topology/machine/link_estimate.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/machines.h"
#include "topology/links/link_model_json.h"
#include "topology/machine/affinity.h"
#include "topology/machine/host_links.h"
#include "topology/read/machine_file.h"

namespace hetcomm::topology {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A root complex with a switch whose uplink is |up|, and functions below the switch.
struct Tree {
  Machine machine;

  int add(PciKind kind, uint8_t bus, uint8_t device, uint8_t function, int parent, uint64_t rate) {
    PciNode& node = machine.pci.emplace_back();
    node.kind = kind;
    node.address = {0, bus, device, function};
    node.parent = parent;
    node.mbyte_per_s = rate;
    return static_cast<int>(machine.pci.size()) - 1;
  }
  int add_nic(const std::string& name, std::vector<int> functions, uint64_t mbit_per_s) {
    Nic& nic = machine.nics.emplace_back();
    nic.interface = name;
    nic.state = NicState::kUp;
    nic.functions = std::move(functions);
    nic.mbit_per_s = mbit_per_s;
    return static_cast<int>(machine.nics.size()) - 1;
  }
};

TEST(HostLinks, NicsBehindOnePcieLinkShareIt) {
  Tree tree;
  const int root = tree.add(PciKind::kRootComplex, 0, 0, 0, kNone, 0);
  const int port = tree.add(PciKind::kBridge, 0, 1, 0, root, 9000);
  const int upper = tree.add(PciKind::kBridge, 1, 0, 0, port, 8000);
  const int first = tree.add(PciKind::kBridge, 2, 0, 0, upper, 4000);
  const int second = tree.add(PciKind::kBridge, 2, 1, 0, upper, 4000);
  const int port0 = tree.add(PciKind::kFunction, 3, 0, 0, first, 3000);
  const int port1 = tree.add(PciKind::kFunction, 3, 0, 1, first, 3000);
  const int single = tree.add(PciKind::kFunction, 4, 0, 0, second, 5000);
  tree.add_nic("a", {port0}, 10'000);
  tree.add_nic("b", {port1}, 10'000);
  tree.add_nic("c", {single}, 25'000);
  ASSERT_TRUE(check(tree.machine).ok()) << check(tree.machine).text();
  const HostLinks links = host_links(tree.machine, {{1, 2}, {2}}, {0});
  EXPECT_THAT(links.nics, ElementsAre(HostNic{"b", 10'000, {0, 1}}, HostNic{"c", 25'000, {0, 2}},
                                      HostNic{"a", 10'000, {0, 1}}));
  EXPECT_THAT(links.pcie,
              ElementsAre(PcieLink{"0000:01:00.0", 8000}, PcieLink{"0000:03:00.0", 3000},
                          PcieLink{"0000:02:01.0", 4000}));
  EXPECT_THAT(links.nics_of(0), ElementsAre(0, 1));
  EXPECT_THAT(links.nics_of(1), ElementsAre(1));
}

TEST(HostLinks, PcieLinkOfOneBondMemberDoesNotLimitTheBond) {
  Tree tree;
  const int root = tree.add(PciKind::kRootComplex, 0, 0, 0, kNone, 0);
  const int port = tree.add(PciKind::kBridge, 0, 1, 0, root, 8000);
  const int one = tree.add(PciKind::kFunction, 1, 0, 0, port, 2000);
  const int other = tree.add(PciKind::kFunction, 1, 1, 0, port, 2000);
  const int far = tree.add(PciKind::kFunction, 0, 2, 0, root, 2000);
  tree.add_nic("near", {one, other}, 20'000);
  tree.add_nic("wide", {one, far}, 20'000);
  const HostLinks links = host_links(tree.machine, {{0, 1}}, {});
  EXPECT_THAT(links.pcie, ElementsAre(PcieLink{"0000:00:01.0", 8000}));
  EXPECT_THAT(links.nics[0].links, ElementsAre(0));
  EXPECT_THAT(links.nics[1].links, IsEmpty());
}

TEST(HostLinks, UnknownRatesAreOmitted) {
  Tree tree;
  const int root = tree.add(PciKind::kRootComplex, 0, 0, 0, kNone, 0);
  const int function = tree.add(PciKind::kFunction, 1, 0, 0, root, 0);
  tree.add_nic("silent", {function}, 0);
  tree.add_nic("veth", {}, 10'000);
  tree.machine.nics[1].kind = NicKind::kVirtual;
  const HostLinks links = host_links(tree.machine, {{0, 1}}, {});
  EXPECT_THAT(links.pcie, IsEmpty());
  EXPECT_EQ(links.nics[0].mbit_per_s, 0U);
  EXPECT_EQ(links.nics[1].mbit_per_s, 0U);
}

TEST(HostLinks, RecordedMachinesRoundTripInFewBytes) {
  for (const char* const name : kMachines) {
    Result<Machine> machine = read_machine_file(machine_path(std::string(name) + ".xml"));
    if (machine.status().code() == Code::kUnsupported) GTEST_SKIP() << machine.status().text();
    ASSERT_TRUE(machine.ok()) << machine.status().text();
    const Affinity affinity = assign_nics(*machine, {});
    const auto indices = [](const NicOrder& order) {
      std::vector<int> nics;
      for (const NicChoice& choice : order) nics.push_back(choice.nic);
      return nics;
    };
    std::vector<std::vector<int>> devices{indices(affinity.numa_nodes.at(0))};
    for (const NicOrder& order : affinity.accelerators) devices.push_back(indices(order));
    const HostLinks links = host_links(*machine, devices, {});
    EXPECT_EQ(links.nics.size(), affinity.numa_nodes[0].size()) << name;
    const std::vector<std::byte> bytes = encode_host_links(links);
    EXPECT_LE(bytes.size(), 700U) << name;
    Result<HostLinks> back = decode_host_links(bytes);
    ASSERT_TRUE(back.ok()) << back.status().text();
    EXPECT_EQ(*back, links) << name;
    for (size_t i = 0; i < bytes.size(); ++i) {
      EXPECT_FALSE(decode_host_links(std::span(bytes).first(i)).ok()) << name << " " << i;
    }
  }
}

TEST(HostLinks, LargeHostFitsTheSizeLimit) {
  Tree tree;
  int above = tree.add(PciKind::kRootComplex, 0, 0, 0, kNone, 0);
  for (uint8_t i = 1; i <= 20; ++i) {
    above = tree.add(PciKind::kBridge, i, 0, 0, above, 60'000u - i);
    const int function =
        tree.add(PciKind::kFunction, static_cast<uint8_t>(i + 100), 0, 0, above, 500);
    tree.add_nic(std::string(200, 'x') + std::to_string(i), {function}, kMaxMbitPerS);
  }
  std::vector<std::vector<int>> devices(80);
  std::mt19937 random(1);
  for (auto& each : devices) {
    for (int i = 0; i < 20; ++i) each.push_back(i);
    std::shuffle(each.begin(), each.end(), random);
  }
  HostLinks links = host_links(tree.machine, devices, {});
  links.located_devices = UINT64_MAX - 1;
  links.keeps_all_nics = true;
  EXPECT_THAT(links.nics, SizeIs(kMaxHostNics));
  EXPECT_EQ(links.nics_of(79).data(), links.nics_of(0).data());
  const std::vector<std::byte> bytes = encode_host_links(links);
  EXPECT_LE(bytes.size(), kMaxHostLinksBytes);
  ASSERT_TRUE(decode_host_links(bytes).ok()) << decode_host_links(bytes).status().text();
  EXPECT_EQ(decode_host_links(bytes).value(), links);
}

TEST(HostLinks, UnusualNicNamesReadBackAsWritten) {
  const std::vector<std::string> names = {std::string(72, '\x01'), std::string(72, '\xff'),
                                          std::string(71, 'a') + "\xc3\xa4" + "b",
                                          "\xf0\x9f\x98\x80" + std::string(80, 'c')};
  for (const std::string& name : names) {
    Tree tree;
    const int root = tree.add(PciKind::kRootComplex, 0, 0, 0, kNone, 0);
    tree.add_nic(name, {tree.add(PciKind::kFunction, 1, 0, 0, root, 500)}, 1000);
    const HostLinks links = host_links(tree.machine, {{0}}, {});
    Result<HostLinks> back = decode_host_links(encode_host_links(links));
    ASSERT_TRUE(back.ok()) << back.status().text();
    EXPECT_EQ(back.value(), links);
    const RankLinks rank{.host = {}, .label = "h", .cluster = "", .transports = 1, .links = &*back};
    Result<LinkEstimate> estimate = estimate_links({&rank, 1}, {});
    ASSERT_TRUE(estimate.ok()) << estimate.status().text();
    EXPECT_EQ(estimate->model.hosts[0].nics.size(), 1U);
  }
}

TEST(HostLinks, MalformedBytesAreRefused) {
  HostLinks links{
      .pcie = {{"0000:01:00.0", 1000}}, .nics = {{"eth0", 1000, {0}}}, .devices = {{0}, {0}}};
  ASSERT_TRUE(decode_host_links(encode_host_links(links)).ok());
  HostLinks bad = links;
  bad.nics[0].links = {1};
  EXPECT_THAT(std::string(decode_host_links(encode_host_links(bad)).status().text()),
              HasSubstr("a PCIe link that is not there"));
  bad = links;
  bad.devices[0] = {1};
  EXPECT_THAT(std::string(decode_host_links(encode_host_links(bad)).status().text()),
              HasSubstr("a NIC that is not there"));
  bad = links;
  bad.pcie[0].mbyte_per_s = 0;
  EXPECT_FALSE(decode_host_links(encode_host_links(bad)).ok());
  // When escaped, the name would take 288 bytes, more than a link model allows.
  bad = links;
  bad.nics[0].name = std::string(72, '\x01');
  EXPECT_FALSE(decode_host_links(encode_host_links(bad)).ok());
  bad = links;
  bad.pcie[0].name = std::string(24, '\xff');
  EXPECT_FALSE(decode_host_links(encode_host_links(bad)).ok());
  std::vector<std::byte> longer = encode_host_links(links);
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode_host_links(longer).ok());
  // For any bytes, decoding does not read past their end, and keeps nothing that check() refuses.
  std::mt19937 random(7);
  const std::vector<std::byte> good = encode_host_links(links);
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::byte> bytes = good;
    for (uint64_t k = 1 + random() % 3; k > 0; --k) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    Result<HostLinks> read = decode_host_links(bytes);
    if (!read.ok()) continue;
    const RankLinks rank{.host = {}, .label = "h", .cluster = "", .transports = 1, .links = &*read};
    EXPECT_TRUE(estimate_links({&rank, 1}, {}).ok());
  }
}

HostId host_id(int number) {
  HostId id{};
  id[0] = static_cast<std::byte>(number + 1);
  id[1] = static_cast<std::byte>((number + 1) >> 8);
  return id;
}

// Returns two NICs with one rate behind one PCIe link.
HostLinks two_nics(uint32_t mbit_per_s, uint32_t mbyte_per_s) {
  return {.pcie = {{"0000:01:00.0", mbyte_per_s}},
          .nics = {{"eth0", mbit_per_s, {0}}, {"eth1", mbit_per_s, {0}}},
          .devices = {{0, 1}}};
}

constexpr EstimatedTransport kTransports[] = {
    {.within_host = true, .latency_ns = 200, .bytes_per_s = 20'000'000'000},
    {.within_host = false, .latency_ns = 10'000, .bytes_per_s = 4'000'000'000},
    {.within_host = false, .latency_ns = 3'000, .bytes_per_s = 8'000'000'000}};

std::vector<std::string> crossed(const LinkModel& model, const Route& way) {
  std::vector<std::string> names;
  for (const int index : way.resources) {
    names.push_back(model.resources[static_cast<size_t>(index)].name);
  }
  return names;
}

TEST(LinkEstimate, NicsAndTheirSharedLinkLimitRoutes) {
  const HostLinks links = two_nics(25'000, 4'000);
  std::vector<RankLinks> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.push_back({host_id(rank / 2), rank < 2 ? "b" : "a", "", 0b011, &links});
  }
  const LinkEstimate estimate = estimate_links(ranks, kTransports).value();
  const LinkModel& model = estimate.model;
  EXPECT_TRUE(check(model).ok());
  EXPECT_THAT(estimate.host_of, ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(model.clusters, ElementsAre("all hosts"));
  const Route inside = route(model, {"b", ""}, {"b", ""}).value();
  EXPECT_EQ(inside.latency_ns, 200U);
  EXPECT_EQ(rate_alone(model, inside), 20'000'000'000U);
  EXPECT_THAT(crossed(model, inside), ElementsAre("b memory"));
  const Route first = route(model, {"b", "eth0"}, {"a", "eth0"}).value();
  const Route second = route(model, {"b", "eth1"}, {"a", "eth1"}).value();
  EXPECT_THAT(crossed(model, first), ElementsAre("b pcie 0000:01:00.0 out", "b eth0 out",
                                                 "a eth0 in", "a pcie 0000:01:00.0 in"));
  EXPECT_EQ(first.latency_ns, 10'000U);
  EXPECT_EQ(first.single_bytes_per_s, 4'000'000'000U);
  EXPECT_EQ(rate_alone(model, first), 3'125'000'000U);
  EXPECT_THAT(rates(model, {first, second}), Each(2'000'000'000U));
  // The two directions do not share.
  const Route back = route(model, {"a", "eth0"}, {"b", "eth0"}).value();
  EXPECT_THAT(rates(model, {first, back}), Each(3'125'000'000U));
}

TEST(LinkEstimate, UnknownRatesDoNotLimitRoutes) {
  const HostLinks links = two_nics(0, 4'000);
  const std::vector<RankLinks> ranks{{host_id(0), "a", "", 0b110, &links},
                                     {host_id(1), "b", "", 0b110, nullptr}};
  const LinkEstimate estimate = estimate_links(ranks, kTransports).value();
  const Route way = route(estimate.model, {"a", ""}, {"b", ""}).value();
  EXPECT_THAT(crossed(estimate.model, way), ElementsAre("a pcie 0000:01:00.0 out"));
  EXPECT_THAT(crossed(estimate.model, route(estimate.model, {"b", ""}, {"a", ""}).value()),
              ElementsAre("a pcie 0000:01:00.0 in"));
  EXPECT_EQ(way.single_bytes_per_s, 8'000'000'000U);
  // No common transport joins them, and no transport reports a rate.
  const LinkEstimate none = estimate_links(ranks, {}).value();
  const Route unknown = route(none.model, {"a", ""}, {"b", ""}).value();
  EXPECT_EQ(unknown.latency_ns, 0U);
  EXPECT_EQ(unknown.single_bytes_per_s, 0U);
  EXPECT_THAT(none.model.hosts[0].inside, IsEmpty());
}

TEST(LinkEstimate, PathsUseTheFastestTransportThatAllRanksHave) {
  const HostLinks links = two_nics(400'000, 64'000);
  std::vector<RankLinks> ranks{{host_id(0), "a", "x", 0b110, &links},
                               {host_id(1), "b", "x", 0b110, &links},
                               {host_id(2), "c", "y", 0b110, &links},
                               {host_id(3), "d", "", 0b010, &links},
                               {host_id(4), "e", "", 0b111, &links}};
  const LinkModel model = estimate_links(ranks, kTransports).value().model;
  EXPECT_THAT(model.clusters, ElementsAre("not declared", "x", "y"));
  EXPECT_EQ(model.path(1, 2).latency_ns, 3'000U);
  EXPECT_EQ(model.path(1, 1).latency_ns, 3'000U);
  EXPECT_EQ(model.path(0, 1).latency_ns, 10'000U);
  EXPECT_EQ(model.path(0, 0).latency_ns, 10'000U);
  EXPECT_FALSE(model.path(2, 2).exists);
}

TEST(LinkEstimate, HostsWithEqualLabelsAreDistinguished) {
  const std::vector<RankLinks> ranks{
      {host_id(5), "node", "", 1, nullptr},   {host_id(3), "node", "", 1, nullptr},
      {host_id(1), "node#2", "", 1, nullptr}, {host_id(5), "node", "", 1, nullptr},
      {host_id(5), "node", "c", 1, nullptr},  {host_id(2), "", "", 1, nullptr}};
  const LinkEstimate estimate = estimate_links(ranks, kTransports).value();
  std::vector<std::string> labels;
  for (const int host : estimate.host_of) {
    labels.push_back(estimate.model.hosts[static_cast<size_t>(host)].label);
  }
  EXPECT_THAT(labels, ElementsAre("node", "node#3", "node#2", "node", "node#4", "unnamed"));
  // Thousands of hosts with one label take little time.
  std::vector<RankLinks> many;
  for (int i = 0; i < 4096; ++i) many.push_back({host_id(i), "localhost", "", 1, nullptr});
  const LinkEstimate large = estimate_links(many, kTransports).value();
  EXPECT_THAT(large.model.hosts, SizeIs(4096));
  EXPECT_EQ(large.model.hosts[static_cast<size_t>(large.host_of[4095])].label, "localhost#4096");
}

TEST(LinkEstimate, DescriptionsByRanksOfOneHostAreMerged) {
  const HostLinks one{.pcie = {{"p", 1'000}},
                      .nics = {{"eth0", 8'000, {}}, {"eth1", 8'000, {0}}},
                      .devices = {{0}}};
  const HostLinks other{.pcie = {{"q", 2'000}, {"p", 9'000}},
                        .nics = {{"eth2", 8'000, {0, 1}}, {"eth0", 1, {}}},
                        .devices = {{0}}};
  const std::vector<RankLinks> ranks{{host_id(0), "a", "", 2, &one},
                                     {host_id(0), "a", "", 2, &other},
                                     {host_id(1), "b", "", 2, nullptr}};
  const LinkModel model = estimate_links(ranks, kTransports).value().model;
  ASSERT_THAT(model.hosts[0].nics, SizeIs(3));
  EXPECT_EQ(model.hosts[0].nics[2].name, "eth2");
  EXPECT_EQ(rate_alone(model, route(model, {"a", "eth0"}, {"b", ""}).value()), 1'000'000'000U);
  EXPECT_THAT(crossed(model, route(model, {"a", "eth2"}, {"b", ""}).value()),
              ElementsAre("a pcie q out", "a pcie p out", "a eth2 out"));
  EXPECT_THAT(crossed(model, route(model, {"a", "eth1"}, {"b", ""}).value()),
              ElementsAre("a pcie p out", "a eth1 out"));
}

TEST(LinkEstimate, RandomLabelsGiveAValidModel) {
  std::mt19937 random(3);
  const HostLinks links = two_nics(1'000, 1'000);
  const auto text = [&] {
    std::string result(random() % 3 == 0 ? random() % 300 : random() % 3, ' ');
    for (char& c : result) c = static_cast<char>(random() % 4 == 0 ? random() : 'a' + random() % 2);
    return result;
  };
  for (int i = 0; i < 300; ++i) {
    std::vector<std::pair<std::string, std::string>> names;
    for (uint64_t k = 1 + random() % 12; k > 0; --k) names.emplace_back(text(), text());
    names.emplace_back("\xc3\xa4" + std::string(125, 'x') + "\xc3\xa4", "");
    std::vector<RankLinks> ranks;
    for (const auto& [label, cluster] : names) {
      ranks.push_back({host_id(static_cast<int>(random() % 3)), label, cluster, random(), &links});
    }
    Result<LinkEstimate> estimate = estimate_links(ranks, kTransports);
    ASSERT_TRUE(estimate.ok()) << estimate.status().text();
    EXPECT_TRUE(check(estimate->model).ok());
    Result<LinkModel> back = parse_link_model(to_json(estimate->model));
    ASSERT_TRUE(back.ok()) << back.status().text();
    EXPECT_EQ(hash_of(*back), hash_of(estimate->model));
  }
}

TEST(LinkEstimate, ErrorNamesTheExceededLimit) {
  const auto text = [](size_t hosts, size_t clusters, const HostLinks& links) {
    std::vector<std::string> names;
    for (size_t i = 0; i < hosts; ++i) names.push_back(std::to_string(i));
    std::vector<RankLinks> ranks;
    for (size_t i = 0; i < hosts; ++i) {
      ranks.push_back({host_id(static_cast<int>(i)), names[i], names[i % clusters], 2, &links});
    }
    Result<LinkEstimate> estimate = estimate_links(ranks, kTransports);
    return estimate.ok() ? std::string() : std::string(estimate.status().text());
  };
  const HostLinks none;
  EXPECT_EQ(text(kMaxLinkHosts, kMaxLinkClusters, none), "");
  EXPECT_THAT(text(kMaxLinkHosts + 1, 1, none), HasSubstr("4097 hosts; 4096 are the most"));
  EXPECT_THAT(text(129, 129, none), HasSubstr("129 clusters; 128 are the most"));
  // Eight NICs on each of 1500 hosts: the PCIe links are left out, unless they limit.
  HostLinks eight;
  for (uint8_t i = 0; i < 8; ++i) {
    eight.pcie.push_back({fmt::format("p{}", i), 64'000});
    eight.nics.push_back({fmt::format("n{}", i), 400'000, {i}});
  }
  eight.devices = {{0}};
  EXPECT_EQ(text(1500, 1, eight), "");
  for (PcieLink& link : eight.pcie) link.mbyte_per_s = 32'000;
  EXPECT_THAT(text(1500, 1, eight), HasSubstr("resources; 32768 are the most"));
}

}  // namespace
}  // namespace hetcomm::topology
