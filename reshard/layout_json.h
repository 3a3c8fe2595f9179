// Reads and writes layouts as JSON documents. README.md describes the format.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "reshard/layout.h"
#include "src/base/status.h"
#include "src/present/json_fields.h"

namespace hetcomm::reshard {

// Formats |layout| as its list of parts. parse_layout() of the result returns an equal layout.
std::string to_json(const Layout& layout);

// Parses and checks a layout that is given by parts, by a mesh of ranks, or by parallel degrees.
// Fails with INVALID_ARGUMENT for a malformed document. The error text names the line of a syntax
// error, the path of a wrong entry, or the fault that check() found. Fails with UNSUPPORTED if the
// version of the document is not supported.
Result<Layout> parse_layout(std::string_view json);

// Reads and checks a layout that is nested in another document at |path|. The fields "format" and
// "version" are optional there. The caller must have limited the nesting depth of the document.
Result<Layout> read_layout(const present::Json& json, const std::string& path);

// Reads the field "box" of a document: a begin and an end for each of |dimensions|.
Box read_box(present::Fields& fields, size_t dimensions);

}  // namespace hetcomm::reshard
