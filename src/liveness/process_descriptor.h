// A process descriptor (pidfd) refers to one process, even after its process id is reused.
#pragma once

#include "src/system/unique_fd.h"

namespace hetcomm::liveness {

// Returns a descriptor of this process. It is invalid if the kernel has no pidfds.
UniqueFd describe_own_process();

// Returns whether |fd| refers to a process that has not exited. The process may be stopped, and may
// belong to another PID namespace. Returns false for other kinds of descriptors, as far as the
// kernel lets this process check that.
bool is_running_process(int fd);

}  // namespace hetcomm::liveness
