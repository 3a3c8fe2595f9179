// Builds error texts, or omits them if memory runs out. Formats durations. Makes texts from peers
// safe to print.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "src/base/status.h"
#include "src/base/thread_safety.h"

namespace hetcomm {

// Returns the result of make(), or an empty text if memory runs out. Thread-safety analysis is off,
// because |make| may need the baton. In that case the caller must hold it.
template <typename Make>
std::string text_or_none(Make&& make) noexcept HETCOMM_NO_THREAD_SAFETY_ANALYSIS {
  try {
    return std::forward<Make>(make)();
  } catch (const std::bad_alloc&) {
    return {};
  }
}

// Returns |code| with the text that make() returns, or with the code's default text if memory runs
// out. Thread-safety analysis is off, because |make| may need the baton.
template <typename Make>
Status status_or_code(Code code, Make&& make) noexcept HETCOMM_NO_THREAD_SAFETY_ANALYSIS {
  try {
    return {code, std::forward<Make>(make)()};
  } catch (const std::bad_alloc&) {
    return code;
  }
}

// Returns the decimal number at the start of |text|, or 0 if there is none. Does not depend on the
// locale.
double leading_number(std::string_view text);

// Formats |ns| for people: "3 s", "500 ms", "2.5 s", "40 us".
std::string duration_text(uint64_t ns);

// Returns |text| with control characters and invalid UTF-8 bytes escaped as \xNN. The result cannot
// control a terminal or fake a log line, even if |text| comes from an attacker.
std::string printable(std::string_view text);
// Returns the longest beginning of printable(text) that has at most |most_bytes| bytes and does not
// split a character.
std::string printable_beginning(std::string_view text, size_t most_bytes);
// Like printable(), but keeps line feeds.
std::string printable_lines(std::string_view text);

}  // namespace hetcomm
