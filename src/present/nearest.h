// "did you mean": finds the known word that is nearest to a mistyped one.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace hetcomm::present {

// Returns the number of letters to insert, delete, replace, or swap with their neighbour to turn
// |a| into |b|, or |bound| if it is not less. Returns at once if the lengths differ by |bound| or
// more.
size_t distance_below(size_t bound, std::string_view a, std::string_view b);

// Returns the nearest of |known|, or "" if none is near. At most two letters, or a third of all
// letters, differ in a near word. Of words that are equally near, one that only joins its parts
// differently is returned, else the first.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

// Returns "; did you mean 'word'?", or "" if no word is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

}  // namespace hetcomm::present
