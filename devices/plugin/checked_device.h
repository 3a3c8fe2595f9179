// Wraps a device whose table comes from another party, so that its functions return only statuses
// that the table's header allows. Other statuses would mislead the caller. CANCELLED, for example,
// is reserved for the caller, and PENDING would make callers wait.
#pragma once

#include "devices/device.h"
#include "src/base/status.h"

namespace hetcomm {

// Makes a device that calls |given| and whose destroy() destroys |given|. A status that a function
// must not return becomes DEVICE_LOST, and error_text() names that status. On failure |given| still
// belongs to the caller, and the text names what its table lacks.
Result<Device> make_checked_device(const Device& given);

// Destroys the wrapper that make_checked_device() made, but not the wrapped device.
void drop_wall(const Device& checked);

// Returns whether a plug-in that fails to make a device may return |status|.
bool may_fail_with(hetcomm_status_t status);

}  // namespace hetcomm
