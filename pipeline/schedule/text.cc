#include "pipeline/schedule/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "pipeline/schedule/faults.h"
#include "src/base/text.h"

namespace hetcomm::pipeline {
namespace {

using Kind = ActionKind;

constexpr std::array<std::string_view, kActionKinds> kNames = {"F",
                                                               "B",
                                                               "I",
                                                               "W",
                                                               "R",
                                                               "SEND_F",
                                                               "RECV_F",
                                                               "SEND_B",
                                                               "RECV_B",
                                                               "WAIT_SEND_F",
                                                               "WAIT_RECV_F",
                                                               "WAIT_SEND_B",
                                                               "WAIT_RECV_B",
                                                               "REDUCE_GRAD",
                                                               "UNSHARD",
                                                               "RESHARD",
                                                               ""};
constexpr std::string_view kOverlap = "OVERLAP_F_B";
constexpr uint32_t kUnknownRank = UINT32_MAX;

std::string_view trimmed(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// Reads a number below |end| from the front of |text|, and removes it there. Returns nullopt if
// there is none.
std::optional<uint32_t> take_number(std::string_view& text, uint32_t end) {
  uint32_t number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number >= end) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(rest - text.data()));
  return number;
}

std::optional<Action> parse_action(std::string_view cell) {
  const std::optional<uint32_t> stage = take_number(cell, kMaxStages);
  if (!stage) return std::nullopt;
  const size_t end = std::min(cell.find_first_of("0123456789"), cell.size());
  const auto* const name = std::find(kNames.begin(), kNames.end() - 1, cell.substr(0, end));
  if (name == kNames.end() - 1) return std::nullopt;
  cell.remove_prefix(end);
  Action action{.stage = static_cast<uint16_t>(*stage),
                .kind = static_cast<Kind>(name - kNames.begin())};
  if (has_micro_batch(action.kind)) {
    const std::optional<uint32_t> micro_batch = take_number(cell, kMaxMicroBatches);
    if (!micro_batch) return std::nullopt;
    action.micro_batch = *micro_batch;
  }
  if (!cell.empty()) return std::nullopt;
  return action;
}

// Returns the rank of every stage, which is the rank that computes for it.
Result<std::vector<uint32_t>> find_ranks(const Schedule& schedule) {
  std::vector<uint32_t> rank_of;
  for (uint32_t rank = 0; rank < schedule.ranks(); ++rank) {
    for (const Action& action : schedule.actions[rank]) {
      if (!is_computation(action.kind)) continue;
      if (rank_of.size() <= action.stage) rank_of.resize(action.stage + 1, kUnknownRank);
      uint32_t& owner = rank_of[action.stage];
      if (owner != kUnknownRank && owner != rank) {
        return Status(Code::kInvalidArgument, fmt::format("ranks {} and {} compute for stage {}",
                                                          owner, rank, action.stage));
      }
      owner = rank;
    }
  }
  for (size_t stage = 0; stage < rank_of.size(); ++stage) {
    if (rank_of[stage] != kUnknownRank) continue;
    return Status(Code::kInvalidArgument, fmt::format("no rank computes for stage {}", stage));
  }
  return rank_of;
}

}  // namespace

std::string_view name_of(ActionKind kind) { return kNames[static_cast<size_t>(kind)]; }

std::string to_text(const Action& action) {
  if (action.kind == Kind::kBubble) return "";
  std::string text = fmt::format("{}{}", action.stage, name_of(action.kind));
  if (has_micro_batch(action.kind)) text += std::to_string(action.micro_batch);
  return text;
}

bool parse_cell(std::string_view cell, std::vector<Action>& actions) {
  if (cell.empty()) {
    actions.push_back({});
    return true;
  }
  if (cell.front() != '(') {
    const std::optional<Action> action = parse_action(cell);
    if (action) actions.push_back(*action);
    return action.has_value();
  }
  const size_t middle = cell.find(';');
  const size_t end = cell.find(')');
  if (middle == std::string_view::npos || end == std::string_view::npos || end < middle ||
      cell.substr(end + 1) != kOverlap) {
    return false;
  }
  std::optional<Action> first = parse_action(cell.substr(1, middle - 1));
  const std::optional<Action> second = parse_action(cell.substr(middle + 1, end - middle - 1));
  if (!first || !second || !is_computation(first->kind) || !is_computation(second->kind)) {
    return false;
  }
  first->overlaps_next = true;
  actions.insert(actions.end(), {*first, *second});
  return true;
}

void for_each_cell(const std::vector<Action>& actions,
                   const std::function<void(std::string text)>& use) {
  for (size_t i = 0; i < actions.size(); ++i) {
    if (actions[i].overlaps_next && i + 1 < actions.size()) {
      use(fmt::format("({};{}){}", to_text(actions[i]), to_text(actions[i + 1]), kOverlap));
      ++i;
    } else {
      use(to_text(actions[i]));
    }
  }
}

std::string write_csv(const Schedule& schedule) {
  std::string csv;
  for (const std::vector<Action>& actions : schedule.actions) {
    bool is_first = true;
    for_each_cell(actions, [&](const std::string& text) {
      if (!std::exchange(is_first, false)) csv += ',';
      csv += text;
    });
    csv += '\n';
  }
  return csv;
}

Result<Schedule> read_csv(std::string_view text, std::vector<uint32_t> rank_of) {
  Schedule schedule;
  if (text.ends_with('\n')) text.remove_suffix(1);
  for (bool is_last = false; !is_last;) {
    const size_t line_end = std::min(text.find('\n'), text.size());
    is_last = line_end == text.size();
    std::string_view line = trimmed(text.substr(0, line_end));
    if (!is_last) text.remove_prefix(line_end + 1);
    if (schedule.actions.size() == kMaxStages) {
      return invalid(fmt::format("there are more than {} lines", kMaxStages));
    }
    std::vector<Action>& actions = schedule.actions.emplace_back();
    size_t number = 0;
    for (bool ends = line.empty(); !ends;) {
      const size_t end = std::min(line.find(','), line.size());
      const std::string_view cell = trimmed(line.substr(0, end));
      ++number;
      if (!parse_cell(cell, actions)) {
        return Status(Code::kInvalidArgument,
                      fmt::format("line {}, cell {}: '{}' is no action", schedule.actions.size(),
                                  number, printable(cell)));
      }
      ends = end == line.size();
      if (!ends) line.remove_prefix(end + 1);
    }
  }
  schedule.rank_of = std::move(rank_of);
  HETCOMM_RETURN_IF_ERROR(complete(schedule));
  return schedule;
}

Status complete(Schedule& schedule) {
  schedule.micro_batches = 0;
  for (const std::vector<Action>& actions : schedule.actions) {
    for (const Action& action : actions) {
      if (!has_micro_batch(action.kind)) continue;
      schedule.micro_batches = std::max(schedule.micro_batches, action.micro_batch + 1);
    }
  }
  if (!schedule.rank_of.empty()) return {};
  Result<std::vector<uint32_t>> found = find_ranks(schedule);
  if (!found.ok()) return found.status();
  schedule.rank_of = std::move(found).value();
  return {};
}

}  // namespace hetcomm::pipeline
