// Buffers of plain pointers into memory of devices.
#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "src/capi/guard.h"

namespace hetcomm::capi {

struct PointerMemories::Table {
  std::mutex mutex;
  // Under |mutex|: by device and first byte; and those whose allocations are gone, while operations
  // use them.
  std::map<std::pair<size_t, void*>, std::unique_ptr<hetcomm_memory>> known;
  std::vector<std::unique_ptr<hetcomm_memory>> gone;
};

PointerMemories::PointerMemories() : table_(std::make_unique<Table>()) {}
PointerMemories::~PointerMemories() = default;

hetcomm_memory* PointerMemories::find(Context& context, size_t device, void* base, uint64_t size) {
  const std::lock_guard lock(table_->mutex);
  std::erase_if(table_->gone, [](const auto& memory) { return !memory->in_use(); });
  auto& memory = table_->known[{device, base}];
  if (memory == nullptr || memory->size() != size) {
    auto made =
        std::make_unique<hetcomm_memory>(context, device, base, size, hetcomm::Memory::Unowned{});
    if (memory != nullptr && memory->in_use()) table_->gone.push_back(std::move(memory));
    memory = std::move(made);
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

Status find_buffer(hetcomm_context& context, const void* pointer, uint64_t length,
                   hetcomm_buffer_t* out) {
  const DeviceSet& devices = context.impl->devices();
  for (size_t index = 1; index < devices.size(); ++index) {
    const Device& device = devices.device(index);
    if (device.table->host_accessible || device.table->find == nullptr) continue;
    void* base = nullptr;
    uint64_t size = 0;
    const hetcomm_status_t status = device.table->find(device.instance, pointer, &base, &size);
    if (status == HETCOMM_STALE_HANDLE) {
      return Status(Code::kStaleHandle,
                    std::string("memory of device ") + device.table->kind + " that was freed");
    }
    if (status != HETCOMM_OK) continue;
    const uint64_t before = number_of(pointer) - number_of(base);
    HETCOMM_RETURN_IF_ERROR(check_range(before, length, size));
    hetcomm_memory* const memory = context.pointers.find(*context.impl, index, base, size);
    *out = hetcomm_buffer_memory(memory, before, length);
    return {};
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
