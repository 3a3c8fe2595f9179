// Implements hetcomm_buffer_pointer(), which makes buffers from plain pointers.
#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "src/capi/guard.h"

namespace hetcomm::capi {

struct PointerMemories::Table {
  struct Known {
    std::unique_ptr<hetcomm_memory> memory;
    uint64_t allocation_id = 0;
  };
  std::mutex mutex;
  // Memories by device index and base address. Guarded by |mutex|.
  std::map<std::pair<size_t, void*>, Known> known;
  // Memories whose allocations no longer exist, but which operations may still use. Guarded by
  // |mutex|.
  std::vector<std::unique_ptr<hetcomm_memory>> gone;
  size_t sweep_at = 1;  // size of |gone| at which keep() frees the unused memories in it

  // Moves |memory| to |gone|. From time to time also frees memories in |gone| that are no longer
  // used, at amortized constant cost.
  void keep(std::unique_ptr<hetcomm_memory>& memory) {
    gone.push_back(std::move(memory));
    if (gone.size() < sweep_at) return;
    std::erase_if(gone, [](const auto& each) { return !each->in_use(); });
    sweep_at = 2 * gone.size() + 1;
  }
};

PointerMemories::PointerMemories() : table_(std::make_unique<Table>()) {}
PointerMemories::~PointerMemories() = default;

hetcomm_memory* PointerMemories::find(Context& context, const DeviceKinds::Found& found) {
  const std::lock_guard lock(table_->mutex);
  auto& [memory, id] = table_->known[{found.device, found.base}];
  if (memory == nullptr || memory->size() != found.size || id != found.allocation_id) {
    auto made = std::make_unique<hetcomm_memory>(context, found.device, found.base, found.size,
                                                 hetcomm::Memory::Unowned{});
    if (memory != nullptr && memory->in_use()) table_->keep(memory);
    memory = std::move(made);
    id = found.allocation_id;
  }
  return memory.get();
}

namespace {

uint64_t number_of(const void* address) { return reinterpret_cast<uintptr_t>(address); }

Status check_range(uint64_t before, uint64_t length, uint64_t size) {
  if (before <= size && length <= size - before) return {};
  return Status(Code::kOutOfRange,
                "the range ends past the allocation's " + std::to_string(size) + " bytes");
}

// Returns the failure of a lookup for which device |index| has returned |code|. Either the
// pointer's device memory was freed, or the device cannot determine whether it owns the pointer.
Status refusal(const DeviceSet& devices, Code code, size_t index) {
  const Device& device = devices.device(index);
  const char* const kind = device.table->kind;
  if (code == Code::kStaleHandle) {
    return Status(code, fmt::format("memory of device {} that was freed", kind));
  }
  return Status(
      code, fmt::format("{}: the device cannot tell whether the pointer is its memory: {}", kind,
                        failure_text(device, static_cast<hetcomm_status_t>(code))));
}

Status object_refusal(const DeviceSet& devices, size_t index) {
  return Status(Code::kInvalidArgument,
                fmt::format("the pointer is a handle of {}, which no memory of this context names: "
                            "hetcomm_memory_wrap() makes a memory of it; host memory that only "
                            "looks like one is named by hetcomm_buffer_host()",
                            devices.device(index).table->kind));
}

Status find_buffer(hetcomm_context& context, const void* pointer, uint64_t length,
                   hetcomm_buffer_t* out) {
  const DeviceSet& devices = context.impl->devices();
  DeviceKinds::Found found;
  size_t failed = 0;
  const Code code = devices.kinds().find(pointer, &found, &failed);
  if (code == Code::kOk) {
    const uint64_t before = number_of(pointer) - number_of(found.base);
    HETCOMM_RETURN_IF_ERROR(check_range(before, length, found.size));
    *out = hetcomm_buffer_memory(context.pointers.find(*context.impl, found), before, length);
    return {};
  }
  if (code != Code::kNotFound) return refusal(devices, code, failed);
  if (length != 0 && devices.kinds().is_object(pointer, &failed)) {
    return object_refusal(devices, failed);
  }
  if (length > UINT64_MAX - number_of(pointer)) {
    return Status(Code::kOutOfRange, "the range ends past the address space");
  }
  *out = hetcomm_buffer_host(pointer, length);
  return {};
}

}  // namespace
}  // namespace hetcomm::capi

hetcomm_status_t hetcomm_buffer_pointer(hetcomm_context_t* context, const void* pointer,
                                        uint64_t length, hetcomm_buffer_t* out_buffer) noexcept {
  namespace capi = hetcomm::capi;
  return capi::guard([&]() -> hetcomm::Status {
    HETCOMM_REQUIRE_HANDLE(context);
    HETCOMM_REQUIRE(out_buffer);
    HETCOMM_RETURN_IF_ERROR(capi::check_alive(*context->impl));
    if (pointer == nullptr && length != 0) return capi::null_argument("pointer");
    return capi::find_buffer(*context, pointer, length, out_buffer);
  });
}
