// Splits lists that people write, such as "shm, tcp".
#pragma once

#include <string_view>
#include <vector>

namespace hetcomm {

// Returns |text| without leading and trailing spaces.
std::string_view trimmed(std::string_view text);

// Returns the elements between the commas of |list|. Leaves out empty elements, and the spaces and
// tabs around elements.
std::vector<std::string_view> split_list(std::string_view list);

}  // namespace hetcomm
