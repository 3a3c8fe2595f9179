// Devices of a vendor whose calls block while a user's stream is held back on any of them: calls
// that allocate and free memory, pin and unpin, end a stream and release an event. Many vendors do
// so for some of these. Each call waits for the holds that existed when it began.
//
// A call that waits for longer than a test may take fails the test and goes on.
#pragma once

#include <vector>

#include "devices/device.h"

namespace hetcomm::test {

// Returns |devices|, all of one context, with tables that wait.
std::vector<Device> waiting(const std::vector<Device>& devices);

// The table behind a device of waiting(), or |device|'s own. A hold that a test makes through it
// acts like a user's long kernel, and its own calls do not wait.
const DeviceTable& real_table(const Device& device);

}  // namespace hetcomm::test
