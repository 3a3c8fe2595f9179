// Protects JSON parsers from hostile files. A parser needs memory for each level of nesting.
#pragma once

#include <string_view>

namespace hetcomm::present {

// Returns whether brackets are nested more deeply than |most|.
bool nests_deeper_than(int most, std::string_view json);

}  // namespace hetcomm::present
