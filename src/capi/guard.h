// Defines the handle types of the C ABI, and the handle checks that entry points perform.
#pragma once

#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <string_view>

#include <hetcomm/hetcomm.h>

#include "reshard/layout.h"
#include "src/base/status.h"
#include "src/bootstrap/bootstrap.h"
#include "src/capi/device_claims.h"
#include "src/core/communicator/communicator.h"
#include "src/core/context/context.h"
#include "src/core/device/user_stream.h"
#include "src/queue/queue.h"
#include "src/reshard/preparation.h"
#include "src/wall/wall.h"

namespace hetcomm::capi {

// The object behind each handle stores the tag of its type. Checking the tag detects destroyed
// handles and pointers that are not handles of this type. Debug builds keep destroyed objects
// readable for this check. Release builds do not, so there the check misses some destroyed handles.
enum class Tag : uint64_t {
  kContext = 0x6865746361637478,
  kMemory = 0x686574636d656d6f,
  kBootstrap = 0x68657463626f6f74,
  kCommunicator = 0x68657463636f6d6d,
  kGroup = 0x6865746367727570,
  kRemoteMemory = 0x686574636d656d72,
  kQueue = 0x6865746371756575,
  kLayout = 0x686574636c61796f,
  kReshard = 0x6865746372657368,
  kStream = 0x6865746373747265,
};

// Holds a hetcomm_memory for each device allocation that callers have passed plain pointers to.
// [any-thread]
class PointerMemories {
 public:
  PointerMemories();
  PointerMemories(const PointerMemories&) = delete;
  PointerMemories& operator=(const PointerMemories&) = delete;
  ~PointerMemories();

  // Returns the memory for the allocation |found|, and creates it if necessary.
  hetcomm_memory* find(Context& context, const DeviceKinds::Found& found);

 private:
  struct Table;
  const std::unique_ptr<Table> table_;
};

}  // namespace hetcomm::capi

// The types behind the opaque handles.
struct hetcomm_memory : hetcomm::Memory {
  hetcomm_memory(hetcomm::Context& owner, size_t device_index, void* base, uint64_t bytes,
                 bool owned)
      : hetcomm::Memory(owner.devices(), device_index, base, bytes, owned), context(owner) {
    context.add_object();
  }
  // Creates a memory for an allocation that the caller owns. It does not count as an object of the
  // context, and so does not keep the context in use.
  hetcomm_memory(hetcomm::Context& owner, size_t device_index, void* base, uint64_t bytes,
                 Unowned unowned)
      : hetcomm::Memory(owner.devices(), device_index, base, bytes, unowned), context(owner) {}
  hetcomm::capi::Tag tag = hetcomm::capi::Tag::kMemory;
  hetcomm::Context& context;
};
struct hetcomm_context {
  hetcomm::capi::Tag tag = hetcomm::capi::Tag::kContext;
  std::unique_ptr<hetcomm::Context> impl;
  hetcomm::capi::PointerMemories pointers{};  // destroyed before |impl|
  hetcomm::capi::DeviceClaims claims{};
};
struct hetcomm_stream : hetcomm::UserStream {
  hetcomm_stream(hetcomm::Context& owner, size_t device, const Opened& opened)
      : hetcomm::UserStream(owner.devices(), device, opened), context(owner) {
    context.add_object();
  }
  hetcomm::capi::Tag tag = hetcomm::capi::Tag::kStream;
  hetcomm::Context& context;
};
struct hetcomm_bootstrap {
  hetcomm::capi::Tag tag = hetcomm::capi::Tag::kBootstrap;
  std::unique_ptr<hetcomm::Bootstrap> impl;
  hetcomm::Context* context;
};
struct hetcomm_communicator {
  hetcomm::capi::Tag tag = hetcomm::capi::Tag::kCommunicator;
  std::unique_ptr<hetcomm::Communicator> impl;
  hetcomm_context_t* context = nullptr;
};
struct hetcomm_remote_memory : hetcomm::RemoteMemory {
  hetcomm_remote_memory(hetcomm::Communicator& owner, const hetcomm::ExportedMemory& exported,
                        std::vector<hetcomm::RemoteKey> keys)
      : hetcomm::RemoteMemory(owner, exported, std::move(keys)) {}
  hetcomm::capi::Tag tag = hetcomm::capi::Tag::kRemoteMemory;
};
struct hetcomm_queue {
  hetcomm::capi::Tag tag = hetcomm::capi::Tag::kQueue;
  std::unique_ptr<hetcomm::Queue> impl;
};
struct hetcomm_layout {
  hetcomm::capi::Tag tag = hetcomm::capi::Tag::kLayout;
  std::shared_ptr<const hetcomm::reshard::Layout> impl;
};
struct hetcomm_reshard {
  hetcomm::capi::Tag tag = hetcomm::capi::Tag::kReshard;
  std::unique_ptr<hetcomm::reshard::Order> order;
  std::unique_ptr<hetcomm::reshard::Redistribution> impl;
};
struct hetcomm_group {
  hetcomm::capi::Tag tag = hetcomm::capi::Tag::kGroup;
  hetcomm::Communicator* communicator;
  std::vector<hetcomm::OperationRef> entries;
};

