// Reads the input of draft() from one JSON document. README.md describes the format.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "reshard/links.h"
#include "reshard/tensor_order.h"
#include "src/base/status.h"

namespace hetcomm::reshard {

struct DraftQuestion {
  std::vector<TensorOrder> tensors;
  DraftOptions options;
  std::optional<Links> links;
};

// Parses a document. Fails with INVALID_ARGUMENT for a malformed document. The error text names the
// line of a syntax error, the path of a wrong entry, or the fault of a layout. Fails with NOT_FOUND
// if the link model lacks a host or a NIC, and with UNSUPPORTED if the version of the document, or
// of one inside it, is not supported.
Result<DraftQuestion> parse_draft_question(std::string_view json);

}  // namespace hetcomm::reshard
