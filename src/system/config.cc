#include "src/system/config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <utility>

#include "src/present/nearest.h"
#include "src/system/clock.h"

namespace hetcomm {
namespace {

using enum VariableType;
using enum Naming;

constexpr uint64_t kMs = variable::kMs;
constexpr uint64_t kKi = variable::kKi;
constexpr uint64_t kMi = variable::kMi;
constexpr uint64_t kGi = variable::kGi;

struct Unit {
  std::string_view name;
  uint64_t factor;
};

// Formats |number| as a user would write it: in the largest unit of which it is a multiple.
std::string written(VariableType type, uint64_t number) {
  static constexpr std::array<Unit, 6> kDurations = {{{"h", 3'600'000'000'000},
                                                      {"min", 60'000'000'000},
                                                      {"s", 1'000'000'000},
                                                      {"ms", kMs},
                                                      {"us", 1'000},
                                                      {"ns", 1}}};
  static constexpr std::array<Unit, 4> kSizes = {{{"G", kGi}, {"M", kMi}, {"K", kKi}, {"", 1}}};
  if (type == kDuration && number == kForever) return "inf";
  const std::span<const Unit> units = type == kDuration ? std::span<const Unit>(kDurations)
                                      : type == kSize   ? std::span<const Unit>(kSizes)
                                                        : std::span(kSizes).last(1);
  for (const Unit& unit : units) {
    if (number >= unit.factor && number % unit.factor == 0) {
      return fmt::format("{}{}", number / unit.factor, unit.name);
    }
  }
  return "0";
}

// Returns the limits as text, such as "64K to 1G" or "0, or 4K and more". Returns "" if there are
// none.
std::string range_of(const Variable& info) {
  const auto& [least, most, zero] = info.limits;
  if (least == 0 && most == UINT64_MAX) return "";
  const std::string first = written(info.type, least);
  return fmt::format("{}{}{}", zero == Zero::kAllowed && least > 0 ? "0, or " : "", first,
                     most == UINT64_MAX ? " and more" : " to " + written(info.type, most));
}

bool is_within(const Limits& limits, uint64_t number) {
  if (number == 0 && limits.zero != Zero::kNumber) return true;
  return number >= limits.least && number <= limits.most;
}

bool is_choice(std::string_view choices, std::string_view text) {
  while (true) {
    const size_t bar = choices.find('|');
    if (choices.substr(0, bar) == text) return true;
    if (bar == std::string_view::npos) return false;
    choices.remove_prefix(bar + 1);
  }
}

// Returns the choice that |text| names, ignoring case. "1", "yes" and "true" name "on"; "0", "no"
// and "false" name "off". Returns "" if |text| names none.
std::string find_choice(std::string_view choices, std::string_view text) {
  std::string word(text);
  for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (is_choice(choices, word)) return word;
  static constexpr std::pair<std::string_view, std::string_view> kSynonyms[] = {
      {"1", "on"}, {"yes", "on"}, {"true", "on"}, {"0", "off"}, {"no", "off"}, {"false", "off"},
  };
  for (const auto& [synonym, choice] : kSynonyms) {
    if (word == synonym && is_choice(choices, choice)) return std::string(choice);
  }
  return {};
}

const Variable* find_variable(Variables all, std::string_view name) {
  for (const Variable* each : all) {
    if (name == each->name) return each;
  }
  return nullptr;
}

// Returns whether |name| could be the name of a variable. Other text may be part of a secret, so it
// is not printed.
bool is_name(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

// Returns whether other parts of the project or launch scripts use the variable |name|. load() does
// not warn about such variables.
bool is_foreign(std::string_view name) {
  return name == "HETCOMM_PYTHON" || name.starts_with("HETCOMM_TEST_");
}

}  // namespace

std::string allowed_values(const Variable& info) {
  std::string_view forms;
  switch (info.type) {
    case kChoice:
      return info.choices;
    case kDuration:
      forms = "a duration, such as 500ms, 10s, 2min or inf";
      break;
    case kSize:
      forms = "a size in bytes, such as 4096, 64K or 1M";
      break;
    case kInteger:
      forms = "a number";
      break;
    case kText:
    case kSecretText:
      return "";
  }
  const std::string range = range_of(info);
  return range.empty() ? std::string(forms) : fmt::format("{} ({})", range, forms);
}

std::string_view nearest_variable(Variables all, std::string_view name) {
  // All names share the prefix, so it is not part of the comparison.
  constexpr std::string_view kPrefix = "HETCOMM_";
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  std::string_view best;
  size_t best_distance = std::clamp<size_t>(name.size() / 3, 2, 3) + 1;
  for (const Variable* each : all) {
    const size_t distance = present::distance_below(
        best_distance, name, std::string_view(each->name).substr(kPrefix.size()));
    if (distance < best_distance) {
      best_distance = distance;
      best = each->name;
    }
  }
  return best;
}

size_t Config::index_of(const Variable& variable) const {
  return static_cast<size_t>(std::find(all_.begin(), all_.end(), &variable) - all_.begin());
}

Status Config::derive(const Variable& variable, std::string_view text) {
  if (is_set(variable)) return {};
  return assign(variable, text, /*set=*/true);
}

Status Config::assign(const Variable& info, std::string_view text, bool set) {
  Value& value = values_.at(index_of(info));
  std::string choice;
  Result<uint64_t> number(uint64_t{0});
  switch (info.type) {
    case kDuration:
      number = parse_duration(text);
      break;
    case kSize:
      number = parse_size(text);
      break;
    case kInteger: {
      uint64_t parsed = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
      if (error != std::errc() || end != text.data() + text.size()) {
        number = Status(Code::kInvalidArgument, fmt::format("'{}' is not a number", text));
      } else {
        number = parsed;
      }
      break;
    }
    case kChoice:
      choice = find_choice(info.choices, text);
      if (choice.empty()) {
        number = Status(Code::kInvalidArgument,
                        fmt::format("'{}' is not one of {}", text, info.choices));
      }
      text = choice;
      break;
    case kText:
    case kSecretText:
      break;
  }
  if (!number.ok()) return number.status().annotate(info.name);
  const bool is_number = info.type == kDuration || info.type == kSize || info.type == kInteger;
  if (is_number && number.value() == 0 && info.limits.zero == Zero::kDefault) {
    return assign(info, info.default_value, set);
  }
  if (is_number && !is_within(info.limits, number.value())) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{}: {} is out of range: {}", info.name, text, allowed_values(info)));
  }
  value.text = text;
  value.shown = info.type == kSecretText && !text.empty() ? "(set)" : text;
  value.number = number.value();
  value.set = set;
  return {};
}

Result<Config> Config::load(Variables all, const char* const* environment,
                            std::string_view settings, Log& log, Caller caller) {
  Config config(all);
  for (const Variable* each : all) {
    HETCOMM_RETURN_IF_ERROR(config.assign(*each, each->default_value, false));
  }
  std::vector<const Variable*> ignored;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    if (!entry.starts_with("HETCOMM_")) continue;
    const size_t equals = entry.find('=');
    const std::string_view name = entry.substr(0, equals);
    if (const Variable* info = find_variable(all, name); info != nullptr) {
      const std::string_view text =
          equals == std::string_view::npos ? std::string_view() : entry.substr(equals + 1);
      // An empty variable counts as unset, because launch scripts often leave empty variables
      // behind.
      if (text.empty()) continue;
      if (caller == Caller::kStranger && info->names != kNoFile) {
        ignored.push_back(info);
        continue;
      }
      HETCOMM_RETURN_IF_ERROR(config.assign(*info, text, true));
    } else if (!is_foreign(name) && is_name(name)) {
      const std::string_view nearest = nearest_variable(all, name);
      log.warn("unknown variable {}{}{}{}", name, nearest.empty() ? "" : "; did you mean ", nearest,
               nearest.empty() ? "" : "?");
    }
  }
  // True after an entry with a secret. If a secret contains ';', the text after it looks like
  // another entry but must not be printed.
  bool after_secret = false;
  for (int number = 1; !settings.empty(); ++number) {
    const size_t end = settings.find(';');
    const std::string_view entry = settings.substr(0, end);
    settings.remove_prefix(end == std::string_view::npos ? settings.size() : end + 1);
    if (entry.empty()) continue;
    const size_t equals = entry.find('=');
    std::string name(entry.substr(0, equals));
    if (!name.starts_with("HETCOMM_")) name = "HETCOMM_" + name;
    const Variable* info = find_variable(all, name);
    const bool has_value = equals != std::string_view::npos;
    if (info == nullptr || !has_value) {
      const bool shown = info != nullptr || (has_value && !after_secret && is_name(name));
      const std::string_view near = shown && info == nullptr ? nearest_variable(all, name) : "";
      return Status(
          Code::kInvalidArgument,
          fmt::format(
              "settings: entry {}{}{}{} {}{}{}{}", number, shown ? " ('" : "", shown ? name : "",
              shown ? "')" : "",
              info != nullptr ? "has no value; write NAME=value" : "is not a known variable",
              near.empty() ? "" : "; did you mean ", near, near.empty() ? "" : "?"));
    }
    // Unsets the variable that this one displaces. For example, a secret in the settings replaces
    // any secret from the environment.
    if (info->displaced != nullptr && equals + 1 < entry.size() && !after_secret) {
      HETCOMM_RETURN_IF_ERROR(config.assign(*info->displaced, "", false));
    }
    HETCOMM_RETURN_IF_ERROR(config.assign(*info, entry.substr(equals + 1), true));
    after_secret = after_secret || info->type == kSecretText;
  }
  HETCOMM_RETURN_IF_ERROR(config.check_ignored(ignored, log));
  return config;
}

Status Config::check_ignored(std::vector<const Variable*> ignored, Log& log) const {
  std::erase_if(ignored, [this](const Variable* info) { return is_set(*info); });
  if (ignored.empty()) return {};
  std::string all;
  std::string trust;
  const auto list = [](std::string& names, const char* name) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  };
  for (const Variable* info : ignored) {
    list(all, info->name);
    if (info->names == kTrust) list(trust, info->name);
  }
  log.warn(
      "this program has rights that whoever started it lacks (setuid, setgid or capabilities), so "
      "variables that name files and libraries or decide about trust are ignored: {}; the program "
      "itself can set them by "
      "hetcomm_context_options_t::settings",
      all);
  if (trust.empty()) return {};
  return Status(Code::kPermissionDenied,
                fmt::format("{}: ignored, because this program has rights that whoever started it "
                            "lacks, and nobody is trusted by a guess: set them by "
                            "hetcomm_context_options_t::settings, or unset them",
                            trust));
}

}  // namespace hetcomm
