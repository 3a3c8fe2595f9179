// Declares the variables for progress and waiting.
#pragma once

#include "src/system/variable.h"

namespace hetcomm::variable {

inline constexpr Variable kProgress(
    kChoice, kNoFile, "HETCOMM_PROGRESS", "caller", "caller|thread",
    "Who drives communication: only callers that wait or test, or a background thread as well.");
inline constexpr Variable kProgressCpus(
    kText, kNoFile, "HETCOMM_PROGRESS_CPUS", "auto", nullptr,
    "Processors of the library's own threads, such as '0-3,8'; auto means those near the rank's "
    "NICs, and none wherever the process may run. They never leave the processors that the "
    "process "
    "was given.");
inline constexpr Variable kStallTime(
    kDuration, kNoFile, "HETCOMM_STALL_TIME", "60s", nullptr,
    "An operation that waits longer is reported once, with all pending ones.", at_least(kMs));
inline constexpr Variable kSpinTime(
    kDuration, kNoFile, "HETCOMM_SPIN_TIME", "1ms", nullptr,
    "How long a waiting thread polls before it sleeps; unset, 200us when this host has more ranks "
    "than cores, and 100us beside processes that burn the core.");
inline constexpr Variable kYield(
    kChoice, kNoFile, "HETCOMM_YIELD", "auto", "auto|off|on",
    "Whether a polling thread yields its core; auto: when this host has more ranks than cores.");

inline constexpr const Variable* kCoreProgressVariables[] = {&kProgress, &kProgressCpus,
                                                             &kStallTime, &kSpinTime, &kYield};

}  // namespace hetcomm::variable
