#include "reshard/links.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/core.h>

namespace hetcomm::reshard {

Result<Links> Links::create(topology::LinkModel model, const std::vector<RankEnd>& ends) {
  Links links;
  links.model_ = std::move(model);
  std::map<RankEnd, size_t> numbers;
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    const RankEnd& end = ends[rank];
    const auto [found, added] = numbers.try_emplace(end, links.ends_.size());
    links.end_of_.push_back(found->second);
    if (!added) continue;
    const topology::LinkEnd place{end.host, end.nic};
    const Status status = topology::route(links.model_, place, place).status();
    if (!status.ok()) return status.annotate(fmt::format("rank {}", rank));
    const int host = links.model_.find_host(end.host);
    const topology::LinkHost& known = links.model_.hosts[static_cast<size_t>(host)];
    const auto nic = std::find_if(
        known.nics.begin(), known.nics.end(),
        [&](const topology::LinkNic& each) { return end.nic.empty() || each.name == end.nic; });
    links.locations_.push_back({known.cluster, host, static_cast<int>(nic - known.nics.begin())});
    links.ends_.push_back(end);
  }
  links.routes_.resize(links.ends_.size());
  return links;
}

const Links::KnownRoute& Links::known(int from, int to) const {
  if (from == to) return none_;
  const size_t first = end_of_[static_cast<size_t>(from)];
  const size_t last = end_of_[static_cast<size_t>(to)];
  const auto found = routes_[first].find(last);
  if (found != routes_[first].end()) return found->second;
  KnownRoute entry;
  // create() has checked that the model has both ends, so the route exists.
  entry.route = topology::route(model_, {ends_[first].host, ends_[first].nic},
                                {ends_[last].host, ends_[last].nic})
                    .value();
  entry.bytes_per_s = topology::rate_alone(model_, entry.route);
  return routes_[first].emplace(last, std::move(entry)).first->second;
}

}  // namespace hetcomm::reshard
