#include "src/core/peer/transfer/pull_chooser.h"

#include <algorithm>
#include <utility>

namespace hetcomm {
namespace {

// Pulling replaces copying only if it costs less than this fraction of the cost of copying.
constexpr double kClearly = 0.8;
// A message is isolated if it begins later than this after the previous one. The unit is the time
// to pull one message. Ping-pong messages begin two such times apart, and messages in a stream one.
constexpr double kPause = 1.5;

}  // namespace

bool PullChooser::samples_next(uint64_t bytes) {
  Class& c = classes_[PullClass::of(bytes)];
  if (c.ways.trying() && c.ways.tried() == Way::kPush) return true;
  return ++c.taken % kSampled == 0;
}

bool PullChooser::took(uint64_t bytes, uint64_t elapsed_ns, uint64_t pieces) {
  Class& c = classes_[PullClass::of(bytes)];
  c.pieces = static_cast<double>(std::max<uint64_t>(pieces, 1));
  const double elapsed = static_cast<double>(elapsed_ns);
  const double sample = std::max(1e-6, elapsed / static_cast<double>(bytes));
  if (c.ways.trying() && c.ways.tried() == Way::kPull) {
    c.beside_trial += kSampled;
    return c.beside_trial >= kLongestTrial && c.give_up_trial();
  }
  return c.measured(Way::kPush, sample, elapsed, bytes, kSampled);
}

bool PullChooser::pulled(uint64_t bytes, uint64_t elapsed_ns, uint64_t sender_ns_per_mib) {
  Class& c = classes_[PullClass::of(bytes)];
  c.sender_ns_per_byte = static_cast<double>(sender_ns_per_mib) / (1 << 20);
  const double elapsed = static_cast<double>(elapsed_ns) + kExtraNs;
  return c.measured(Way::kPull, elapsed / static_cast<double>(std::max<uint64_t>(bytes, 1)),
                    elapsed, bytes, 1);
}

bool PullChooser::failed(uint64_t bytes) {
  Class& c = classes_[PullClass::of(bytes)];
  c.ways.set_cost(Way::kPull, TwoWays::kNever);
  c.ways.stop_trial();
  c.insisted = false;
  c.resolved = kPullNone;
  return c.tell(kPullNone);
}

bool PullChooser::insist(uint64_t bytes) {
  Class& c = classes_[PullClass::of(bytes)];
  if (c.insisted || c.ways.cost(Way::kPull) == TwoWays::kNever) return false;
  c.insisted = true;
  c.resolved = kPullAll;
  return c.tell(kPullAll);
}

bool PullChooser::Class::tell(uint64_t pause) { return std::exchange(told, pause) != pause; }

bool PullChooser::Class::begin_trial(Way way, bool hasty) {
  if (hasty) {
    ways.begin_hasty_trial(way);
  } else {
    ways.begin_trial(way);
  }
  beside_trial = 0;
  astray = 0;
  return tell(way == Way::kPull ? kPullAll : kPullNone);
}

bool PullChooser::Class::end_trial() {
  resolved = best_pause();
  ways.trial_ended(in_use());
  return tell(resolved);
}

// Ends a trial that the sender does not follow. Pulling is tried again when the time budget allows
// it.
bool PullChooser::Class::give_up_trial() {
  ways.stop_trial();
  if (ways.cost(Way::kPull) == 0) ways.set_cost(Way::kPull, 4 * in_stream());
  return tell(resolved);
}

// The sender copies one piece in while the receiver copies the previous piece out, so only one copy
// of one piece is not overlapped.
double PullChooser::Class::alone() const {
  return in_stream() + std::min(ways.cost(Way::kPush), sender_ns_per_byte) / pieces;
}

uint64_t PullChooser::Class::best_pause() const {
  const double pulling = ways.cost(Way::kPull);
  if (pulling < kClearly * in_stream()) return kPullAll;
  if (pulling >= kClearly * alone()) return kPullNone;
  return std::max<uint64_t>(1, static_cast<uint64_t>(kPause * 1024 * pulling));
}

double PullChooser::Class::extra_ns(Way way, uint64_t bytes) const {
  // Uses the larger possible cost, since the messages may be isolated or not.
  const double pulling = ways.cost(Way::kPull);
  const double extra = way == Way::kPush ? pulling - in_stream() : alone() - pulling;
  return std::max(0.0, extra) * static_cast<double>(bytes);
}

bool PullChooser::Class::measured(Way way, double sample, double elapsed_ns, uint64_t bytes,
                                  uint32_t count) {
  if (insisted || ways.cost(Way::kPull) == TwoWays::kNever) return false;
  if (ways.trying()) {
    return way == ways.tried() && ways.measured_in_trial(sample) && end_trial();
  }
  if (ways.cost(way) == 0) ways.set_cost(way, sample);
  if (way != in_use() && !only_alone()) {
    // The sender may not have been notified yet that a trial has ended. If this continues, it has
    // another cause.
    astray += count;
    if (astray <= kMaxAstray) ways.charge(extra_ns(in_use(), bytes) * count);
    return false;
  }
  const Way other = other_way(way);
  if (ways.measured_in_use(way, sample, elapsed_ns, count)) return begin_trial(other, true);
  return ways.may_try(extra_ns(way, bytes)) && begin_trial(other, false);
}

void PullRule::told(size_t pull_class, uint64_t pause) {
  Class& c = classes_[pull_class];
  c.pause = pause;
  // The next message is measured, since the cost of copying must be known soon after a change.
  c.to_sample = 0;
  c.sampled = 0;
}

void PullRule::late(uint64_t bytes) {
  Class& c = classes_[PullClass::of(bytes)];
  if (c.to_copy > 0) return;  // an earlier late message already causes copying
  c.to_copy = c.copied_next;
  c.copied_next = std::min(2 * c.copied_next, kMaxCopied);
}

bool PullRule::samples_next(uint64_t bytes) {
  Class& c = classes_[PullClass::of(bytes)];
  if (c.to_sample > 0) {
    --c.to_sample;
    return false;
  }
  if (c.sampled >= kSamples) c.to_sample = kSampled - 1;
  return true;
}

void PullRule::copied(uint64_t bytes, uint64_t elapsed_ns) {
  Class& c = classes_[PullClass::of(bytes)];
  const double ns = static_cast<double>(elapsed_ns) * (1 << 20) / static_cast<double>(bytes);
  c.ns_per_mib[c.sampled++ % kSamples] = std::max<uint64_t>(1, static_cast<uint64_t>(ns));
}

uint64_t PullRule::copy_ns_per_mib(uint64_t bytes) const {
  std::array<uint64_t, kSamples> sorted = classes_[PullClass::of(bytes)].ns_per_mib;
  std::sort(sorted.begin(), sorted.end());
  return sorted[kSamples / 2];
}

}  // namespace hetcomm
