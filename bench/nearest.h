// "did you mean": the known word that is nearest to one that somebody has mistyped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace bench {

// The word of |known| that differs least from |word| by letters inserted, left out, replaced or
// swapped; "" where none is near: a third of the letters may differ, and two always.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

// "; did you mean 'latency'?", or "" where no known word is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

}  // namespace bench
