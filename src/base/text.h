// Makes texts that explain an outcome, or leaves them out if memory runs out. Makes texts from
// peers harmless.
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

// Returns what |make| returns, or an empty text if memory runs out. clang does not analyse the
// function, because |make| may need the baton. In that case the caller holds the baton.
template <typename Make>
std::string text_or_none(Make&& make) noexcept HETCOMM_NO_THREAD_SAFETY_ANALYSIS {
  try {
    return std::forward<Make>(make)();
  } catch (const std::bad_alloc&) {
    return {};
  }
}

// Returns |code| with the text that |make| returns, or with the code's default text if out of
// memory. clang does not analyse the function, because |make| may need the baton.
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

// Formats |ns| as people write it: "3 s", "500 ms", "2.5 s", "40 us".
std::string duration_text(uint64_t ns);

// Returns |text| with control characters, and bytes that are not UTF-8, written as \xNN. The result
// cannot control a terminal or fake a log line, whatever its source.
std::string printable(std::string_view text);
// Returns the beginning of printable(text) that fits |most_bytes| and ends with a whole character.
std::string printable_beginning(std::string_view text, size_t most_bytes);
// Returns what printable() does, but keeps line ends.
std::string printable_lines(std::string_view text);

}  // namespace hetcomm
