#include "src/base/text.h"

#include <charconv>
#include <cstdint>

#include <fmt/core.h>

namespace hetcomm {
namespace {

// Returns the number of bytes of the character at the start of |text|. Returns 0 if the character
// must not be printed: if it is a control character of ASCII or Latin-1 (U+0080 to U+009F), or is
// not valid UTF-8.
size_t character_bytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  size_t size = 0;
  uint32_t least = 0;
  if ((first & 0xe0) == 0xc0) {
    size = 2;
    least = 0xa0;
  } else if ((first & 0xf0) == 0xe0) {
    size = 3;
    least = 0x800;
  } else if ((first & 0xf8) == 0xf0) {
    size = 4;
    least = 0x10000;
  }
  if (size == 0 || text.size() < size) return 0;
  uint32_t point = first & (0xffu >> (size + 1));
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    point = point << 6 | (byte(i) & 0x3fu);
  }
  const bool is_surrogate = point >= 0xd800 && point <= 0xdfff;
  return point < least || is_surrogate || point > 0x10ffff ? 0 : size;
}

std::string cleaned(std::string_view text, bool keep_line_ends) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    size_t size = character_bytes(text);
    if (size == 0 && keep_line_ends && text[0] == '\n') size = 1;
    if (size == 0) {
      result += fmt::format("\\x{:02x}", static_cast<uint8_t>(text[0]));
      size = 1;
    } else {
      result += text.substr(0, size);
    }
    text.remove_prefix(size);
  }
  return result;
}

}  // namespace

std::string duration_text(uint64_t ns) {
  constexpr uint64_t kUs = 1'000;
  constexpr uint64_t kMs = 1'000 * kUs;
  constexpr uint64_t kSecond = 1'000 * kMs;
  if (ns % kSecond == 0) return fmt::format("{} s", ns / kSecond);
  const auto in = [ns](uint64_t unit) {
    return static_cast<double>(ns) / static_cast<double>(unit);
  };
  if (ns > kSecond) return fmt::format("{:.4g} s", in(kSecond));
  if (ns > kMs || ns % kMs == 0) return fmt::format("{:.4g} ms", in(kMs));
  return fmt::format("{:.4g} us", in(kUs));
}

double leading_number(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() ? number : 0;
}

std::string printable(std::string_view text) { return cleaned(text, false); }

std::string printable_beginning(std::string_view text, size_t most_bytes) {
  std::string result = printable(text);
  if (result.size() <= most_bytes) return result;
  size_t end = most_bytes;
  while (end > 0 && (static_cast<uint8_t>(result[end]) & 0xc0) == 0x80) --end;
  result.resize(end);
  return result;
}

std::string printable_lines(std::string_view text) { return cleaned(text, true); }

}  // namespace hetcomm
