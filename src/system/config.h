// Config holds the values of all variables (variable.h). A Config is read once, when a context is
// created, from the environment and from the caller's settings. The settings take precedence. A
// Config is immutable once it is shared.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/base/units.h"
#include "src/system/log.h"
#include "src/system/privilege.h"
#include "src/system/variable.h"

namespace hetcomm {

// The variables of a Config. Each variable must outlive the Config.
using Variables = std::span<const Variable* const>;

// Returns a description of the allowed values, such as "64K to 1G (a size in bytes, such as 4096,
// 64K or 1M)". Returns "" for texts.
std::string allowed_values(const Variable& info);

class Config {
 public:
  // Reads the variables |all| from |environment| ("NAME=value" strings, nullptr at the end), then
  // from |settings| ("NAME=value;NAME=value", prefix optional). Warns on |log| about unknown
  // HETCOMM_ names in |environment|, and suggests the nearest known name. Fails with
  // INVALID_ARGUMENT if an entry of |settings| has an unknown name or no value, or if a value
  // cannot be parsed or is out of range. The error text names the variable. A secret file in
  // |settings| takes precedence over a secret in |environment|. If |caller| is kStranger,
  // environment variables that name files or affect trust are ignored, with one warning. In that
  // case, fails with PERMISSION_DENIED if an ignored variable affects trust and |settings| does not
  // set it.
  static Result<Config> load(Variables all, const char* const* environment,
                             std::string_view settings, Log& log, Caller caller = Caller::kOwner);

  // Sets |variable| to a value that is derived from another variable, unless the user has set
  // |variable|. Fails like load() if the value is invalid. Call this before the Config is shared.
  Status derive(const Variable& variable, std::string_view text);

  std::string_view text(const Variable& variable) const { return value(variable).text; }
  bool is_set(const Variable& variable) const { return value(variable).set; }
  // Returns whether an on/off choice is on.
  bool is_on(const Variable& variable) const { return text(variable) == "on"; }
  // Returns the value as a number. Durations are in ns, and sizes are in bytes.
  uint64_t number(const Variable& variable) const { return value(variable).number; }
  // Returns the value as `hetcomm_info` shows it: a secret is shown only as "(set)" or "".
  const char* shown(const Variable& variable) const { return value(variable).shown.c_str(); }

 private:
  struct Value {
    std::string text;
    std::string shown;
    uint64_t number = 0;
    bool set = false;
  };
  explicit Config(Variables all) : all_(all), values_(all.size()) {}
  // Returns the index of |variable|, or the number of variables if |variable| is not one of them.
  size_t index_of(const Variable& variable) const;
  Status check_ignored(std::vector<const Variable*> ignored, Log& log) const;
  Status assign(const Variable& info, std::string_view text, bool set);
  const Value& value(const Variable& variable) const { return values_.at(index_of(variable)); }

  Variables all_;
  std::vector<Value> values_;  // in the order of |all_|
};

// Returns the known variable name nearest to |name| by edit distance, or "" if none is near.
std::string_view nearest_variable(Variables all, std::string_view name);

}  // namespace hetcomm
