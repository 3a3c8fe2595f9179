#include "devices/opencl/options.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include <fmt/core.h>

#include "src/base/text.h"

namespace hetcomm::opencl {

Result<Options> parse_options(std::string_view text) {
  constexpr std::string_view kPlatform = "platform=";
  Options options;
  bool has_index = false;
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t colon = rest.find(':');
    const std::string_view word = rest.substr(0, colon);
    rest = colon == std::string_view::npos ? std::string_view() : rest.substr(colon + 1);
    if (word.starts_with(kPlatform) && word.size() > kPlatform.size() && options.platform.empty()) {
      options.platform = word.substr(kPlatform.size());
      continue;
    }
    const auto [end, error] =
        std::from_chars(word.data(), word.data() + word.size(), options.index);
    if (word.empty() || error != std::errc() || end != word.data() + word.size() || has_index) {
      return Status(Code::kInvalidArgument,
                    fmt::format("'{}' names no OpenCL device: use its number, "
                                "platform=NAME, or platform=NAME:NUMBER",
                                printable(text)));
    }
    has_index = true;
  }
  return options;
}

bool contains_word(std::string_view name, std::string_view part) {
  const auto same = [](char one, char other) {
    return std::tolower(static_cast<unsigned char>(one)) ==
           std::tolower(static_cast<unsigned char>(other));
  };
  return std::search(name.begin(), name.end(), part.begin(), part.end(), same) != name.end();
}

}  // namespace hetcomm::opencl
