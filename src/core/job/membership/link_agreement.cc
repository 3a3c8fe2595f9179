#include "src/core/job/membership/link_agreement.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include <fmt/core.h>

#include "src/base/text.h"
#include "src/bootstrap/digest_exchange.h"
#include "src/core/job/membership/variables.h"
#include "src/system/small_file.h"
#include "topology/links/link_model_json.h"

namespace hetcomm {
Result<LinkFile> read_link_file(const std::string& path) {
  const std::string what = fmt::format("HETCOMM_LINK_MODEL={}", path);
  Result<SmallFile> file = read_small_file(path, topology::kMaxLinkModelBytes, what);
  if (!file.ok()) return file.status();
  const std::string& text = file.value().contents;
  const auto failure = [&](const Status& status) {
    return Status(status.code(), fmt::format("{} {}", what, status.text()));
  };
  LinkFile links;
  if (topology::claims_to_be_link_model(text)) {
    Result<topology::LinkModel> model = topology::parse_link_model(text);
    if (!model.ok()) return failure(model.status());
    links.model = std::move(model).value();
    return links;
  }
  Result<TransportCosts> costs = TransportCosts::parse(text);
  if (!costs.ok()) return failure(costs.status());
  links.costs = std::move(costs).value();
  return links;
}

Result<LinkFile> read_link_file(const Config& config) {
  const std::string_view path = config.text(variable::kLinkModel);
  return path.empty() ? LinkFile() : read_link_file(std::string(path));
}

Result<std::string> own_host_label(const Config& config) {
  std::string label(config.text(variable::kHostLabel));
  if (label.size() > topology::kMaxLinkName || printable(label) != label) {
    return Status(Code::kInvalidArgument,
                  fmt::format("HETCOMM_HOST_LABEL has {} characters: choose a name of at most {} "
                              "that can be printed",
                              label.size(), topology::kMaxLinkName));
  }
  if (!label.empty()) return label;
  char name[topology::kMaxLinkName + 1] = "";
  if (gethostname(name, sizeof(name) - 1) != 0) return std::string();
  return printable(name).substr(0, topology::kMaxLinkName);
}

Result<topology::LinkModel> hand_out_link_model(Bootstrap& bootstrap, const std::string& scope,
                                                const std::string& text, uint64_t deadline_ns) {
  auto told = hand_down(bootstrap, scope + "/links", std::as_bytes(std::span(text)), deadline_ns);
  if (!told.ok()) return told.status();
  if (told->size() > topology::kMaxLinkModelBytes) {
    return Status(Code::kBootstrapFailed, "rank 0's link model is too long");
  }
  Result<topology::LinkModel> model = topology::parse_link_model(
      std::string_view(reinterpret_cast<const char*>(told->data()), told->size()));
  if (!model.ok()) return model.status().annotate("rank 0's link model");
  return model;
}

Status check_ranks(const topology::LinkModel& model, const PeerDirectory& peers) {
  // By cluster of the model: the first rank in that cluster that declares a cluster.
  std::map<int, int> ranks;
  // By declared name: the model's cluster of the first rank that declares the name, and that rank.
  std::map<std::string, std::pair<int, int>> names;
  for (int rank = 0; rank < peers.size(); ++rank) {
    const std::string& label = peers.host_label(rank);
    const std::string& cluster_name = peers.cluster(rank);
    const int host = model.find_host(label);
    if (host < 0) {
      return {Code::kInvalidArgument,
              fmt::format("rank {} runs on host '{}', of which rank 0's HETCOMM_LINK_MODEL says "
                          "nothing: measure it anew, or set HETCOMM_HOST_LABEL",
                          rank, printable(label))};
    }
    if (cluster_name.empty()) continue;
    const int cluster = model.hosts[static_cast<size_t>(host)].cluster;
    const int first = ranks.try_emplace(cluster, rank).first->second;
    const auto& [other, namesake] = names.try_emplace(cluster_name, cluster, rank).first->second;
    if (peers.cluster(first) == cluster_name && other == cluster) continue;
    const bool split = peers.cluster(first) != cluster_name;
    return {Code::kInvalidArgument,
            fmt::format("ranks {} and {} have HETCOMM_CLUSTER='{}' and '{}', and rank 0's "
                        "HETCOMM_LINK_MODEL has their hosts in {}: set it as the model does, or "
                        "leave it out",
                        split ? first : namesake, rank,
                        printable(peers.cluster(split ? first : namesake)), printable(cluster_name),
                        split ? "one cluster" : "different clusters")};
  }
  return {};
}

}  // namespace hetcomm
