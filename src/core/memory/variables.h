// Declares the configuration variables of device memory.
#pragma once

#include "src/system/variable.h"

namespace hetcomm::variable {

inline constexpr Variable kDeviceSums(
    kChoice, kNoFile, "HETCOMM_DEVICE_SUMS", "auto", "auto|off|on",
    "Whether devices that can reduce make the sums of collective operations between hosts; auto: "
    "where that was quicker lately, the way to the device and back included.");
inline constexpr Variable kDeviceTimeout(
    kDuration, kNoFile, "HETCOMM_DEVICE_TIMEOUT", "60s", nullptr,
    "A device no copy of which has ended for so long, while some are under way, is reported; inf: "
    "none is.",
    at_least(kMs));
inline constexpr Variable kDeviceTimeoutAbandon(
    kChoice, kNoFile, "HETCOMM_DEVICE_TIMEOUT_ABANDON", "off", "off|on",
    "Whether such a device is given up, as by hetcomm_device_abandon: its operations end, and "
    "their "
    "memory on it must not be used again.");
inline constexpr Variable kStagingChunk(
    kSize, kNoFile, "HETCOMM_STAGING_CHUNK", "0", nullptr,
    "Chunk in which device memory that a transport cannot reach is staged through the host; 0 "
    "chooses it by the size of the message and the rates that were measured.",
    zero_or(4 * kKi, kGi));
inline constexpr Variable kStagingDepth(
    kInteger, kNoFile, "HETCOMM_STAGING_DEPTH", "0", nullptr,
    "Chunks of one message that are staged at a time; 0 chooses it by their size.", at_most(16));
inline constexpr Variable kStagingPin(
    kChoice, kNoFile, "HETCOMM_STAGING_PIN", "on", "off|on",
    "Whether chunks lie in memory that devices have pinned. Copies are slower without.");

inline constexpr const Variable* kCoreMemoryVariables[] = {&kDeviceSums,           &kDeviceTimeout,
                                                           &kDeviceTimeoutAbandon, &kStagingChunk,
                                                           &kStagingDepth,         &kStagingPin};

}  // namespace hetcomm::variable
