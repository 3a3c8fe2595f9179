// Makes and describes the plans of all ranks, without a communicator.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/links.h"
#include "reshard/tensor_order.h"

namespace hetcomm::reshard {

enum class PlanFormat : uint8_t { kText, kJson, kSvg };

// Makes and describes the plans of all ranks. |links| may be null. Fails as check(), make_plans()
// and prove_all() do. Fails with OUT_OF_RANGE if |links| lacks a rank, and with UNSUPPORTED if an
// SVG of several tensors is requested.
Result<std::string> draft(const std::vector<TensorOrder>& tensors, const DraftOptions& options,
                          const Links* links, PlanFormat format);

}  // namespace hetcomm::reshard
