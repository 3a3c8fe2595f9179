// Renders a report as text. All functions are pure.
#pragma once

#include <string>

#include "bench/row.h"

namespace bench {

// Renders tables with columns as in perftest, or as in nccl-tests for collective operations, and
// then the ratios.
std::string render_table(const Report& report);
// Renders tables as in the OSU micro-benchmarks, one for each group of rows, and then the ratios.
std::string render_osu(const Report& report);
// Renders one line for each row. The first line contains the names of the JSON fields.
std::string render_csv(const Report& report);
// Renders one object: "meta" and "rows".
std::string render_json(const Report& report);

// Renders ratios as tables, with geometric mean and worst size. Returns "" if nothing was compared.
std::string render_ratios(const Report& report);

// --- shared by the renderers ---------------------------------------------------------------------

// Groups rows into tables. The rows of a table have the same test, implementation, transport,
// memory, progress, rails, algorithm, staging memory and use of a stream.
std::vector<std::vector<Row>> group_rows(const std::vector<Row>& rows);

// Returns the title of a test in OSU tables.
const char* title_of(const std::string& test);

// Returns a size as text: "8", "64K", "1M".
std::string size_text(uint64_t bytes);
// Returns |value| with enough digits for comparisons, or "-" for kUnknown.
std::string number_text(double value);
// Returns the header lines of a report, without the comment sign.
std::vector<std::string> header_lines(const Report& report);

}  // namespace bench
