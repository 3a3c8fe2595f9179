// Ranks estimate each other's hosts if the links have not been measured:
//   - a link between hosts is no faster than its NICs together, and no faster than its transport;
//   - for NICs with unknown rates, and for ranks on one host, the transports determine the figures;
//   - clusters are the declared ones, or else the hosts;
//   - a route uses the device's NIC, or the first NIC if the model lacks it;
//   - the path from a NIC is as slow as the slowest element that it certainly crosses;
//   - a job that is too large for a model has none, and reports why.
#include "src/core/job/membership/peer_directory.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "topology/links/link_model_json.h"

namespace hetcomm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr LinkCost kShm{.latency_ns = 200, .bytes_per_s = 20'000'000'000};
constexpr LinkCost kTcp{.latency_ns = 10'000, .bytes_per_s = 4'000'000'000};

// Returns a host with |nics| of one rate. Device 0 uses two of them, and device 1 the last one.
topology::HostLinks nics_of_rate(size_t nics, uint32_t mbit_per_s) {
  topology::HostLinks links;
  for (size_t i = 0; i < nics; ++i)
    links.nics.push_back({"eth" + std::to_string(i), mbit_per_s, {}});
  links.devices = {{0}, {static_cast<uint8_t>(nics - 1)}};
  if (nics > 1) links.devices[0].push_back(1);
  return links;
}

PeerInfo rank_on(int host, const topology::HostLinks& links, const std::string& cluster = "") {
  PeerInfo info;
  info.host[0] = static_cast<std::byte>(host + 1);
  info.host[1] = static_cast<std::byte>(host >> 8);
  info.host_label = "h" + std::to_string(host);
  info.cluster = cluster;
  info.device_count = 3;
  info.host_links = topology::encode_host_links(links);
  info.offers.push_back(
      {.name = "self", .within_host = true, .link = {}, .port = {}, .contact = {}});
  info.offers.push_back(
      {.name = "shm", .within_host = true, .link = kShm, .port = {}, .contact = {}});
  info.offers.push_back(
      {.name = "tcp", .within_host = false, .link = kTcp, .port = {}, .contact = {}});
  return info;
}

PeerDirectory without_model(const std::vector<PeerInfo>& ranks) {
  std::vector<RankCard> cards;
  for (const PeerInfo& info : ranks) {
    RankProfile profile;
    profile.info = info;
    cards.push_back(card_of(profile));
  }
  PeerDirectory peers(static_cast<int>(ranks.size()));
  peers.set(gather(0, cards).value());
  return peers;
}

PeerDirectory directory_of(const std::vector<PeerInfo>& ranks) {
  PeerDirectory peers = without_model(ranks);
  peers.estimate_link_model();
  return peers;
}

TEST(EstimatedLinks, NicsLimitTheRateBetweenHosts) {
  const auto across = [](size_t one, size_t other, uint32_t mbit_per_s) {
    const PeerDirectory peers = directory_of({rank_on(0, nics_of_rate(one, mbit_per_s)),
                                              rank_on(0, nics_of_rate(one, mbit_per_s)),
                                              rank_on(1, nics_of_rate(other, mbit_per_s))});
    const RankPlacement placement = peers.placement({0, 1, 2});
    EXPECT_EQ(placement.inside, kShm);
    EXPECT_THAT(placement.cluster_of, ElementsAre(0, 0, 1));
    EXPECT_EQ(placement.across.latency_ns, kTcp.latency_ns);
    return placement.across.bytes_per_s;
  };
  EXPECT_EQ(across(1, 1, 1'000), 125'000'000U);
  EXPECT_EQ(across(2, 2, 1'000), 250'000'000U);
  EXPECT_EQ(across(2, 1, 1'000), 125'000'000U);
  EXPECT_EQ(across(3, 3, 1'000), 250'000'000U);
  EXPECT_EQ(across(1, 1, 400'000), kTcp.bytes_per_s);
  EXPECT_EQ(across(1, 1, 0), kTcp.bytes_per_s);
}

TEST(EstimatedLinks, ClustersWithinAHostUseItsTransportCosts) {
  const topology::HostLinks slow = nics_of_rate(1, 10);
  const PeerDirectory peers =
      directory_of({rank_on(0, slow, "a"), rank_on(0, slow, "b"), rank_on(0, slow, "a")});
  const RankPlacement placement = peers.placement({0, 1, 2});
  EXPECT_THAT(placement.cluster_of, ElementsAre(0, 1, 0));
  EXPECT_EQ(placement.inside, kShm);
  EXPECT_EQ(placement.across, kTcp);
}

TEST(EstimatedLinks, DeclaredClustersOverrideHosts) {
  const topology::HostLinks links = nics_of_rate(1, 1'000);
  const PeerDirectory peers = directory_of({rank_on(0, links, "a"), rank_on(1, links, "a"),
                                            rank_on(2, links, "b"), rank_on(3, links, "b")});
  EXPECT_THAT(peers.placement({0, 1, 2, 3}).cluster_of, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(peers.link_model()->clusters, ElementsAre("a", "b"));
}

TEST(EstimatedLinks, RoutesUseTheNicsOfDevices) {
  const topology::HostLinks links = nics_of_rate(3, 1'000);
  const std::vector<PeerInfo> ranks{rank_on(0, links), rank_on(1, links)};
  PeerDirectory peers = directory_of(ranks);
  const auto crossed = [&](size_t from, size_t to) {
    std::vector<std::string> names;
    for (const int index : peers.route({0, from}, {1, to}).resources) {
      names.push_back(peers.link_model()->resources[static_cast<size_t>(index)].name);
    }
    return names;
  };
  EXPECT_THAT(crossed(0, 0), ElementsAre("h0 eth0 out", "h1 eth0 in"));
  EXPECT_THAT(crossed(1, 0), ElementsAre("h0 eth2 out", "h1 eth0 in"));
  EXPECT_THAT(crossed(0, 1), ElementsAre("h0 eth0 out", "h1 eth2 in"));
  // Device 2 has described no NICs for itself.
  EXPECT_THAT(crossed(2, 2), ElementsAre("h0 eth0 out", "h1 eth0 in"));
  EXPECT_EQ(peers.device_count(1), 3U);
  EXPECT_THAT(peers.explain_link(0, 1), HasSubstr("estimated"));
  // A measured model may lack the NICs' names.
  peers = without_model(ranks);
  peers.set_link_model(topology::parse_link_model(R"({
    "format": "hetcomm link model", "version": 1,
    "resources": [{"name": "a", "kind": "nic", "bytes_per_s": 1000},
                  {"name": "b", "kind": "nic", "bytes_per_s": 2000}],
    "clusters": [{"name": "all"}],
    "hosts": [{"label": "h0", "cluster": "all", "nics": [{"out": ["a"]}]},
              {"label": "h1", "cluster": "all",
               "nics": [{"name": "x", "in": ["a"]}, {"name": "eth2", "in": ["b"]}]}],
    "paths": [{"from": "all", "to": "all", "latency_ns": 5}]})")
                           .value());
  EXPECT_THAT(crossed(1, 0), ElementsAre("a", "a"));
  EXPECT_THAT(crossed(1, 1), ElementsAre("a", "b"));
  EXPECT_EQ(peers.placement({0, 1}).across, LinkCost::bounded(5, 1000));
}

// A pair of ranks uses the model until it has its own measurements.
TEST(WayTo, IsLimitedByTheSlowestResource) {
  PeerDirectory peers = without_model({rank_on(0, {}), rank_on(1, {}), rank_on(2, {})});
  EXPECT_FALSE(peers.way_to(1, 0, "eth0"));
  peers.set_link_model(topology::parse_link_model(R"({
    "format": "hetcomm link model", "version": 1,
    "resources": [{"name": "slow", "kind": "nic", "bytes_per_s": 2000},
                  {"name": "quick", "kind": "nic", "bytes_per_s": 9000},
                  {"name": "trunk", "kind": "trunk", "bytes_per_s": 5000}],
    "clusters": [{"name": "all"}],
    "hosts": [{"label": "h0", "cluster": "all",
               "nics": [{"name": "eth0", "out": ["slow"]}, {"name": "eth1", "out": ["quick"]}]},
              {"label": "h1", "cluster": "all", "nics": [{"name": "x", "in": ["quick"]}]},
              {"label": "h2", "cluster": "all",
               "nics": [{"name": "x", "in": ["slow"]}, {"name": "y", "in": ["quick"]}]}],
    "paths": [{"from": "all", "to": "all", "latency_ns": 70, "resources": ["trunk"]}]})")
                           .value());
  EXPECT_EQ(peers.way_to(1, 0, "eth0"), LinkCost::bounded(70, 2000));
  EXPECT_EQ(peers.way_to(1, 0, "eth1"), LinkCost::bounded(70, 5000));
  EXPECT_EQ(peers.way_to(1, 0, "eth2"), LinkCost::bounded(70, 5000)) << "an unknown NIC";
  EXPECT_EQ(peers.way_to(2, 0, "eth1"), LinkCost::bounded(70, 5000)) << "one of two NICs there";
  EXPECT_FALSE(peers.way_to(0, 0, "eth0")) << "within a host";
}

TEST(EstimatedLinks, OversizedJobHasNoEstimateAndReportsWhy) {
  std::vector<PeerInfo> ranks;
  const topology::HostLinks links = nics_of_rate(1, 1'000);
  for (int host = 0; host < 129; ++host) {
    ranks.push_back(rank_on(host, links, "c" + std::to_string(host)));
  }
  const PeerDirectory peers = directory_of(ranks);
  EXPECT_EQ(peers.link_model(), nullptr);
  EXPECT_EQ(peers.link_model_hash(), 0U);
  EXPECT_THAT(std::string(peers.link_model_status().text()), HasSubstr("129 clusters"));
  EXPECT_EQ(peers.placement({0, 1}).across, kTcp);
  EXPECT_EQ(peers.explain_link(0, 1), "");
}

// Returns a description by a rank with one located device, which uses the NICs |uses| of four.
topology::HostLinks with_device(const std::vector<uint8_t>& uses) {
  topology::HostLinks links = nics_of_rate(4, 1'000);
  links.devices = {{0, 1, 2, 3}, uses};
  links.located_devices = 2;
  return links;
}

// Returns whether device 1 of |rank| leaves each of the four NICs to others.
std::vector<bool> left(const PeerDirectory& peers, int rank, const topology::HostLinks& links) {
  std::vector<bool> result;
  for (const topology::HostNic& nic : links.nics) {
    result.push_back(peers.own_nics(rank).is_left_by(links, 1, nic.name));
  }
  return result;
}

TEST(OwnNicsOfHosts, NicsAreDividedWithinEachHost) {
  const topology::HostLinks first = with_device({0, 1, 2});
  const topology::HostLinks second = with_device({1, 0, 2});
  const topology::HostLinks third = with_device({2, 1, 0});
  const PeerDirectory peers =
      without_model({rank_on(0, first), rank_on(1, first), rank_on(0, second), rank_on(1, third)});
  EXPECT_THAT(left(peers, 0, first), ElementsAre(false, true, false, false));
  EXPECT_THAT(left(peers, 1, first), ElementsAre(false, false, true, false));
  EXPECT_THAT(left(peers, 2, second), ElementsAre(true, false, false, false));
  EXPECT_THAT(left(peers, 3, third), ElementsAre(true, false, false, false));
}

TEST(OwnNicsOfHosts, ContainersOfOneHostDivideTheirNicsApart) {
  const topology::HostLinks first = with_device({0, 1, 2});
  const topology::HostLinks second = with_device({1, 0, 2});
  PeerInfo container = rank_on(0, second);
  container.host_label = "container";
  const PeerDirectory peers = without_model({rank_on(0, first), container});
  EXPECT_THAT(left(peers, 0, first), ElementsAre(false, false, false, false));
}

// Large jobs drop some descriptions.
TEST(OwnNicsOfHosts, HostWithARankThatTellsNothingDividesNothing) {
  const topology::HostLinks first = with_device({0, 1, 2});
  const topology::HostLinks second = with_device({1, 0, 2});
  const PeerDirectory peers =
      without_model({rank_on(0, first), rank_on(0, second), rank_on(0, topology::HostLinks{})});
  EXPECT_THAT(left(peers, 0, first), ElementsAre(false, false, false, false));
}

}  // namespace
}  // namespace hetcomm
