#include "reshard/links.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/core.h>

#include "src/base/text.h"

namespace hetcomm::reshard {

Result<Links> Links::create(topology::LinkModel model, const std::vector<RankEnd>& ends) {
  Links links;
  links.model_ = std::move(model);
  std::map<RankEnd, size_t> numbers;
  std::vector<const RankEnd*> different;
  std::vector<size_t> first_rank;
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    const auto [found, added] = numbers.try_emplace(ends[rank], different.size());
    if (added) {
      different.push_back(&found->first);
      first_rank.push_back(rank);
    }
    links.end_of_.push_back(found->second);
  }
  links.ends_ = different.size();
  for (size_t from = 0; from < different.size(); ++from) {
    const int host = links.model_.find_host(different[from]->host);
    if (host < 0) {
      return Status(Code::kNotFound,
                    fmt::format("rank {}: the link model has no host '{}'", first_rank[from],
                                printable(different[from]->host)));
    }
    const topology::LinkHost& known = links.model_.hosts[static_cast<size_t>(host)];
    const auto nic = std::find_if(
        known.nics.begin(), known.nics.end(),
        [&](const topology::LinkNic& each) { return each.name == different[from]->nic; });
    // An unnamed one is the first.
    const auto index = nic == known.nics.end() ? 0 : nic - known.nics.begin();
    links.locations_.push_back({known.cluster, host, static_cast<int>(index)});
    for (size_t to = 0; to < different.size(); ++to) {
      Result<topology::Route> route =
          topology::route(links.model_, {different[from]->host, different[from]->nic},
                          {different[to]->host, different[to]->nic});
      if (!route.ok()) {
        return route.status().annotate(
            from == to ? fmt::format("rank {}", first_rank[from])
                       : fmt::format("from rank {} to rank {}", first_rank[from], first_rank[to]));
      }
      links.rates_.push_back(topology::rate_alone(links.model_, route.value()));
      links.routes_.push_back(std::move(route).value());
    }
  }
  links.routes_.emplace_back();
  links.rates_.push_back(topology::kMaxBytesPerS);
  return links;
}

}  // namespace hetcomm::reshard
