#include "src/liveness/fates.h"

#include <algorithm>
#include <utility>

namespace hetcomm::liveness {

int Fates::count_alive() const {
  return static_cast<int>(std::count(fates_.begin(), fates_.end(), Fate::kAlive));
}

std::string Fates::verdict(int rank) const {
  const auto here = dead_here_.find(rank);
  if (here != dead_here_.end()) return here->second;
  for (uint64_t i = 0; i < news_.end(); ++i) {
    const Frame& frame = news_.at(i).frame;
    if (frame.type == FrameType::kFate && frame.subject == rank) return frame.text;
  }
  return {};
}

Frame Fates::frame(int rank, Fate fate, const std::string& why) const {
  return {.type = FrameType::kFate,
          .code = static_cast<uint8_t>(fate),
          .subject = rank,
          .value = (*incarnations_)[static_cast<size_t>(rank)],
          .text = why};
}

void Fates::die(int rank, std::string why) {
  news_.add(frame(rank, Fate::kDead, why), -1);
  set(rank, Fate::kDead);
}

void Fates::die_here(int rank, std::string why) {
  dead_here_.emplace(rank, std::move(why));
  set(rank, Fate::kDead);
}

void Fates::leave(int rank) {
  set(rank, Fate::kLeft);
  news_.add(frame(rank, Fate::kLeft, {}), -1);
}

bool Fates::is_valid(const Frame& told) const {
  const auto fate = static_cast<Fate>(told.code);
  return told.value == (*incarnations_)[static_cast<size_t>(told.subject)] &&
         (fate == Fate::kDead || fate == Fate::kLeft);
}

bool Fates::learn(const Frame& told, int from) {
  if (!news_.add(told, from)) return false;
  // The news that a rank is dead can arrive after the news that it has left.
  set(told.subject, std::max(of(told.subject), static_cast<Fate>(told.code)));
  return true;
}

}  // namespace hetcomm::liveness
