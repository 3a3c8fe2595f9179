#include "src/present/json_fields.h"

#include "src/present/json_nesting.h"

namespace hetcomm::present {

Result<Json> parse_document(std::string_view text, std::string_view format, uint64_t version,
                            int most_nesting) {
  if (nests_deeper_than(most_nesting, text)) {
    return Status(Code::kInvalidArgument,
                  fmt::format("brackets are nested more deeply than {}", most_nesting));
  }
  Json document;
  try {
    document = Json::parse(text);
  } catch (const Json::exception& error) {
    // The library's text has the line after a prefix for programmers.
    const std::string_view what = error.what();
    const size_t prefix = what.find("] ");
    return Status(Code::kInvalidArgument,
                  printable(prefix == std::string_view::npos ? what : what.substr(prefix + 2)));
  }
  Status failure;
  Fields fields(document, "", failure);
  if (const std::string found = fields.text("format"); failure.ok() && found != format) {
    fields.fail("format", fmt::format("is not '{}'", format));
  }
  const uint64_t found = fields.number("version", UINT64_MAX);
  if (!failure.ok()) return failure;
  if (found != version) {
    return Status(Code::kUnsupported,
                  fmt::format("version is {}; this library reads {}", found, version));
  }
  return document;
}

}  // namespace hetcomm::present
