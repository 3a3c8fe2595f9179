#include "src/core/device/device_kinds.h"

#include <cstring>
#include <new>

namespace hetcomm {

bool DeviceKinds::make_room() {
  std::unique_ptr<Kind>& next = kinds_[count_.load(std::memory_order_relaxed)];
  if (next == nullptr) next.reset(new (std::nothrow) Kind);
  return next != nullptr;
}

void DeviceKinds::add(const Device& device, size_t index) {
  const DeviceTable& table = *device.table;
  if (table.host_accessible != 0) return;
  const size_t count = count_.load(std::memory_order_relaxed);
  Kind* kind = nullptr;
  for (size_t i = 0; i < count && table.locate != nullptr; ++i) {
    const DeviceTable& known = *kinds_[i]->table;
    if (known.locate == table.locate && std::strcmp(known.kind, table.kind) == 0) {
      kind = kinds_[i].get();
    }
  }
  const bool is_first = kind == nullptr;
  if (is_first) {
    kind = kinds_[count].get();
    kind->table = &table;
  }
  const size_t number = kind->count.load(std::memory_order_relaxed);
  kind->instances[number] = device.instance;
  kind->numbers[number] = static_cast<uint16_t>(index);
  kind->count.store(number + 1, std::memory_order_release);
  if (is_first) count_.store(count + 1, std::memory_order_release);
}

// Queries the devices of one kind. A device without locate() is a kind by itself.
Code DeviceKinds::ask(const Kind& kind, size_t count, const void* address, Found* out_found,
                      size_t* out_failed) {
  hetcomm_device_place_t found{};
  const auto status = static_cast<Code>(
      kind.table->locate != nullptr
          ? kind.table->locate(kind.instances.data(), count, address, &found)
          : kind.table->find(kind.instances[0], address, &found.base, &found.size));
  const bool names_one = status != Code::kOk || found.device < count;
  if (status == Code::kOk && names_one) {
    *out_found = {.device = kind.numbers[found.device],
                  .base = found.base,
                  .size = found.size,
                  .allocation_id = found.allocation_id};
  } else {
    *out_failed = kind.numbers[0];
  }
  return names_one ? status : Code::kDeviceLost;
}

Code DeviceKinds::find(const void* address, Found* out_found, size_t* out_failed) const {
  const size_t count = count_.load(std::memory_order_acquire);
  Code failure = Code::kNotFound;
  size_t failed = 0;
  for (size_t i = 0; i < count; ++i) {
    const Kind& kind = *kinds_[i];
    const Code code =
        ask(kind, kind.count.load(std::memory_order_acquire), address, out_found, out_failed);
    if (code == Code::kOk) return code;
    if (code == Code::kNotFound || failure != Code::kNotFound) continue;
    failure = code;
    failed = *out_failed;
  }
  *out_failed = failed;
  return failure;
}

bool DeviceKinds::is_object(const void* address, size_t* out_device) const {
  const size_t count = count_.load(std::memory_order_acquire);
  for (size_t i = 0; i < count; ++i) {
    const Kind& kind = *kinds_[i];
    if (kind.table->names_object == nullptr) continue;
    *out_device = kind.numbers[0];
    if (kind.table->names_object(kind.instances[0], address) != 0) return true;
  }
  return false;
}

}  // namespace hetcomm
