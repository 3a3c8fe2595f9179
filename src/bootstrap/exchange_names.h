// Names of exchanges and lists of ranks, shared by the ways to bootstrap.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace hetcomm {

// "rank 3 of 12" or "ranks 3, 7-9 of 12". |ranks| ascending; long lists are cut.
std::string format_ranks(const std::vector<int>& ranks, int size);

// Gives each use of a scope a name of its own, so that an exchange that is repeated (a communicator
// made again after a failure) never meets what an earlier one left behind. Ranks agree, because
// exchanges are collective. Long scopes are shortened by a hash.
class ScopeNames {
 public:
  std::string next(const std::string& scope);

 private:
  std::map<std::string, uint32_t> uses_;
};

}  // namespace hetcomm
