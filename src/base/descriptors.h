// This check tells whether this process may still open enough files.
#pragma once

namespace hetcomm {

// Returns whether few descriptors are left below the limit (RLIMIT_NOFILE): an eighth of it, at
// most 64. Looks into /proc, which takes microseconds, before Linux 6.2 as many as there are
// descriptors; without /proc it is always false. [any-thread]
bool descriptors_run_short();

}  // namespace hetcomm
