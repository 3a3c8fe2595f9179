#include "devices/device.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "src/base/text.h"

namespace hetcomm {
namespace {

constexpr size_t kLongestKind = 15;

// The first entry that is missing; null: none is.
const char* missing_entry(const DeviceTable& table) {
  const struct {
    const char* name;
    bool is_there;
  } needed[] = {
      {"destroy", table.destroy != nullptr},
      {"name", table.name != nullptr},
      {"allocate", table.allocate != nullptr},
      {"free", table.free != nullptr},
      {"find", table.find != nullptr || table.host_accessible != 0},
      {"stream_create", table.stream_create != nullptr},
      {"stream_destroy", table.stream_destroy != nullptr},
      {"copy_to_host", table.copy_to_host != nullptr},
      {"copy_from_host", table.copy_from_host != nullptr},
      {"copy_rows_to_host", table.copy_rows_to_host != nullptr || !table.copy_rows_from_host},
      {"copy_rows_from_host", table.copy_rows_from_host != nullptr || !table.copy_rows_to_host},
      {"event_record", table.event_record != nullptr},
      {"event_query", table.event_query != nullptr},
      {"event_wait", table.event_wait != nullptr},
      {"event_release", table.event_release != nullptr},
      {"unpin_host", table.unpin_host != nullptr || table.pin_host == nullptr},
  };
  for (const auto& entry : needed) {
    if (!entry.is_there) return entry.name;
  }
  return nullptr;
}

}  // namespace

bool is_device_kind(std::string_view name) {
  const auto fits = [](char letter) {
    return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
           (letter >= '0' && letter <= '9') || letter == '-' || letter == '_';
  };
  return !name.empty() && name.size() <= kLongestKind &&
         std::all_of(name.begin(), name.end(), fits);
}

Result<DeviceTable> complete_table(const DeviceTable* given) {
  if (given == nullptr) return Status(Code::kUnsupported, "the device has no table");
  // All entries up to here were in the first version.
  constexpr uint64_t kLeast = offsetof(DeviceTable, pci_address) + sizeof(given->pci_address);
  if (given->struct_size < kLeast) {
    return Status(Code::kUnsupported,
                  fmt::format("the device's table says that it has {} bytes, and the first version "
                              "has {}: set its struct_size",
                              given->struct_size, kLeast));
  }
  DeviceTable table{};
  std::memcpy(&table, given, std::min<uint64_t>(given->struct_size, sizeof(table)));
  table.struct_size = sizeof(table);
  if (table.kind == nullptr || !is_device_kind(table.kind)) {
    return Status(
        Code::kUnsupported,
        fmt::format("'{}' is no name of a kind of device: it has 1 to {} letters, digits, "
                    "'-' and '_'",
                    printable(table.kind != nullptr ? table.kind : ""), kLongestKind));
  }
  if (const char* const missing = missing_entry(table)) {
    return Status(Code::kUnsupported,
                  fmt::format("the table of {} has no {}(): provide one", table.kind, missing));
  }
  return table;
}

}  // namespace hetcomm
