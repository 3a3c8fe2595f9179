// Wraps a device that another party's table drives, so that its functions return only what the
// table promises. A status that no such function may return would mislead its reader. CANCELLED
// belongs to the caller, and PENDING would make callers wait.
#pragma once

#include "devices/device.h"
#include "src/base/status.h"

namespace hetcomm {

// Makes a device that calls |given| and whose destroy() destroys it. A status that a function may
// not return becomes DEVICE_LOST, and error_text() names it. If this fails, |given| still belongs
// to the caller, and the text says what its table lacks.
Result<Device> make_checked_device(const Device& given);

// Destroys the wrapper that make_checked_device() made, but not the device behind it.
void drop_wall(const Device& checked);

// Whether a plug-in that makes no device may report that by |status|.
bool may_fail_with(hetcomm_status_t status);

}  // namespace hetcomm
