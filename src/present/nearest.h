// Finds the known word that is nearest to a mistyped one, for "did you mean" hints.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace hetcomm::present {

// Returns the distance between |a| and |b|, or |bound| if the distance is not less. The distance is
// the edit distance: the smallest number of insertions, deletions, replacements and swaps of
// adjacent letters that turn |a| into |b|. Returns at once if the lengths differ by |bound| or
// more.
size_t distance_below(size_t bound, std::string_view a, std::string_view b);

// Returns the word of |known| that is nearest to |word|, or "" if none is near. A word is near if
// its distance is at most two, or at most a third of the length of |word| if that is more. A word
// that is entirely different is never near. Among equally near words, prefers one that differs only
// in hyphens, underscores and spaces, and otherwise the first.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

// Returns "; did you mean 'word'?", or "" if no word is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

}  // namespace hetcomm::present
