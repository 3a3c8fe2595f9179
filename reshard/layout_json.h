// Reads and writes layouts as JSON documents. README.md describes the format.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "reshard/layout.h"
#include "src/base/status.h"
#include "src/present/json_fields.h"

namespace hetcomm::reshard {

// Formats |layout| as its list of parts. parse_layout() gives an equal layout back.
std::string to_json(const Layout& layout);

// Parses a layout given by parts, by a mesh of ranks, or by parallel degrees, and checks it. Fails
// with INVALID_ARGUMENT for a wrong document; the text names the line of a syntax error, the path
// of a wrong entry, or what check() rejects. Fails with UNSUPPORTED for a document of another
// version.
Result<Layout> parse_layout(std::string_view json);

// Reads and checks a layout inside another document, at |path|. Format and version may be absent
// there. The caller has bounded the nesting of the document.
Result<Layout> read_layout(const present::Json& json, const std::string& path);

// Reads the field "box" of a document: a beginning and an end for each of |dimensions|.
Box read_box(present::Fields& fields, size_t dimensions);

}  // namespace hetcomm::reshard
