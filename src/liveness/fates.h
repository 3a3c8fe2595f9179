// Fates holds the fates of all ranks, as far as this rank knows them.
//
// A fate holds for all ranks and is told as news. The exception is a death that holds for this rank
// only. Fates only go forward: alive, dead, left. The fate of another incarnation is not valid.
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
  // |incarnations| has one entry for each rank. Fates that hold for all ranks are added to |news|.
  Fates(std::shared_ptr<const std::vector<uint64_t>> incarnations, News& news)
      : incarnations_(std::move(incarnations)),
        news_(news),
        fates_(incarnations_->size(), Fate::kAlive) {}

  Fate of(int rank) const { return fates_[static_cast<size_t>(rank)]; }
  bool alive(int rank) const { return of(rank) == Fate::kAlive; }
  int count_alive() const;
  // Returns the number of deaths that hold for this rank only.
  int count_dead_here() const { return static_cast<int>(dead_here_.size()); }
  bool is_dead_here(int rank) const { return dead_here_.count(rank) != 0; }
  // Returns why |rank| is dead, as far as this rank knows.
  std::string verdict(int rank) const;
  // Returns the frame that tells the fate of |rank|.
  Frame frame(int rank, Fate fate, const std::string& why) const;

  // Records that |rank| is dead for all ranks, or for this one only.
  void die(int rank, std::string why);
  void die_here(int rank, std::string why);
  // Records that |rank|, which is this rank, leaves.
  void leave(int rank);
  // Returns whether |told| is a fate of an incarnation of this job.
  bool is_valid(const Frame& told) const;
  // Records a valid fate that |from| has told. Returns false if it was known.
  bool learn(const Frame& told, int from);

 private:
  void set(int rank, Fate fate) { fates_[static_cast<size_t>(rank)] = fate; }

  const std::shared_ptr<const std::vector<uint64_t>> incarnations_;
  News& news_;
  std::vector<Fate> fates_;
  std::map<int, std::string> dead_here_;  // reasons of deaths that hold here only, by rank
};

}  // namespace hetcomm::liveness
