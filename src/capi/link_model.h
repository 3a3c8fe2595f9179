// Declares a function that writes a link model in the formats HETCOMM_TOPOLOGY_*.
#pragma once

#include <cstdint>
#include <string>

#include "src/base/status.h"
#include "topology/links/link_model.h"

namespace hetcomm::capi {

// Returns |model| in |format|. Fails with INVALID_ARGUMENT if |format| is unknown.
Result<std::string> write_link_model(const topology::LinkModel& model, int32_t format);

}  // namespace hetcomm::capi
