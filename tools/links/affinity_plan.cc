#include "tools/links/affinity_plan.h"

#include <algorithm>
#include <map>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

namespace tools {
namespace {

using Json = nlohmann::ordered_json;

// Returns the class of |distance| as a number. The nearest class is 0, and unknown ones are
// farthest.
size_t class_of(const std::string& distance) {
  constexpr const char* kClasses[] = {"switch", "root complex", "NUMA node"};
  const auto* const found = std::find(std::begin(kClasses), std::end(kClasses), distance);
  return static_cast<size_t>(found - std::begin(kClasses));
}

std::vector<NicOption> options_of(const Json& user) {
  std::vector<NicOption> nics;
  for (const Json& nic : user.value("nics", Json::array())) {
    nics.push_back({nic.value("name", ""), nic.value("distance", "other")});
  }
  return nics;
}

// Returns the ranks on each host. Hosts are in the order of their first ranks.
std::vector<std::vector<int>> ranks_by_host(const std::vector<std::string>& hosts) {
  std::map<std::string, size_t> indices;
  std::vector<std::vector<int>> ranks;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto [at, added] = indices.try_emplace(hosts[rank], ranks.size());
    if (added) ranks.emplace_back();
    ranks[at->second].push_back(static_cast<int>(rank));
  }
  return ranks;
}

}  // namespace

DeviceNics device_nics(const std::string& topology, const std::string& pci_address, size_t local) {
  const Json document = Json::parse(topology, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) return {};
  const Json affinity = document.value("affinity", Json::object());
  const Json accelerators = affinity.value("accelerators", Json::array());
  const Json nodes = affinity.value("numa_nodes", Json::array());
  for (size_t i = 0; i < accelerators.size(); ++i) {
    const std::string address = accelerators[i].value("address", "");
    const bool is_own =
        pci_address.empty() ? i == local % accelerators.size() : address == pci_address;
    if (is_own) return {fmt::format("acc{} {}", i, address), options_of(accelerators[i])};
  }
  if (nodes.empty()) return {};
  const Json& node = nodes[local % nodes.size()];
  return {fmt::format("numa{}", node.value("number", 0)), options_of(node)};
}

size_t far_choice(const DeviceNics& device) {
  const auto farther = [](const NicOption& a, const NicOption& b) {
    return class_of(a.distance) < class_of(b.distance);
  };
  const auto farthest = std::max_element(device.nics.begin(), device.nics.end(), farther);
  return static_cast<size_t>(farthest - device.nics.begin());
}

std::vector<RankPair> affinity_pairs(const std::vector<std::string>& hosts) {
  const std::vector<std::vector<int>> ranks = ranks_by_host(hosts);
  std::vector<RankPair> pairs;
  if (ranks.size() == 1) {
    for (size_t i = 0; i + 1 < ranks[0].size(); i += 2) {
      pairs.emplace_back(ranks[0][i], ranks[0][i + 1]);
    }
    return pairs;
  }
  for (size_t host = 0; host + 1 < ranks.size(); host += 2) {
    const size_t both = std::min(ranks[host].size(), ranks[host + 1].size());
    for (size_t i = 0; i < both; ++i) pairs.emplace_back(ranks[host][i], ranks[host + 1][i]);
  }
  return pairs;
}

std::vector<size_t> local_numbers(const std::vector<std::string>& hosts) {
  std::vector<size_t> numbers(hosts.size());
  for (const std::vector<int>& ranks : ranks_by_host(hosts)) {
    for (size_t i = 0; i < ranks.size(); ++i) numbers[static_cast<size_t>(ranks[i])] = i;
  }
  return numbers;
}

}  // namespace tools
