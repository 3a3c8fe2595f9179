// Formats a report as text for people and as JSON for programs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/info/collect.h"

namespace hetcomm_info {

// Returns the number of columns of the terminal on standard output, or 100 if there is no terminal
// or it has fewer than 60.
size_t output_width();

// Splits |text| into lines of at most |width| columns, at spaces if possible.
std::vector<std::string> wrap(std::string_view text, size_t width);

// Formats rows as aligned columns, each line indented by two. The first column is as wide as its
// contents. The last column is wrapped at the remaining width, and those between them at 24.
std::string table(const std::vector<std::vector<std::string>>& rows, size_t width);

// Returns the requested sections. If none is requested, returns one page that shows transports
// first, and only those variables that are not at their default.
std::string as_text(const Report& report, const Sections& sections, size_t width);
// Returns the requested sections as JSON, or all sections if none is requested.
std::string as_json(const Report& report, const Sections& sections);

}  // namespace hetcomm_info
