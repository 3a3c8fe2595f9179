#include "reshard/strided_addresses.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace hetcomm::reshard {
namespace {

// Returns the x with 0 <= x < |modulus| and |factor| * x = 1 modulo |modulus|. |factor| and
// |modulus| must be coprime.
uint64_t inverse_of(uint64_t factor, uint64_t modulus) {
  auto last = static_cast<int64_t>(modulus);
  auto rest = static_cast<int64_t>(factor % modulus);
  int64_t before = 0;
  int64_t now = 1;
  while (rest > 1) {
    const int64_t quotient = last / rest;
    last = std::exchange(rest, last % rest);
    before = std::exchange(now, before - quotient * now);
  }
  return static_cast<uint64_t>(now < 0 ? now + static_cast<int64_t>(modulus) : now) % modulus;
}

// Returns |one| * |other| modulo |modulus|, which is less than 2^62.
uint64_t product_modulo(uint64_t one, uint64_t other, uint64_t modulus) {
  one %= modulus;
  other %= modulus;
  if (one < (uint64_t{1} << 32) && other < (uint64_t{1} << 32)) return one * other % modulus;
  uint64_t product = 0;
  for (; other > 0; other >>= 1) {
    if ((other & 1) != 0) product = (product + one) % modulus;
    one = (one + one) % modulus;
  }
  return product;
}

// Searches for sums of steps, each of which is taken a limited number of times.
class Steps {
 public:
  void add(uint64_t length, uint64_t most) {
    if (length == 0 || most == 0) return;
    steps_[count_++] = {.length = length, .most = most};
  }
  // Returns kMeet if the steps can add up to |total|, kApart if they cannot, and kUnknown if the
  // search was cut off.
  Meeting reach(int64_t total) {
    if (total < 0) return Meeting::kApart;
    for (size_t before = 0; before != count_;) {
      before = count_;
      join();
    }
    prepare();
    return search(0, static_cast<uint64_t>(total));
  }

 private:
  struct Step {
    uint64_t length = 0;
    uint64_t most = 0;
    uint64_t reach = 0;  // maximum total of this step and the later ones
    // The greatest common divisor of the later steps. They reach only its multiples, so this step
    // has to cover the remainder. That determines the number of times that this step is taken,
    // modulo |period|.
    uint64_t divisor = 0;
    uint64_t common = 1;  // greatest common divisor of |length| and |divisor|
    uint64_t period = 1;
    uint64_t inverse = 0;
  };
  // This limit keeps the time of a search below a few milliseconds.
  static constexpr uint32_t kMaxTries = 1u << 16;

  // Merges two steps if together they reach every multiple of the shorter one up to their total.
  void join() {
    const auto shorter = [](const Step& one, const Step& other) {
      return one.length < other.length;
    };
    std::sort(steps_.begin(), steps_.begin() + count_, shorter);
    size_t kept = 0;
    for (size_t i = 0; i < count_; ++i) {
      Step step = steps_[i];
      size_t into = 0;
      while (into < kept && !leaves_no_gap(steps_[into], step)) ++into;
      if (into == kept) {
        steps_[kept++] = step;
      } else {
        steps_[into].most += step.most * (step.length / steps_[into].length);
      }
    }
    count_ = kept;
  }
  static bool leaves_no_gap(const Step& inner, const Step& outer) {
    return outer.length % inner.length == 0 && inner.most >= outer.length / inner.length - 1;
  }

  void prepare() {
    std::reverse(steps_.begin(), steps_.begin() + count_);
    uint64_t reach = 0;
    uint64_t divisor = 0;
    for (size_t i = count_; i-- > 0;) {
      Step& step = steps_[i];
      reach += step.length * step.most;
      step.reach = reach;
      step.divisor = divisor;
      step.common = std::gcd(step.length, divisor);
      step.period = divisor == 0 ? 1 : divisor / step.common;
      step.inverse = step.period == 1 ? 0 : inverse_of(step.length / step.common, step.period);
      divisor = step.common;
    }
  }

  Meeting search(size_t index, uint64_t left) {
    if (left == 0) return Meeting::kMeet;
    if (index == count_) return Meeting::kApart;
    const Step& step = steps_[index];
    if (left > step.reach || left % step.common != 0) return Meeting::kApart;
    // The length of the last step divides |left|, and |left| is within its reach.
    if (index + 1 == count_) return Meeting::kMeet;
    const uint64_t rest = steps_[index + 1].reach;
    uint64_t number = left > rest ? (left - rest + step.length - 1) / step.length : 0;
    const uint64_t last = std::min(step.most, left / step.length);
    if (step.period > 1) {
      const uint64_t first = product_modulo(left / step.common, step.inverse, step.period);
      number += (first + step.period - number % step.period) % step.period;
    }
    for (; number <= last; number += step.period) {
      if (++tries_ > kMaxTries) return Meeting::kUnknown;
      const Meeting found = search(index + 1, left - number * step.length);
      if (found != Meeting::kApart) return found;
    }
    return Meeting::kApart;
  }

  std::array<Step, 2 * StridedAddresses::kMaxExtents> steps_{};
  size_t count_ = 0;
  uint32_t tries_ = 0;
};

// Returns whether each step, in the order of the strides, is longer than the total reach of all
// shorter ones.
bool is_nested(const StridedAddresses& addresses) {
  std::array<std::pair<uint64_t, uint64_t>, StridedAddresses::kMaxExtents> steps;  // stride, most
  size_t count = 0;
  for (size_t d = 0; d < addresses.dimensions; ++d) {
    if (addresses.extents[d] > 1) steps[count++] = {addresses.strides[d], addresses.extents[d] - 1};
  }
  std::sort(steps.begin(), steps.begin() + count);
  uint64_t reach = 0;
  for (size_t i = 0; i < count; ++i) {
    if (steps[i].first <= reach) return false;
    reach += steps[i].first * steps[i].second;
  }
  return true;
}

}  // namespace

// Searches for steps of |one| that lead from its first element to a shared address, and steps of
// |other| that lead from that address to the last element of |other|.
Meeting find_meeting(const StridedAddresses& one, const StridedAddresses& other, int64_t distance) {
  Steps steps;
  auto total = static_cast<int64_t>(other.end() - 1) + distance - static_cast<int64_t>(one.offset);
  for (const StridedAddresses* addresses : {&one, &other}) {
    for (size_t d = 0; d < addresses->dimensions; ++d) {
      steps.add(addresses->strides[d], addresses->extents[d] - 1);
    }
  }
  return steps.reach(total);
}

// Finds two elements at one address. Tries each dimension as the first one in which their indices
// differ. The step of that dimension is then taken at least once, and the steps of later dimensions
// can go in either direction. The total has to be 0.
Meeting find_repeat(const StridedAddresses& addresses) {
  if (is_nested(addresses)) return Meeting::kApart;
  for (size_t first = 0; first < addresses.dimensions; ++first) {
    if (addresses.extents[first] == 1) continue;
    if (addresses.strides[first] == 0) return Meeting::kMeet;
    Steps steps;
    int64_t total = -static_cast<int64_t>(addresses.strides[first]);
    steps.add(addresses.strides[first], addresses.extents[first] - 2);
    for (size_t d = first + 1; d < addresses.dimensions; ++d) {
      const uint64_t most = addresses.extents[d] - 1;
      steps.add(addresses.strides[d], 2 * most);
      total += static_cast<int64_t>(addresses.strides[d] * most);
    }
    const Meeting found = steps.reach(total);
    if (found != Meeting::kApart) return found;
  }
  return Meeting::kApart;
}

}  // namespace hetcomm::reshard
