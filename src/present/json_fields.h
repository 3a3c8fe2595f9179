// Reads JSON files strictly. Reports the first error with its path, and can reject unknown fields.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "src/base/status.h"
#include "src/base/text.h"

namespace hetcomm::present {

// A JSON type whose objects look up members fast, unlike nlohmann::ordered_json.
using Json = nlohmann::json;

// Formats |value| for an error text. The result is short and printable, whatever the file contains.
std::string shown(const Json& value);

// Reads an object of a file, field by field. Records the first error, with its path, in |failure|.
// After an error, every field reads as absent.
class Fields {
 public:
  static constexpr size_t kMaxElements = 4096;  // default limit of a list

  Fields(const Json& json, std::string path, Status& failure)
      : json_(json), path_(std::move(path)), failure_(failure) {
    if (!json_.is_object()) fail("", "is no object");
  }

  // Reports a field whose name is not in |names| as an error.
  void allow_only(std::initializer_list<std::string_view> names) {
    if (!json_.is_object()) return;
    for (const auto& [name, value] : json_.items()) {
      if (std::find(names.begin(), names.end(), name) == names.end()) {
        fail(printable(name), "is no field of this object");
      }
    }
  }

  // Checks the fields "format" and "version". Fails with UNSUPPORTED for another version.
  void check_version(std::string_view format, uint64_t version);

  // Returns the field's value, or null if there is no such field or an error has occurred.
  const Json* find(const char* name) const {
    if (!failure_.ok() || !json_.is_object()) return nullptr;
    const auto found = json_.find(name);
    return found == json_.end() ? nullptr : &*found;
  }
  bool has(const char* name) const { return find(name) != nullptr; }

  std::string text(const char* name) {
    const Json* field = find(name);
    if (field == nullptr) return {};
    constexpr size_t kLongest = 4095;  // a list of processors can be long
    if (field->is_string() && field->get_ref<const std::string&>().size() <= kLongest) {
      return field->get<std::string>();
    }
    misfit(path_of(name), *field, "text of at most 4095 characters");
    return {};
  }

  // Returns the field's number, or 0 if there is no such field.
  uint64_t number(const char* name, uint64_t most) {
    const Json* field = find(name);
    return field == nullptr ? 0 : number_of(*field, name, most);
  }

  // Returns the field's Boolean value, or false if there is no such field.
  bool flag(const char* name) {
    const Json* field = find(name);
    if (field == nullptr || field->is_boolean()) return field != nullptr && field->get<bool>();
    misfit(path_of(name), *field, "truth value");
    return false;
  }

  // Returns the index of the field's text in |words|, or |absent| if there is no such field.
  template <typename Enum, size_t kCount>
  Enum word(const char* name, const char* const (&words)[kCount], Enum absent) {
    if (!has(name)) return absent;
    const std::string given = text(name);
    for (size_t i = 0; i < kCount; ++i) {
      if (given == words[i]) return static_cast<Enum>(i);
    }
    fail(name, fmt::format("is '{}' and none of: {}", printable(given),
                           fmt::join(words, words + kCount, ", ")));
    return absent;
  }

  // Returns the field's 16-bit hexadecimal number, or 0 if there is no such field.
  uint16_t hex(const char* name) {
    const std::string digits = text(name);
    if (digits.empty()) return 0;
    char* end = nullptr;
    const unsigned long value = std::strtoul(digits.c_str(), &end, 16);
    if (*end == '\0' && value <= UINT16_MAX && std::isxdigit(digits.front()) != 0) {
      return static_cast<uint16_t>(value);
    }
    misfit(path_of(name), digits, "number of four hexadecimal digits");
    return 0;
  }

  // Calls |read| with each element of a list and the element's path. A list with more than |most|
  // elements is an error.
  void each(const char* name, const std::function<void(const Json&, const std::string&)>& read,
            size_t most = kMaxElements) {
    const Json* field = find(name);
    if (field == nullptr) return;
    if (!field->is_array() || field->size() > most) {
      misfit(path_of(name), *field, fmt::format("list of at most {} elements", most));
      return;
    }
    for (size_t i = 0; i < field->size() && failure_.ok(); ++i) {
      read((*field)[i], fmt::format("{}[{}]", path_of(name), i));
    }
  }

  uint64_t number_of(const Json& value, const std::string& name, uint64_t most) {
    return number_at(value, path_of(name), most);
  }
  // Returns the number in |value|, such as an element of a list, whose full path is |path|. A
  // number above |most| is an error.
  uint64_t number_at(const Json& value, const std::string& path, uint64_t most) {
    if (value.is_number_unsigned() && value.get<uint64_t>() <= most) return value.get<uint64_t>();
    misfit(path, value, fmt::format("whole number up to {}", most));
    return 0;
  }

  void fail(const std::string& name, const std::string& why) { fail_at(path_of(name), why); }
  void fail_at(const std::string& path, const std::string& why) {
    if (!failure_.ok()) return;
    failure_ = Status(Code::kInvalidArgument, fmt::format("{} {}", path, why));
  }

  // Reports that |value|, whose full path is |path|, is not a |what|. The error text shows the
  // value.
  void misfit(const std::string& path, const Json& value, const std::string& what) {
    fail_at(path, fmt::format("is no {}: {}", what, shown(value)));
  }

  Status& failure() { return failure_; }

  // Returns the full path of field |name|, or of this object for "".
  std::string path_of(const std::string& name) const {
    if (path_.empty()) return name.empty() ? "the document" : name;
    return name.empty() ? path_ : path_ + "." + name;
  }

 private:
  const Json& json_;
  const std::string path_;
  Status& failure_;
};

// Parses JSON. Fails with INVALID_ARGUMENT if brackets are nested more than |most_nesting| deep, if
// an object has a field twice, or for a syntax error. In the last case the text gives the line.
Result<Json> parse_json(std::string_view text, int most_nesting);

// Parses a document as parse_json() does, and checks its "format" and "version". Fails with
// UNSUPPORTED for another version, and with INVALID_ARGUMENT for any other error.
Result<Json> parse_document(std::string_view text, std::string_view format, uint64_t version,
                            int most_nesting);

}  // namespace hetcomm::present
