// Declares the function table of an opaque device, the only interface through which core and the
// transports use devices. Each kind of device fills hetcomm_device_table_t, whose header specifies
// each entry. Plug-ins can provide further kinds.
//
// An optional entry that a device does not provide is null, even if the device was built with an
// older header.
#pragma once

#include <string>
#include <string_view>

#include <hetcomm/device_plugin.h>

#include "src/base/status.h"

namespace hetcomm {

using DeviceTable = hetcomm_device_table_t;
using DeviceRows = hetcomm_device_rows_t;
using DeviceReduction = hetcomm_device_reduction_t;
// A device in a context. The table outlives the instance.
using Device = hetcomm_device_t;

inline DeviceRows one_row(uint64_t offset, uint64_t bytes) {
  return {.offset = offset, .row_bytes = bytes, .extents = {1, 1}, .strides = {0, 0}};
}

inline uint64_t bytes_of(const DeviceRows& rows) {
  return rows.extents[0] * rows.extents[1] * rows.row_bytes;
}

// Returns whether the rows of |one| and |other| have the same shape, so that they can be copied row
// by row.
inline bool have_one_shape(const DeviceRows& one, const DeviceRows& other) {
  return one.row_bytes == other.row_bytes && one.extents[0] == other.extents[0] &&
         one.extents[1] == other.extents[1];
}

// Computes the number of bytes from the beginning of the first row to the end of the last one, or 0
// if there are no rows. Returns false if they exceed the address space.
bool span_of(const DeviceRows& rows, uint64_t* out_size);

// Returns the size in bytes of an element of a hetcomm_datatype_t, or 0 for an unknown type.
uint64_t element_bytes(int32_t datatype);

// Sizes in bytes of the three buffers of a reduction.
struct ReductionSizes {
  uint64_t first = 0;
  uint64_t second = 0;
  uint64_t out = 0;
};

// Computes the sizes of the buffers of |reduction|. INVALID_ARGUMENT: the types, the operator and
// the divisor are incompatible. OUT_OF_RANGE: the elements exceed the address space.
Code sizes_of(const DeviceReduction& reduction, ReductionSizes* out_sizes);

// Returns whether |name| is allowed as the name of a kind of devices.
bool is_device_kind(std::string_view name);

// Returns the device's human-readable name, or the name of its kind if it has none.
const char* name_of(const Device& device);

// Returns a text that explains |status|, which a call to |device| has just returned. If the device
// was lost or lacks memory or resources, adds the vendor's text, if any.
std::string failure_text(const Device& device, hetcomm_status_t status);

// Copies |given|, which may come from another version of the header, and adds streams and events if
// they are missing. UNSUPPORTED: |given| is unusable, for instance because a required entry is
// missing. The text gives the reason.
Result<DeviceTable> complete_table(const DeviceTable* given);

}  // namespace hetcomm
