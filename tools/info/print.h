// Prints text for people and JSON for programs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/info/collect.h"

namespace hetcomm_info {

// Returns the width of the terminal on standard output in columns, or 100.
size_t output_width();

// Splits |text| into lines of at most |width| columns, at spaces if possible.
std::vector<std::string> wrap(std::string_view text, size_t width);

// Formats rows as aligned columns, each line indented by two. The last column takes the rest of
// |width| and is wrapped. The others are as wide as their contents, but wrapped at 24 columns.
std::string table(const std::vector<std::vector<std::string>>& rows, size_t width);

// Returns one page with transports first and only variables with non-default values, or the
// requested sections.
std::string as_text(const Report& report, const Sections& sections, size_t width);
// Returns everything, or the requested sections, as JSON.
std::string as_json(const Report& report, const Sections& sections);

}  // namespace hetcomm_info
