#include "src/core/bulk_chooser.h"

#include <algorithm>
#include <utility>

namespace hetcomm {
namespace {

constexpr double kNever = 1e9;  // ns per byte

}  // namespace

bool BulkChooser::prefer_get(uint64_t bytes) {
  Class& c = class_for(bytes);
  if (c.to_measure == 0) c.begin_trial_if_due(bytes);
  if (c.to_start > 0) {
    --c.to_start;
    return c.tried == kGet;
  }
  if (c.to_measure > 0 && ++c.beside_trial == kLongestTrial) {
    c.to_start = c.to_measure;
    c.beside_trial = 0;
  }
  return c.known() ? c.better() == kGet : c.tried == kGet;
}

void BulkChooser::get_failed(uint64_t bytes) {
  Class& c = class_for(bytes);
  c.ns_per_byte[kGet] = kNever;
  if (c.tried != kGet) return;
  c.to_start = 0;
  c.to_measure = 0;
  c.hasty = false;
}

void BulkChooser::measured(uint64_t bytes, bool by_get, uint64_t elapsed_ns) {
  if (bytes == 0) return;
  Class& c = class_for(bytes);
  const Way way = by_get ? kGet : kPut;
  const double sample =
      std::max(1e-6, static_cast<double>(elapsed_ns) / static_cast<double>(bytes));
  if (c.to_measure > 0 && way == c.tried) {
    c.trial[--c.to_measure] = sample;
    if (c.to_measure == 0) c.end_trial();
    return;
  }
  if (c.known() && way == c.better()) c.measured_in_use(way, sample, elapsed_ns);
}

double BulkChooser::cost(uint64_t bytes, bool by_get) const {
  const Class& c = classes_[class_of(bytes)];
  const double cost = c.ns_per_byte[by_get ? kGet : kPut];
  return c.guessed || cost == kNever ? 0 : cost;
}

size_t BulkChooser::class_of(uint64_t bytes) {
  size_t c = 0;
  for (uint64_t limit = 64 << 10; c + 1 < kClasses && bytes > limit; limit *= 4) ++c;
  return c;
}

// What is known of the next smaller sizes is a first guess, which the next trials correct.
BulkChooser::Class& BulkChooser::class_for(uint64_t bytes) {
  const size_t index = class_of(bytes);
  Class& c = classes_[index];
  if (c.known() || c.to_measure > 0 || index == 0 || !classes_[index - 1].known()) return c;
  c.ns_per_byte = classes_[index - 1].ns_per_byte;
  c.guessed = true;
  c.since_trial = kBetweenTrials;
  return c;
}

void BulkChooser::Class::begin_trial_if_due(uint64_t bytes) {
  if (!known()) {
    begin_trial(ns_per_byte[kPut] == 0 ? kPut : kGet);
    return;
  }
  if (since_trial < kBetweenTrials) return;
  const Way other = better() == kGet ? kPut : kGet;
  const double extra = std::max(0.0, ns_per_byte[other] - ns_per_byte[better()]);
  if (budget_ns >= kBurst * extra * static_cast<double>(bytes)) begin_trial(other);
}

void BulkChooser::Class::begin_trial(Way way) {
  tried = way;
  to_start = kBurst;
  to_measure = kBurst;
  since_trial = 0;
  slow_in_row = 0;
  beside_trial = 0;
  budget_ns = 0;
}

// The median: one of them may have met a thread switch, or memory that was not there yet.
void BulkChooser::Class::end_trial() {
  std::sort(trial.begin(), trial.end());
  ns_per_byte[tried] = trial[kBurst / 2];
  guessed = false;
  if (!std::exchange(hasty, false)) return;
  before_hasty = better() == tried ? kBetweenTrials : std::min(2 * before_hasty, kMostBeforeHasty);
}

void BulkChooser::Class::measured_in_use(Way way, double sample, uint64_t elapsed_ns) {
  double& average = ns_per_byte[way];
  ++since_trial;
  budget_ns += kShare * static_cast<double>(elapsed_ns);
  slow_in_row = sample > 2 * average ? slow_in_row + 1 : 0;
  if (slow_in_row < kSlowInRow) {
    average += 0.1 * (std::min(sample, 2 * average) - average);
    return;
  }
  average = sample;
  slow_in_row = 0;
  if (since_trial < before_hasty || to_measure > 0) return;
  begin_trial(way == kGet ? kPut : kGet);
  hasty = true;
}

}  // namespace hetcomm
