// A wall around a device that somebody else's table drives: its functions return what the table
// promises, and nothing else. A status that no such function may return would mislead who reads it:
// CANCELLED is a caller's, and PENDING lets everybody wait.
#pragma once

#include "devices/device.h"
#include "src/base/status.h"

namespace hetcomm {

// A device that calls |given| and whose destroy() destroys it. A status that a function may not
// return becomes DEVICE_LOST, and error_text() says which it was. After a failure |given| is still
// the caller's; the text says what its table lacks.
Result<Device> make_checked_device(const Device& given);

// Ends what make_checked_device() has made without destroying the device behind it.
void drop_wall(const Device& checked);

// Whether a plug-in that makes no device may say so by |status|.
bool may_fail_with(hetcomm_status_t status);

}  // namespace hetcomm
