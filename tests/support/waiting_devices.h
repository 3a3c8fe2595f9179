// Devices of a vendor whose calls block while a user's stream is held back on any device: calls
// that allocate or free memory, pin or unpin it, end a stream or release an event. Many vendors
// block in some of these. Each call waits for the holds that existed when it began.
//
// A call that waits longer than a test may take fails the test and continues.
#pragma once

#include <vector>

#include "devices/device.h"

namespace hetcomm::test {

// Returns |devices|, all in one context, with tables whose calls wait.
std::vector<Device> waiting(const std::vector<Device>& devices);

// Returns the table behind a device from waiting(), or |device|'s own table. A hold that a test
// places through it acts like a user's long kernel. The table's own calls do not wait.
const DeviceTable& real_table(const Device& device);

}  // namespace hetcomm::test
