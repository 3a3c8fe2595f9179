// Reads a link model and the locations of ranks in it from JSON: an object with "model", "hosts"
// and "nics". README.md describes it.
#pragma once

#include <string>
#include <vector>

#include "reshard/links.h"
#include "src/base/status.h"
#include "src/present/json_fields.h"

namespace hetcomm::reshard {

// |path| names |json| in error texts. |hosts| has the host of each rank, and is used if the object
// has no "hosts". Fails with INVALID_ARGUMENT for a malformed object, with NOT_FOUND if the model
// lacks a host or a NIC, and with UNSUPPORTED if the version of the model is not supported.
Result<Links> parse_links(const present::Json& json, const std::string& path,
                          std::vector<std::string> hosts);

}  // namespace hetcomm::reshard
