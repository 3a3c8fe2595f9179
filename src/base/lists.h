// Lists as people write them: "shm, tcp".
#pragma once

#include <string_view>
#include <vector>

namespace hetcomm {

// Returns |text| without leading and trailing spaces.
std::string_view trimmed(std::string_view text);

// Returns the elements between commas, without surrounding blanks and without empty elements.
std::vector<std::string_view> split_list(std::string_view list);

}  // namespace hetcomm
