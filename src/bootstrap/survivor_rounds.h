// In a round, the store determines which ranks of a job have survived.
//
// Each round has a name. Every live rank queries the store repeatedly and reports which others it
// considers lost. The round is decided once each rank has sent a query or was reported lost by one
// that did. The ranks that were not reported lost are the survivors, and every rank that queries
// gets this answer, however late. A rank that was reported lost counts as lost even if it sends
// queries. If one rank sends its last query before the round is decided, the round fails for all.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/bootstrap/store_protocol.h"

namespace hetcomm {

class SurvivorRounds {
 public:
  // The number of rounds that are remembered. The oldest is forgotten first.
  static constexpr size_t kRounds = 64;

  // Handles a kSurvivors request. Returns the encoded set of surviving ranks, or an empty list
  // while the round is undecided. Fails if the round has failed or the rank was reported lost.
  Result<std::vector<std::byte>> ask(const StoreRequest& request);

 private:
  struct Round {
    std::vector<bool> came;
    std::vector<bool> lost;
    bool decided = false;
    Status failed;
  };

  Round& find(const std::string& scope, size_t size);
  static Status join(Round& round, const StoreRequest& request);
  static std::vector<int> missing_from(const Round& round);

  std::map<std::string, Round> rounds_;
  std::deque<std::string> order_;
};

}  // namespace hetcomm
