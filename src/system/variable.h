// A Variable describes a HETCOMM_* variable: its name, type, default and meaning. Each layer
// declares its own variables in a variables.h. src/capi/variables.h lists all variables, and
// `hetcomm_info --variables` prints that list.
#pragma once

#include <cstdint>

namespace hetcomm {

enum class VariableType : uint8_t { kText, kSecretText, kDuration, kSize, kInteger, kChoice };

// The kind of object that a variable's value names. In a program that has more rights than its
// caller (privilege.h), environment variables that name files or libraries are ignored. Otherwise
// the caller could use the program's rights to read, write or run files to which it has no access.
// Variables that decide which peers the process trusts are ignored too.
enum class Naming : uint8_t {
  kNoFile,
  kFile,   // a file or a library
  kTrust,  // decides which peers the process trusts; loading fails if it is ignored
};

// The meaning of the number 0, if it is special.
enum class Zero : uint8_t { kNumber, kAllowed, kDefault };

// The inclusive range of a number, a size or a duration.
struct Limits {
  uint64_t least = 0;
  uint64_t most = UINT64_MAX;
  Zero zero = Zero::kNumber;  // kAllowed: 0 is valid too; kDefault: 0 means the default
};

// Variable describes one variable. A Config identifies a variable by the address of this object.
struct Variable {
  VariableType type;
  Naming names;
  const char* name;           // "HETCOMM_LOG"
  const char* default_value;  // as a user would write it
  const char* choices;        // kChoice: "a|b|c"
  const char* meaning;        // one sentence
  Limits limits;
  // The variable that is unset when the caller's settings give this variable a non-empty value.
  const Variable* displaced;

  constexpr Variable(VariableType own_type, Naming own_names, const char* own_name,
                     const char* own_default, const char* own_choices, const char* own_meaning,
                     Limits own_limits = {}, const Variable* own_displaced = nullptr)
      : type(own_type),
        names(own_names),
        name(own_name),
        default_value(own_default),
        choices(own_choices),
        meaning(own_meaning),
        limits(own_limits),
        displaced(own_displaced) {}
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
};

// The variables, and helpers for their declarations.
namespace variable {

using enum VariableType;
using enum Naming;

inline constexpr uint64_t kMs = 1'000'000;
inline constexpr uint64_t kKi = 1 << 10;
inline constexpr uint64_t kMi = 1 << 20;
inline constexpr uint64_t kGi = 1 << 30;

constexpr Limits between(uint64_t least, uint64_t most) { return {least, most, Zero::kNumber}; }
constexpr Limits at_least(uint64_t least) { return between(least, UINT64_MAX); }
constexpr Limits at_most(uint64_t most) { return between(0, most); }
constexpr Limits zero_or(uint64_t least, uint64_t most) { return {least, most, Zero::kAllowed}; }
constexpr Limits zero_is_default() { return {0, UINT64_MAX, Zero::kDefault}; }

}  // namespace variable
}  // namespace hetcomm
