#include "devices/device.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <string_view>

#include <fmt/core.h>

#include <hetcomm/datatype.h>

#include "src/base/text.h"

namespace hetcomm {
namespace {

constexpr size_t kLongestKind = 15;

// Returns the name of the first required entry that is missing, or null if none is missing.
const char* missing_entry(const DeviceTable& table) {
  const bool orders = table.user_stream_open != nullptr || table.user_stream_close != nullptr ||
                      table.user_stream_record != nullptr || table.user_stream_hold != nullptr ||
                      table.hold_end != nullptr || table.stream_native != nullptr;
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
      {"pin_host", table.pin_host != nullptr || table.unpin_host == nullptr},
      {"unpin_host", table.unpin_host != nullptr || table.pin_host == nullptr},
      {"retain", table.retain != nullptr || table.release == nullptr},
      {"release", table.release != nullptr || table.retain == nullptr},
      {"allocate_host", table.allocate_host != nullptr || table.free_host == nullptr},
      {"free_host", table.free_host != nullptr || table.allocate_host == nullptr},
      {"user_stream_open", table.user_stream_open != nullptr || !orders},
      {"user_stream_close", table.user_stream_close != nullptr || !orders},
      {"user_stream_record", table.user_stream_record != nullptr || !orders},
      {"user_stream_hold", table.user_stream_hold != nullptr || table.hold_end == nullptr},
      {"hold_end", table.hold_end != nullptr || table.user_stream_hold == nullptr},
      {"stream_native", table.stream_native != nullptr || !orders},
  };
  for (const auto& entry : needed) {
    if (!entry.is_there) return entry.name;
  }
  return nullptr;
}

// The handle of every stream and event of devices without streams.
char no_stream;

// Adds stream and event functions to a table that has none. The copies of a device without streams
// are complete when the call that starts them returns.
void add_streams(DeviceTable& table) {
  const bool tells_more = table.event_notify != nullptr || table.stream_native != nullptr ||
                          table.user_stream_open != nullptr || table.user_stream_close != nullptr ||
                          table.user_stream_record != nullptr ||
                          table.user_stream_hold != nullptr || table.hold_end != nullptr;
  if (tells_more || table.stream_create != nullptr || table.stream_destroy != nullptr ||
      table.event_record != nullptr || table.event_query != nullptr ||
      table.event_wait != nullptr || table.event_release != nullptr) {
    return;
  }
  table.stream_create = [](void*, void** out_stream) {
    if (out_stream == nullptr) return hetcomm_status_t{HETCOMM_INVALID_ARGUMENT};
    *out_stream = &no_stream;
    return hetcomm_status_t{HETCOMM_OK};
  };
  table.stream_destroy = [](void*, void*) {};
  table.event_record = [](void*, void* stream, void** out_event) {
    if (stream == nullptr || out_event == nullptr) {
      return hetcomm_status_t{HETCOMM_INVALID_ARGUMENT};
    }
    *out_event = &no_stream;
    return hetcomm_status_t{HETCOMM_OK};
  };
  table.event_query = table.event_wait = [](void*, void* event) {
    return hetcomm_status_t{event != nullptr ? HETCOMM_OK : HETCOMM_INVALID_ARGUMENT};
  };
  table.event_release = [](void*, void*) {};
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

bool span_of(const DeviceRows& rows, uint64_t* out_size) {
  *out_size = 0;
  if (rows.row_bytes == 0 || rows.extents[0] == 0 || rows.extents[1] == 0) return true;
  uint64_t size = rows.row_bytes;
  for (size_t d = 0; d < 2; ++d) {
    uint64_t distance = 0;
    if (__builtin_mul_overflow(rows.extents[d] - 1, rows.strides[d], &distance) ||
        __builtin_add_overflow(size, distance, &size)) {
      return false;
    }
  }
  uint64_t rows_in_all = 0;
  uint64_t bytes = 0;
  *out_size = size;
  return !__builtin_mul_overflow(rows.extents[0], rows.extents[1], &rows_in_all) &&
         !__builtin_mul_overflow(rows_in_all, rows.row_bytes, &bytes);
}

uint64_t element_bytes(int32_t datatype) {
#define HETCOMM_DATATYPE_SIZE(name, value, bytes) bytes,
  constexpr uint64_t kSizes[] = {HETCOMM_DATATYPE_MAP(HETCOMM_DATATYPE_SIZE)};
#undef HETCOMM_DATATYPE_SIZE
  return datatype >= 0 && static_cast<size_t>(datatype) < std::size(kSizes) ? kSizes[datatype] : 0;
}

namespace {

// Returns whether sums and products of |type| are calculated in float32.
bool is_narrow_float(hetcomm_datatype_t type) {
  return type >= HETCOMM_FLOAT16 && type <= HETCOMM_FLOAT8_E5M2;
}

}  // namespace

Code sizes_of(const DeviceReduction& reduction, ReductionSizes* out_sizes) {
  const hetcomm_datatype_t type = reduction.datatype;
  const bool widens = is_narrow_float(type) && (reduction.reduction == HETCOMM_REDUCE_SUM ||
                                                reduction.reduction == HETCOMM_REDUCE_PRODUCT);
  const auto fits = [&](hetcomm_datatype_t other) {
    return other == type || (widens && other == HETCOMM_FLOAT32);
  };
  const bool divides =
      widens && reduction.reduction == HETCOMM_REDUCE_SUM && reduction.out_datatype == type;
  if (element_bytes(type) == 0 || reduction.reduction < HETCOMM_REDUCE_SUM ||
      reduction.reduction > HETCOMM_REDUCE_XOR || !fits(reduction.first_datatype) ||
      !fits(reduction.out_datatype) || reduction.divisor == 0 ||
      (reduction.divisor != 1 && !divides) || reduction.reserved != 0) {
    return Code::kInvalidArgument;
  }
  const auto bytes = [&](hetcomm_datatype_t each, uint64_t* out_bytes) {
    return !__builtin_mul_overflow(reduction.elements, element_bytes(each), out_bytes);
  };
  return bytes(reduction.first_datatype, &out_sizes->first) && bytes(type, &out_sizes->second) &&
                 bytes(reduction.out_datatype, &out_sizes->out)
             ? Code::kOk
             : Code::kOutOfRange;
}

const char* name_of(const Device& device) {
  const char* const name = device.table->name(device.instance);
  return name != nullptr ? name : device.table->kind;
}

std::string failure_text(const Device& device, hetcomm_status_t status) {
  std::string text(code_text(static_cast<Code>(status)));
  const bool is_devices = status == HETCOMM_DEVICE_LOST || status == HETCOMM_OUT_OF_MEMORY ||
                          status == HETCOMM_OUT_OF_RESOURCES;
  if (!is_devices || device.table->error_text == nullptr) return text;
  std::array<char, 512> said{};
  device.table->error_text(device.instance, said.data(), said.size());
  said.back() = '\0';
  if (said.front() != '\0') text += fmt::format(" ({})", printable(said.data()));
  return text;
}

Result<DeviceTable> complete_table(const DeviceTable* given) {
  if (given == nullptr) return Status(Code::kUnsupported, "the device has no table");
  // The first version of the table ended with this entry.
  constexpr uint64_t kMin = offsetof(DeviceTable, release) + sizeof(given->release);
  if (given->struct_size < kMin) {
    return Status(Code::kUnsupported,
                  fmt::format("the device's table says that it has {} bytes, and the first version "
                              "has {}: set its struct_size",
                              given->struct_size, kMin));
  }
  DeviceTable table{};
  // An entry that struct_size includes only in part counts as missing.
  const uint64_t whole = given->struct_size - given->struct_size % sizeof(void*);
  std::memcpy(&table, given, std::min<uint64_t>(whole, sizeof(table)));
  table.struct_size = sizeof(table);
  if (table.kind == nullptr || !is_device_kind(table.kind)) {
    return Status(
        Code::kUnsupported,
        fmt::format("'{}' is no name of a kind of device: it has 1 to {} letters, digits, "
                    "'-' and '_'",
                    printable(table.kind != nullptr ? table.kind : ""), kLongestKind));
  }
  add_streams(table);
  if (const char* const missing = missing_entry(table)) {
    return Status(Code::kUnsupported,
                  fmt::format("the table of {} has no {}(): provide one", table.kind, missing));
  }
  return table;
}

}  // namespace hetcomm
