#include "src/base/units.h"

#include <array>
#include <charconv>

#include <fmt/core.h>

namespace hetcomm {
namespace {

struct Unit {
  std::string_view name;
  uint64_t factor;
};

// Parses "<number><unit>" with an optional decimal fraction. |forms| describes the format in the
// error text.
template <size_t N>
Result<uint64_t> parse_with_unit(std::string_view text, const std::array<Unit, N>& units,
                                 std::string_view forms) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  if (error == std::errc() && number >= 0) {
    for (const Unit& candidate : units) {
      if (unit != candidate.name) continue;
      const double value = number * static_cast<double>(candidate.factor);
      if (value < 9e18) return static_cast<uint64_t>(value);
    }
  }
  return Status(Code::kInvalidArgument, fmt::format("'{}' is not {}", text, forms));
}

}  // namespace

Result<uint64_t> parse_duration(std::string_view text) {
  if (text == "inf") return UINT64_MAX;
  static constexpr std::array<Unit, 7> kUnits = {{{"", 1'000'000'000},
                                                  {"s", 1'000'000'000},
                                                  {"ms", 1'000'000},
                                                  {"us", 1'000},
                                                  {"ns", 1},
                                                  {"min", 60'000'000'000},
                                                  {"h", 3'600'000'000'000}}};
  return parse_with_unit(text, kUnits, kDurationForms);
}

Result<uint64_t> parse_size(std::string_view text) {
  static constexpr std::array<Unit, 11> kUnits = {{{"", 1},
                                                   {"B", 1},
                                                   {"K", 1u << 10},
                                                   {"KiB", 1u << 10},
                                                   {"k", 1u << 10},
                                                   {"M", 1u << 20},
                                                   {"MiB", 1u << 20},
                                                   {"m", 1u << 20},
                                                   {"G", 1u << 30},
                                                   {"GiB", 1u << 30},
                                                   {"g", 1u << 30}}};
  return parse_with_unit(text, kUnits, kSizeForms);
}

}  // namespace hetcomm
