// Configuration variables for the connections and the credit of a pair.
#pragma once

#include "src/system/variable.h"

namespace hetcomm::variable {

inline constexpr Variable kCoolDown(
    kDuration, kNoFile, "HETCOMM_COOL_DOWN", "1s", nullptr,
    "How long a transport whose connection failed is left alone; doubles with each failure.",
    between(kMs, 86'400'000 * kMs));
inline constexpr Variable kCreditBytes(
    kSize, kNoFile, "HETCOMM_CREDIT_BYTES", "1M", nullptr,
    "Bytes that one peer may have under way to this process before they are matched.",
    between(4 * kKi, kGi));
inline constexpr Variable kUnexpectedBytes(kSize, kNoFile, "HETCOMM_UNEXPECTED_BYTES", "256M",
                                           nullptr,
                                           "The same for all peers together; divided among them.",
                                           at_least(4 * kKi));

inline constexpr const Variable* kCorePeerVariables[] = {&kCoolDown, &kCreditBytes,
                                                         &kUnexpectedBytes};

}  // namespace hetcomm::variable
