#include "tools/common/reshard_cases.h"

#include <cstdlib>
#include <numeric>
#include <stdexcept>

#include <fmt/core.h>

namespace tools {
namespace {

// Reads a number from 1 to 4096 at |*text| and advances past it. Returns 0 if there is none.
uint64_t take_number(const char** text) {
  char* end = nullptr;
  const unsigned long value = **text >= '0' && **text <= '9' ? std::strtoul(*text, &end, 10) : 0;
  if (value == 0 || value > 4096) return 0;
  *text = end;
  return value;
}

}  // namespace

std::string parse_side(const std::string& word, ReshardSide* side) {
  const std::string wrong = fmt::format(
      "a layout is DxS, with rR for replicas and pP for terms of a sum, such as 4x1 or 2x2r2, not "
      "'{}'",
      word);
  *side = {};
  const char* text = word.c_str();
  side->batch = take_number(&text);
  if (side->batch == 0 || *text++ != 'x') return wrong;
  side->sequence = take_number(&text);
  if (side->sequence == 0) return wrong;
  while (*text != '\0') {
    const char letter = *text++;
    const uint64_t number = take_number(&text);
    if (number == 0 || (letter != 'r' && letter != 'p')) return wrong;
    (letter == 'r' ? side->replicas : side->terms) = number;
  }
  return "";
}

std::string parse_case(const std::string& word, ReshardCase* reshard_case) {
  const size_t colon = word.find(':');
  if (colon == std::string::npos) {
    return fmt::format("a case is two layouts, such as 4x1:1x4, not '{}'", word);
  }
  std::string wrong = parse_side(word.substr(0, colon), &reshard_case->source);
  if (wrong.empty()) wrong = parse_side(word.substr(colon + 1), &reshard_case->destination);
  return wrong;
}

std::string word_of(const ReshardSide& side) {
  std::string word = fmt::format("{}x{}", side.batch, side.sequence);
  if (side.replicas > 1) word += fmt::format("r{}", side.replicas);
  if (side.terms > 1) word += fmt::format("p{}", side.terms);
  return word;
}

std::string word_of(const ReshardCase& reshard_case) {
  return word_of(reshard_case.source) + ":" + word_of(reshard_case.destination);
}

std::vector<ReshardCase> all_cases(uint64_t ranks) {
  std::vector<ReshardSide> sides;
  for (uint64_t batch = ranks; batch >= 1; --batch) {
    if (ranks % batch == 0) sides.push_back({.batch = batch, .sequence = ranks / batch});
  }
  std::vector<ReshardCase> cases;
  for (const ReshardSide& source : sides) {
    for (const ReshardSide& destination : sides) {
      if (source != destination) cases.push_back({source, destination});
    }
  }
  return cases;
}

int32_t strategy_number(const std::string& name) {
  for (size_t i = 0; i < std::size(kStrategies); ++i) {
    if (name == kStrategies[i]) return static_cast<int32_t>(i);
  }
  return -1;
}

std::vector<uint64_t> shape_for(uint64_t bytes) {
  constexpr uint64_t kPieces = 16;
  return {kPieces, kPieces, std::max<uint64_t>(bytes / (kPieces * kPieces * sizeof(float)), 1)};
}

LayoutHandle::LayoutHandle(const std::vector<uint64_t>& shape, const ReshardSide& side,
                           const std::vector<int32_t>& ranks) {
  const uint64_t axes[] = {side.terms, side.replicas, side.batch, side.sequence};
  const hetcomm_placement_t placements[] = {
      {side.terms > 1 ? HETCOMM_PLACEMENT_PARTIAL : HETCOMM_PLACEMENT_REPLICATE, 0, 1, nullptr},
      {HETCOMM_PLACEMENT_REPLICATE, 0, 1, nullptr},
      {HETCOMM_PLACEMENT_SHARD, 0, 1, nullptr},
      {HETCOMM_PLACEMENT_SHARD, 1, 1, nullptr}};
  if (hetcomm_layout_from_mesh(shape.size(), shape.data(), std::size(axes), axes, ranks.data(),
                               placements, nullptr, &handle_) != HETCOMM_OK) {
    throw std::runtime_error(fmt::format("layout {}: {}", word_of(side), hetcomm_last_error()));
  }
}

LayoutHandle::~LayoutHandle() {
  [[maybe_unused]] const hetcomm_status_t destroyed = hetcomm_layout_destroy(handle_);
}

uint64_t LayoutHandle::elements(int32_t rank) const {
  uint64_t elements = 0;
  if (hetcomm_layout_elements(handle_, rank, &elements) != HETCOMM_OK) return 0;
  return elements;
}

std::string LayoutHandle::json() const {
  size_t size = 0;
  std::string text;
  for (int i = 0; i < 2; ++i) {
    text.resize(size);
    if (hetcomm_layout_json(handle_, text.size(), text.data(), &size) != HETCOMM_OK) {
      throw std::runtime_error(hetcomm_last_error());
    }
  }
  text.resize(size - 1);
  return text;
}

nlohmann::json draft_question(const LayoutHandle& source, const LayoutHandle& destination,
                              const std::string& strategy) {
  using Json = nlohmann::json;
  return {
      {"format", "hetcomm reshard question"},
      {"version", 1},
      {"layouts",
       {{"source", Json::parse(source.json())}, {"destination", Json::parse(destination.json())}}},
      {"tensors", {{{"source", "source"}, {"destination", "destination"}}}},
      {"strategy", strategy}};
}

std::vector<int32_t> ranks_from(int32_t first, uint64_t count) {
  std::vector<int32_t> ranks(count);
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

}  // namespace tools
