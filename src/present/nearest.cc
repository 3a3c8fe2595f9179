#include "src/present/nearest.h"

#include <algorithm>

namespace hetcomm::present {
namespace {

bool joins(char c) { return c == '-' || c == '_' || c == ' '; }

// Returns whether the words differ only in hyphens, underscores and spaces.
bool same_but_for_joints(std::string_view a, std::string_view b) {
  const auto skip = [](std::string_view& text) {
    while (!text.empty() && joins(text.front())) text.remove_prefix(1);
  };
  for (;; a.remove_prefix(1), b.remove_prefix(1)) {
    skip(a);
    skip(b);
    if (a.empty() || b.empty()) return a.empty() && b.empty();
    if (a.front() != b.front()) return false;
  }
}

}  // namespace

size_t distance_below(size_t bound, std::string_view a, std::string_view b) {
  const auto [shorter, longer] = std::minmax({a.size(), b.size()});
  if (longer - shorter >= bound) return bound;
  std::vector<std::vector<size_t>> table(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) table[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) table[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t other = a[i - 1] == b[j - 1] ? 0 : 1;
      size_t best =
          std::min({table[i - 1][j] + 1, table[i][j - 1] + 1, table[i - 1][j - 1] + other});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) best = std::min(best, table[i - 2][j - 2] + 1);
      table[i][j] = best;
    }
  }
  return std::min(bound, table[a.size()][b.size()]);
}

std::string nearest(std::string_view word, const std::vector<std::string>& known) {
  std::string best;
  size_t least = std::max<size_t>(2, word.size() / 3);
  for (const std::string& candidate : known) {
    const size_t distance = distance_below(least + 1, word, candidate);
    // A candidate that has no letter in common with |word| is not a useful suggestion.
    if (distance > least || distance >= std::max(word.size(), candidate.size())) continue;
    if (!best.empty() && distance == least && !same_but_for_joints(word, candidate)) continue;
    least = distance;
    best = candidate;
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  const std::string best = nearest(word, known);
  return best.empty() ? "" : "; did you mean '" + best + "'?";
}

}  // namespace hetcomm::present
