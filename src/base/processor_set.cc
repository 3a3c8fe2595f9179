#include "src/base/processor_set.h"

#include <algorithm>
#include <charconv>

#include "src/base/lists.h"

namespace hetcomm {
namespace {

std::optional<size_t> parse_number(std::string_view text) {
  size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (number >= ProcessorSet::kMax) return std::nullopt;
  return number;
}

}  // namespace

std::optional<ProcessorSet> ProcessorSet::parse(std::string_view list) {
  ProcessorSet set;
  for (const std::string_view item : split_list(list)) {
    const size_t dash = item.find('-');
    const std::optional<size_t> first = parse_number(item.substr(0, dash));
    const std::optional<size_t> last =
        dash == std::string_view::npos ? first : parse_number(item.substr(dash + 1));
    if (!first || !last || *last < *first) return std::nullopt;
    for (size_t each = *first; each <= *last; ++each) set.add(each);
  }
  return set;
}

bool ProcessorSet::has(size_t processor) const {
  const size_t word = processor / kBits;
  return word < words_.size() && (words_[word] >> processor % kBits & 1) != 0;
}

void ProcessorSet::add(size_t processor) {
  const size_t word = processor / kBits;
  if (word >= words_.size()) words_.resize(word + 1);
  words_[word] |= uint64_t{1} << processor % kBits;
}

void ProcessorSet::add(const ProcessorSet& others) {
  words_.resize(std::max(words_.size(), others.words_.size()));
  for (size_t i = 0; i < others.words_.size(); ++i) words_[i] |= others.words_[i];
}

void ProcessorSet::keep(const ProcessorSet& others) {
  words_.resize(std::min(words_.size(), others.words_.size()));
  for (size_t i = 0; i < words_.size(); ++i) words_[i] &= others.words_[i];
  drop_zeros();
}

void ProcessorSet::drop_zeros() {
  while (!words_.empty() && words_.back() == 0) words_.pop_back();
}

std::string ProcessorSet::text() const {
  std::string text;
  const size_t end = words_.size() * kBits;
  for (size_t first = 0; first < end; ++first) {
    if (!has(first)) continue;
    size_t last = first;
    while (has(last + 1)) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(first);
    if (last != first) text += '-' + std::to_string(last);
    first = last;
  }
  return text;
}

}  // namespace hetcomm
