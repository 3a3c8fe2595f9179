// Writes a link model in the formats of HETCOMM_TOPOLOGY_*.
#pragma once

#include <cstdint>
#include <string>

#include "src/base/status.h"
#include "topology/links/link_model.h"

namespace hetcomm::capi {

// Returns |model| as text. Fails with INVALID_ARGUMENT if there is no such format.
Result<std::string> write_link_model(const topology::LinkModel& model, int32_t format);

}  // namespace hetcomm::capi
