// Reads and writes a LinkModel, and the measurements from which a model is inferred, as JSON.
// topology/README.md describes both formats.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "topology/links/link_inference.h"
#include "topology/links/link_model.h"

namespace hetcomm::topology {

// A larger file is rejected: it cannot be a link model and would take long to parse.
inline constexpr size_t kMaxLinkModelBytes = 8u << 20;

// Formats |model|, which must be normalized. With |compact| the result is a single line.
std::string to_json(const LinkModel& model, bool compact = false);
// Returns whether |json| is marked as a link model. Parsing it may still fail.
bool claims_to_be_link_model(std::string_view json);
// Parses a model that to_json() or a person has written, and normalizes it. Fails with
// INVALID_ARGUMENT; the text names the line of a syntax error, the path of a wrong entry
// ("hosts[2].cluster"), or the object that check() rejects. Fails with UNSUPPORTED if the file has
// another version.
Result<LinkModel> parse_link_model(std::string_view json);

std::string to_json(const LinkMeasurements& measured);
// Parses measurements. Fails like parse_link_model().
Result<LinkMeasurements> parse_link_measurements(std::string_view json);

}  // namespace hetcomm::topology
