// Fates holds the fate of each rank (alive, dead or left), as far as this rank knows it.
//
// A fate normally applies to all ranks and is spread as news, but a death can also apply to this
// rank only. A fate changes from alive to dead or left, or from dead to left, and never back. Fates
// of other incarnations are ignored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/liveness/frame.h"
#include "src/liveness/news.h"

namespace hetcomm::liveness {

class Fates {
 public:
  // |incarnations| has one entry for each rank. Fates that apply to all ranks are added to |news|.
  Fates(std::shared_ptr<const std::vector<uint64_t>> incarnations, News& news)
      : incarnations_(std::move(incarnations)),
        news_(news),
        fates_(incarnations_->size(), Fate::kAlive) {}

  Fate of(int rank) const { return fates_[static_cast<size_t>(rank)]; }
  bool alive(int rank) const { return of(rank) == Fate::kAlive; }
  int count_alive() const;
  // Returns the number of deaths that apply to this rank only.
  int count_dead_here() const { return static_cast<int>(dead_here_.size()); }
  bool is_dead_here(int rank) const { return dead_here_.count(rank) != 0; }
  // Returns why |rank| is dead, as far as this rank knows, or "" if no reason is known.
  std::string verdict(int rank) const;
  // Returns the frame that reports the fate of |rank|.
  Frame frame(int rank, Fate fate, const std::string& why) const;

  // These record that |rank| is dead, for all ranks or for this rank only.
  void die(int rank, std::string why);
  void die_here(int rank, std::string why);
  // Records that this rank, |rank|, is leaving.
  void leave(int rank);
  // Returns whether |told| is the death or goodbye of an incarnation of this job.
  bool is_valid(const Frame& told) const;
  // Records the valid fate |told|, which |from| has sent. Returns false if it was already known.
  bool learn(const Frame& told, int from);

 private:
  void set(int rank, Fate fate) { fates_[static_cast<size_t>(rank)] = fate; }

  const std::shared_ptr<const std::vector<uint64_t>> incarnations_;
  News& news_;
  std::vector<Fate> fates_;
  std::map<int, std::string> dead_here_;  // by rank: reasons for the deaths that apply here only
};

}  // namespace hetcomm::liveness
