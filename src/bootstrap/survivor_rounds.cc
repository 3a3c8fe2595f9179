#include "src/bootstrap/survivor_rounds.h"

#include <fmt/core.h>

#include "src/bootstrap/exchange_names.h"

namespace hetcomm {

SurvivorRounds::Round& SurvivorRounds::find(const std::string& scope, size_t size) {
  if (const auto found = rounds_.find(scope); found != rounds_.end()) return found->second;
  if (order_.size() == kRounds) {
    rounds_.erase(order_.front());
    order_.pop_front();
  }
  order_.push_back(scope);
  Round& round = rounds_[scope];
  round.came.resize(size);
  round.lost.resize(size);
  return round;
}

std::vector<int> SurvivorRounds::missing_from(const Round& round) {
  std::vector<int> missing;
  for (size_t rank = 0; rank < round.came.size(); ++rank) {
    if (!round.came[rank] && !round.lost[rank]) missing.push_back(static_cast<int>(rank));
  }
  return missing;
}

// Records the query and its lost ranks, unless the round is decided. Fails if the round has failed,
// if the ranks disagree about their number, or if the requesting rank has been declared lost.
Status SurvivorRounds::join(Round& round, const StoreRequest& request) {
  const auto rank = static_cast<size_t>(request.rank);
  if (!round.failed.ok()) return round.failed;
  if (round.came.size() != static_cast<size_t>(request.size)) {
    return Status(Code::kBootstrapFailed,
                  fmt::format("rank {} says that the job has {} ranks, others say {}", request.rank,
                              request.size, round.came.size()));
  }
  if (!round.decided) {
    const std::vector<bool> lost = decode_ranks(request.value, request.size);
    for (size_t other = 0; other < lost.size(); ++other) {
      if (lost[other] && other != rank) round.lost[other] = true;
    }
    round.came[rank] = true;
    round.decided = missing_from(round).empty();
  }
  if (!round.lost[rank]) return {};
  return Status(
      Code::kBootstrapFailed,
      fmt::format("rank {} was declared lost; the others go on without it", request.rank));
}

Result<std::vector<std::byte>> SurvivorRounds::ask(const StoreRequest& request) {
  Round& round = find(request.key, static_cast<size_t>(request.size));
  HETCOMM_RETURN_IF_ERROR(join(round, request));
  if (round.decided) {
    std::vector<bool> left = round.lost;
    left.flip();
    return encode_ranks(left);
  }
  if (request.timeout_ns != 0) return std::vector<std::byte>();
  round.failed = Status(Code::kBootstrapFailed,
                        fmt::format("did not join in time, and are not known to be lost: {}",
                                    format_ranks(missing_from(round), request.size)));
  return round.failed;
}

}  // namespace hetcomm
