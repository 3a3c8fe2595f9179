// Devices of a vendor whose calls wait as long as a stream of a user is held back on any of them:
// those that allocate and free memory, pin and unpin, end a stream and release an event. Many
// vendors do so for some of these. Each call waits for the holds that stood when it began.
//
// A call that waits for longer than a test may take fails the test and goes on.
#pragma once

#include <vector>

#include "devices/device.h"

namespace hetcomm::test {

// Gives tables that wait to |devices|, which are those of one context.
std::vector<Device> waiting(const std::vector<Device>& devices);

// The table that a device of waiting() stands before, or |device|'s own. What a test holds back by
// it is as a user's kernel that runs long, and no call waits for it.
const DeviceTable& real_table(const Device& device);

}  // namespace hetcomm::test
