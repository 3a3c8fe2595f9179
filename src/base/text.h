// Texts beside an outcome: worth having, and not worth failing for. Texts of peers, made harmless.
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
// function: |make| may need the baton, which the caller then holds.
template <typename Make>
std::string text_or_none(Make&& make) noexcept HETCOMM_NO_THREAD_SAFETY_ANALYSIS {
  try {
    return std::forward<Make>(make)();
  } catch (const std::bad_alloc&) {
    return {};
  }
}

// |code| with the text that |make| returns; with its own when memory runs out. It is not analysed
// for the same reason.
template <typename Make>
Status status_or_code(Code code, Make&& make) noexcept HETCOMM_NO_THREAD_SAFETY_ANALYSIS {
  try {
    return {code, std::forward<Make>(make)()};
  } catch (const std::bad_alloc&) {
    return code;
  }
}

// The decimal number that |text| begins with, whatever the locale; 0: there is none.
double leading_number(std::string_view text);

// |ns| as people write it: "3 s", "500 ms", "2.5 s", "40 us".
std::string duration_text(uint64_t ns);

// |text| for terminals and logs, whoever it comes from: control characters and bytes that are no
// UTF-8 are written as \xNN, so that none of them acts on a terminal or fakes a line of its own.
std::string printable(std::string_view text);
// The beginning of printable(text) that fits |most_bytes| and ends with a whole character.
std::string printable_beginning(std::string_view text, size_t most_bytes);
// Does what printable() does, but keeps line ends.
std::string printable_lines(std::string_view text);

}  // namespace hetcomm
