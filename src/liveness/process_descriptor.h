// A process descriptor (pidfd) stands for one process, even if its number is reused.
#pragma once

#include "src/system/unique_fd.h"

namespace hetcomm::liveness {

// Returns a descriptor of this process, invalid if the kernel has none.
UniqueFd describe_own_process();

// Returns whether |fd| stands for a process that has not exited. The process may be stopped, and
// may belong to another PID namespace. Returns false for other descriptors.
bool is_running_process(int fd);

}  // namespace hetcomm::liveness
