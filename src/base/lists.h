// Lists as people write them: "shm, tcp".
#pragma once

#include <string_view>
#include <vector>

namespace hetcomm {

// |text| without the spaces at its ends.
std::string_view trimmed(std::string_view text);

// The elements between commas, without the blanks around them and without empty ones.
std::vector<std::string_view> split_list(std::string_view list);

}  // namespace hetcomm
