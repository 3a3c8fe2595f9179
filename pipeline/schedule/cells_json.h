// Writes and reads the actions of a rank as a list of cells in a JSON document.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "pipeline/schedule/text.h"
#include "src/present/json_fields.h"

namespace hetcomm::pipeline {

inline present::Json cells_of(const std::vector<Action>& actions) {
  present::Json cells = present::Json::array();
  for_each_cell(actions, [&](std::string cell) { cells.push_back(std::move(cell)); });
  return cells;
}

// Appends the actions of |json|, which is at |path| in a document of |fields|. Reports the first
// element that is not a valid cell.
inline void read_cells(present::Fields& fields, const present::Json& json, const std::string& path,
                       std::vector<Action>& actions) {
  constexpr size_t kMaxCells = size_t{1} << 26;
  if (!json.is_array() || json.size() > kMaxCells) {
    return fields.misfit(path, json, "list of actions");
  }
  for (size_t i = 0; i < json.size(); ++i) {
    if (json[i].is_string() && parse_cell(json[i].get_ref<const std::string&>(), actions)) continue;
    return fields.misfit(fmt::format("{}[{}]", path, i), json[i], "action");
  }
}

}  // namespace hetcomm::pipeline
