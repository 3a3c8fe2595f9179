// Protects parsers of JSON, which use memory for each open bracket, from hostile files.
#pragma once

#include <string_view>

namespace hetcomm::present {

// Returns whether brackets are nested more deeply than |most|.
bool nests_deeper_than(int most, std::string_view json);

}  // namespace hetcomm::present