namespace hetcomm::capi {

// Stores |text|, the text of a completion, until this thread stores the next one. Returns the
// stored string, which is empty if memory runs out.
const char* keep_text(const std::string& text) noexcept;
inline Status check_alive(const Context& context) {
  if (context.alive()) [[likely]]
    return {};
  return Status(Code::kForked);
}

inline Status check_device(Context& context, int32_t device) {
  if (device >= 0 && static_cast<size_t>(device) < context.devices().size()) return {};
  return Status(Code::kOutOfRange, "there is no device " + std::to_string(device) +
                                       " in this context: HETCOMM_DEVICES names devices");
}

inline Tag tag_of(const hetcomm_context*) { return Tag::kContext; }
inline Tag tag_of(const hetcomm_memory*) { return Tag::kMemory; }
inline Tag tag_of(const hetcomm_bootstrap*) { return Tag::kBootstrap; }
inline Tag tag_of(const hetcomm_communicator*) { return Tag::kCommunicator; }
inline Tag tag_of(const hetcomm_group*) { return Tag::kGroup; }
inline Tag tag_of(const hetcomm_queue*) { return Tag::kQueue; }
inline Tag tag_of(const hetcomm_layout*) { return Tag::kLayout; }
inline Tag tag_of(const hetcomm_reshard*) { return Tag::kReshard; }
inline Tag tag_of(const hetcomm_stream*) { return Tag::kStream; }
inline Tag tag_of(const hetcomm_remote_memory*) { return Tag::kRemoteMemory; }

template <typename Handle>
bool is_good(const Handle* handle) {
  return handle->tag == tag_of(handle);
}
inline Status bad_handle(const char* name) {
  return Status(Code::kInvalidArgument, std::string(name) + " was destroyed, or is no such handle");
}

// Keeps the memory of a destroyed handle readable until thousands of other handles have been
// destroyed. Only debug builds call it. |memory| must be from operator new.
void quarantine(void* memory, size_t size) noexcept;

template <typename Handle>
void destroy(Handle* handle) {
#ifdef NDEBUG
  delete handle;
#else
  static_assert(alignof(Handle) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
  handle->~Handle();
  quarantine(handle, sizeof(Handle));
#endif
}

#define HETCOMM_REQUIRE_HANDLE(handle)                                                  \
  do {                                                                                  \
    if ((handle) == nullptr) return ::hetcomm::capi::null_argument(#handle);            \
    if (!::hetcomm::capi::is_good(handle)) return ::hetcomm::capi::bad_handle(#handle); \
  } while (false)

}  // namespace hetcomm::capi
