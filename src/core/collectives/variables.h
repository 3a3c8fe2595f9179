// Declares the variables for collective operations.
#pragma once

#include "src/system/variable.h"

namespace hetcomm::variable {

inline constexpr Variable kCollectiveCheck(
    kInteger, kNoFile, "HETCOMM_COLLECTIVE_CHECK", "1", nullptr,
    "Whether ranks compare arguments of collective operations; 0 or 1, as on all.", between(0, 1));
inline constexpr Variable kCollectiveShared(
    kInteger, kNoFile, "HETCOMM_COLLECTIVE_SHARED", "1", nullptr,
    "Whether collective operations go through shared memory among ranks of one host; 0 or 1.",
    between(0, 1));

inline constexpr const Variable* kCoreCollectivesVariables[] = {&kCollectiveCheck,
                                                                &kCollectiveShared};

}  // namespace hetcomm::variable
