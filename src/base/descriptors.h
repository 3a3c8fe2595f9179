// How many files this process may still open.
#pragma once

namespace hetcomm {

// Whether few descriptors are left below the limit (RLIMIT_NOFILE): an eighth of it, at most 64.
// Looks into /proc, which takes microseconds, before Linux 6.2 as many as there are descriptors;
// without /proc it is always false. [any-thread]
bool descriptors_run_short();

}  // namespace hetcomm
