// Wraps a device whose table comes from outside the library, so that its functions return only
// statuses that the table's header allows. Other statuses would mislead the caller. CANCELLED, for
// example, is reserved for the caller, and PENDING would make callers wait.
#pragma once

#include "devices/device.h"
#include "src/base/status.h"

namespace hetcomm {

// Creates a device that forwards calls to |given|, and whose destroy() also destroys |given|. A
// status that a function must not return becomes DEVICE_LOST, and error_text() names that status.
// On failure |given| still belongs to the caller, and the text describes the fault in its table.
Result<Device> make_checked_device(const Device& given);

// Destroys the wrapper that make_checked_device() created, but not the wrapped device.
void drop_wall(const Device& checked);

// Returns whether a plug-in that fails to create a device may return |status|.
bool may_fail_with(hetcomm_status_t status);

}  // namespace hetcomm
