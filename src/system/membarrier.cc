#include "src/system/membarrier.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace hetcomm {
namespace {

bool membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

}  // namespace

void AsymmetricFence::set_up() {
  asymmetric_ = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) &&
                membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
}

void AsymmetricFence::heavy() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // The call cannot fail once the process is registered.
  if (asymmetric_) membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
}

bool register_global_membarrier() {
  return membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) && global_membarrier();
}

bool global_membarrier() { return membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED); }

}  // namespace hetcomm
