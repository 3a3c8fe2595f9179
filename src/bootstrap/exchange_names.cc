#include "src/bootstrap/exchange_names.h"

#include <fmt/core.h>

#include "src/base/span.h"
#include "src/net/hash.h"

namespace hetcomm {
namespace {

constexpr size_t kMaxScope = 160;
constexpr size_t kMaxRanges = 16;

std::string shorten(const std::string& scope) {
  if (scope.size() <= kMaxScope) return scope;
  const Digest digest = sha256(std::as_bytes(std::span(scope)));
  std::string result = scope.substr(0, kMaxScope - 2 * 16);
  for (size_t i = 0; i < 16; ++i) {
    result += fmt::format("{:02x}", std::to_integer<unsigned int>(digest[i]));
  }
  return result;
}

}  // namespace

std::string format_ranks(const std::vector<int>& ranks, int size) {
  std::string text;
  size_t ranges = 0;
  for (size_t i = 0; i < ranks.size(); ++ranges) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (ranges == kMaxRanges) {
      text += fmt::format(" and {} more", ranks.size() - i);
      break;
    }
    text += ranges == 0 ? "" : ", ";
    text += i == last ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[last]);
    i = last + 1;
  }
  return fmt::format("rank{} {} of {}", ranks.size() == 1 ? "" : "s", text, size);
}

std::string ScopeNames::next(const std::string& scope, ExchangeKind kind) {
  std::string name = shorten(scope);
  const uint32_t use = uses_[{name, kind}]++;
  return use == 0 ? name : fmt::format("{}#{}", name, use);
}

}  // namespace hetcomm
