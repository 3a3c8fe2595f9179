#include "src/core/peer/transfer/bulk_chooser.h"

#include <algorithm>

namespace hetcomm {

bool BulkChooser::prefer_get(uint64_t bytes, bool may_try) {
  Class& c = class_for(bytes);
  if (!may_try) return c.ways.known() && c.better() == Way::kPull;
  if (!c.ways.trying()) c.begin_trial_if_due(bytes);
  if (c.to_start > 0) {
    --c.to_start;
    return c.ways.tried() == Way::kPull;
  }
  if (c.ways.trying() && ++c.beside_trial == kLongestTrial) {
    c.to_start = c.ways.to_measure();
    c.beside_trial = 0;
  }
  return (c.ways.known() ? c.better() : c.ways.tried()) == Way::kPull;
}

void BulkChooser::get_failed(uint64_t bytes) {
  Class& c = class_for(bytes);
  c.ways.set_cost(Way::kPull, TwoWays::kNever);
  if (c.ways.tried() != Way::kPull) return;
  c.to_start = 0;
  c.ways.stop_trial();
}

void BulkChooser::measured(uint64_t bytes, bool by_get, uint64_t elapsed_ns) {
  if (bytes == 0) return;
  Class& c = class_for(bytes);
  const Way way = by_get ? Way::kPull : Way::kPush;
  const double elapsed = static_cast<double>(elapsed_ns);
  const double sample = std::max(1e-6, elapsed / static_cast<double>(bytes));
  if (c.ways.trying() && way == c.ways.tried()) {
    if (!c.ways.measured_in_trial(sample)) return;
    c.guessed = false;
    c.ways.trial_ended(c.better());
    return;
  }
  if (!c.ways.known() || way != c.better()) return;
  if (!c.ways.measured_in_use(way, sample, elapsed)) return;
  c.ways.begin_hasty_trial(other_way(way));
  c.start_trial();
}

double BulkChooser::cost(uint64_t bytes, bool by_get) const {
  const Class& c = classes_[class_of(bytes)];
  const double cost = c.ways.cost(by_get ? Way::kPull : Way::kPush);
  return c.guessed || cost == TwoWays::kNever ? 0 : cost;
}

size_t BulkChooser::class_of(uint64_t bytes) {
  size_t c = 0;
  for (uint64_t limit = 64 << 10; c + 1 < kClasses && bytes > limit; limit *= 4) ++c;
  return c;
}

// A class without costs starts with those of the next smaller size class. The next trials correct
// them.
BulkChooser::Class& BulkChooser::class_for(uint64_t bytes) {
  const size_t index = class_of(bytes);
  Class& c = classes_[index];
  if (c.ways.known() || c.ways.trying() || index == 0) return c;
  const TwoWays& below = classes_[index - 1].ways;
  if (!below.known()) return c;
  for (const Way way : {Way::kPush, Way::kPull}) c.ways.set_cost(way, below.cost(way));
  c.guessed = true;
  c.ways.allow_trial();
  return c;
}

void BulkChooser::Class::start_trial() {
  to_start = TwoWays::kBurst;
  beside_trial = 0;
}

void BulkChooser::Class::begin_trial_if_due(uint64_t bytes) {
  if (!ways.known()) {
    ways.begin_trial(ways.cost(Way::kPush) == 0 ? Way::kPush : Way::kPull);
  } else if (ways.may_try(ways.extra_ns(better(), bytes))) {
    ways.begin_trial(other_way(better()));
  } else {
    return;
  }
  start_trial();
}

}  // namespace hetcomm
