#include "src/liveness/process_descriptor.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace hetcomm::liveness {

UniqueFd describe_own_process() {
#ifdef SYS_pidfd_open
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
#else
  return {};
#endif
}

bool is_running_process(int fd) {
#ifdef SYS_pidfd_send_signal
  // Signal 0 only checks that the process can be signalled. EPERM: another user's process. EINVAL:
  // a process in another PID namespace. ENOSYS: a sandbox forbids the call.
  const bool is_process = syscall(SYS_pidfd_send_signal, fd, 0, nullptr, 0) == 0 ||
                          errno == EPERM || errno == EINVAL || errno == ENOSYS;
  pollfd exit{.fd = fd, .events = POLLIN, .revents = 0};
  return is_process && ::poll(&exit, 1, 0) == 0;
#else
  return false;
#endif
}

}  // namespace hetcomm::liveness
