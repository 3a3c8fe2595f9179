// Parses durations and sizes as users write them.
#pragma once

#include <cstdint>
#include <string_view>

#include "src/base/status.h"

namespace hetcomm {

// Descriptions of the accepted formats, for error texts.
inline constexpr std::string_view kDurationForms =
    "a duration: a number of seconds, or with h, min, s, ms, us or ns, such as 1.5s or 500ms; or "
    "inf";
inline constexpr std::string_view kSizeForms =
    "a size: a number of bytes, or with K, M or G, powers of 1024, such as 4096, 64K or 1.5M";

// Parses a duration such as "10s", "500ms", "30us" or "2min", and returns nanoseconds. "inf" gives
// UINT64_MAX. A number without a unit is in seconds. Fails with INVALID_ARGUMENT for any other
// text.
Result<uint64_t> parse_duration(std::string_view text);
// Parses a size such as "64K", "1MiB" or "4096", and returns bytes. K, M and G are powers of 1024.
// Fails with INVALID_ARGUMENT for any other text.
Result<uint64_t> parse_size(std::string_view text);

}  // namespace hetcomm
