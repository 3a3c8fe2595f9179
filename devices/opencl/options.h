// Parses the text after "opencl:" in HETCOMM_DEVICES, which selects an OpenCL device.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace hetcomm::opencl {

struct Options {
  std::string platform;  // part of the platform's name or version, case-insensitive; empty: all
  uint32_t index = 0;    // index of the device among those of all matching platforms
};

// Parses "1", "platform=pocl" or "platform=intel:1". "" selects the first device of all platforms.
Result<Options> parse_options(std::string_view text);
// Returns whether |name| contains |part|, ignoring case.
bool contains_word(std::string_view name, std::string_view part);

}  // namespace hetcomm::opencl
