// "did you mean": the known word that is nearest to one that somebody has mistyped.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace hetcomm::present {

// The number of letters to insert, leave out, replace, or swap with their neighbour.
size_t distance_between(std::string_view a, std::string_view b);

// "" where none is near: where more than a third of the letters differ, and more than two.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

// "; did you mean 'word'?", or "" where no word is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

}  // namespace hetcomm::present
