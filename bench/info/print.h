// Text for people, JSON for programs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bench/info/collect.h"

namespace hetcomm_info {

// Columns of the terminal that standard output is, or 100.
size_t output_width();

// |text| as lines of at most |width| columns, broken at spaces where there are any.
std::vector<std::string> wrap(std::string_view text, size_t width);

// Rows as aligned columns, each line indented by two. The last column takes the rest of |width|
// and is wrapped; the others are as wide as their contents, but wrapped at 24 columns.
std::string table(const std::vector<std::vector<std::string>>& rows, size_t width);

// One page, transports first and only the variables that are not at their default; or the sections
// that were asked for.
std::string as_text(const Report& report, const Sections& sections, size_t width);
// Everything, or the sections that were asked for.
std::string as_json(const Report& report, const Sections& sections);

}  // namespace hetcomm_info
