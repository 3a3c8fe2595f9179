// In a round, the store and the ranks that ask it determine which ranks of a job are left.
//
// A round has a name. Every live rank asks repeatedly and reports which others it knows to be lost.
// Once each rank has asked or was reported lost by one that asked, the round is decided: the ranks
// that are not lost are left, and every rank that asks gets this answer, however late. A rank that
// was reported lost is lost, whether it asks or not. If one rank abandons a round, the round has
// failed for all.
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
  // Number of rounds that are remembered. The oldest is forgotten first.
  static constexpr size_t kRounds = 64;

  // Handles a kSurvivors request. Returns the encoded set of ranks that are left, or an empty list
  // while the round is undecided.
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
