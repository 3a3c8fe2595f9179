// Splits lists that users write, such as "shm, tcp".
#pragma once

#include <string_view>
#include <vector>

namespace hetcomm {

// Returns |text| without leading and trailing spaces.
std::string_view trimmed(std::string_view text);

// Returns the elements between the commas of |list|. Omits empty elements, and removes the spaces
// and tabs around elements.
std::vector<std::string_view> split_list(std::string_view list);

}  // namespace hetcomm
