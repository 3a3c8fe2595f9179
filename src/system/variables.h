// Declares the variables for the log, process limits and deadlines.
#pragma once

#include "src/system/variable.h"

namespace hetcomm::variable {

inline constexpr Variable kLog(
    kChoice, kNoFile, "HETCOMM_LOG", "warn", "error|warn|info|debug|trace",
    "How much is logged; info says which interface and transports were chosen and why.");
inline constexpr Variable kLogFile(
    kText, kFile, "HETCOMM_LOG_FILE", "", nullptr,
    "File that log lines are appended to instead of being printed. %h in its name stands for the "
    "host, %p for the process id and %r for the rank, such as 'job-%h-%r.log'.");
inline constexpr Variable kRaiseLimits(
    kChoice, kNoFile, "HETCOMM_RAISE_LIMITS", "on", "off|on",
    "Whether the soft limit of open files (RLIMIT_NOFILE) is raised, to what a job needs and 256 "
    "more, where it is too low for the job.");
inline constexpr Variable kTimeout(kDuration, kNoFile, "HETCOMM_TIMEOUT", "30min", nullptr,
                                   "Deadline of an operation that sets none; 0 means the default.",
                                   zero_is_default());

inline constexpr const Variable* kSystemVariables[] = {&kLog, &kLogFile, &kRaiseLimits, &kTimeout};

}  // namespace hetcomm::variable
