// RegisteredMemories registers memories on a communicator, so that its ranks can access them. It
// also imports memories of other ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <hetcomm/onesided.h>

#include "src/base/baton_role.h"
#include "src/base/span.h"
#include "src/base/status.h"
#include "src/core/device/memory.h"
#include "src/core/job/job.h"
#include "src/core/memory/registration.h"
#include "src/core/peer/matching/messaging_communicator.h"
#include "src/core/progress/engine.h"

namespace hetcomm {

class RegisteredMemories {
 public:
  // |communicator| and |job| outlive this object.
  RegisteredMemories(MessagingCommunicator& communicator, Job& job, uint64_t default_timeout_ns)
      : communicator_(communicator),
        job_(job),
        engine_(job.engine()),
        default_timeout_ns_(default_timeout_ns) {}
  RegisteredMemories(const RegisteredMemories&) = delete;
  RegisteredMemories& operator=(const RegisteredMemories&) = delete;

  // All functions down to drop_remote() are [any-thread].
  Status register_memory(Memory& memory, uint32_t rights, bool caller_progress);
  static Status unregister_memory(Memory& memory, uint64_t timeout_ns);
  static Result<std::vector<std::byte>> export_memory(const Memory& memory);
  Status import_memory(ConstByteSpan bytes, ExportedMemory* exported, std::vector<RemoteKey>* keys);
  // Waits for a notification of |memory|. |engine| is the engine of its context.
  static Status wait_notification(Memory& memory, Engine& engine, uint64_t timeout_ns,
                                  hetcomm_notification_t* out);
  // See MemoryCommunicator.
  void add_remote(RemoteMemory& remote);
  void drop_remote(RemoteMemory& remote);

  // Returns kBusy while there are registered or remote memories.
  Status check_idle() const HETCOMM_UNDER_BATON;

 private:
  void end_running(const Registration& registration) HETCOMM_UNDER_BATON;

  MessagingCommunicator& communicator_;
  Job& job_;
  Engine& engine_;
  const uint64_t default_timeout_ns_;
  // The numbers of remote memories and registrations that exist.
  int32_t remotes_ HETCOMM_GUARDED_BY_BATON = 0;
  int32_t registrations_ HETCOMM_GUARDED_BY_BATON = 0;
};

}  // namespace hetcomm
