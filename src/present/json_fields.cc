#include "src/present/json_fields.h"

#include <set>
#include <vector>

#include "src/present/json_nesting.h"

namespace hetcomm::present {

namespace {

// Detects a field that occurs twice in an object. The parser itself would silently keep the last
// one.
class FieldNames {
 public:
  void see(Json::parse_event_t event, const Json& parsed) {
    if (event == Json::parse_event_t::object_start) {
      open_.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      open_.pop_back();
    } else if (event == Json::parse_event_t::key && twice_.empty()) {
      const auto& name = parsed.get_ref<const std::string&>();
      if (!open_.back().insert(name).second) twice_ = fmt::format("'{}'", name);
    }
  }
  const std::string& twice() const { return twice_; }

 private:
  std::vector<std::set<std::string>> open_;  // the names in each open object, outermost first
  std::string twice_;
};

}  // namespace

std::string shown(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  constexpr size_t kLongest = 40;
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string beginning = printable_beginning(text, kLongest);
  return text.size() <= kLongest ? beginning : beginning + "...";
}

Result<Json> parse_json(std::string_view text, int most_nesting) {
  if (nests_deeper_than(most_nesting, text)) {
    return Status(Code::kInvalidArgument,
                  fmt::format("brackets are nested more deeply than {}", most_nesting));
  }
  try {
    FieldNames names;
    Json json = Json::parse(text, [&](int, Json::parse_event_t event, const Json& parsed) {
      names.see(event, parsed);
      return true;
    });
    if (names.twice().empty()) return json;
    return Status(Code::kInvalidArgument,
                  printable(fmt::format("an object has the field {} twice", names.twice())));
  } catch (const Json::exception& error) {
    // nlohmann's messages begin with a prefix for programmers, which ends with "] " and is omitted.
    // The line of the syntax error follows the prefix.
    const std::string_view what = error.what();
    const size_t prefix = what.find("] ");
    return Status(Code::kInvalidArgument,
                  printable(prefix == std::string_view::npos ? what : what.substr(prefix + 2)));
  }
}

void Fields::check_version(std::string_view format, uint64_t version) {
  if (const std::string found = text("format"); failure_.ok() && found != format) {
    fail("format", fmt::format("is not '{}'", format));
  }
  const uint64_t found = number("version", UINT64_MAX);
  if (!failure_.ok() || found == version) return;
  failure_ = Status(Code::kUnsupported, fmt::format("{} is {}; this library reads {}",
                                                    path_of("version"), found, version));
}

Result<Json> parse_document(std::string_view text, std::string_view format, uint64_t version,
                            int most_nesting) {
  Result<Json> document = parse_json(text, most_nesting);
  if (!document.ok()) return document;
  Status failure;
  Fields(*document, "", failure).check_version(format, version);
  if (!failure.ok()) return failure;
  return document;
}

}  // namespace hetcomm::present
