// Text in pictures, whatever characters it has.
#pragma once

#include <string>
#include <string_view>

namespace hetcomm::present {

// |text| as the content or an attribute of an element.
inline std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace hetcomm::present
