#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "pipeline/outlook/outlook.h"
#include "pipeline/schedule/text.h"
#include "src/base/text.h"

namespace hetcomm::pipeline {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kOutlookFormat = "hetcomm schedule outlook";
constexpr int kOutlookVersion = 1;

// Returns the number of forward steps of |rank| before its first backward step.
size_t warmup_of(const Schedule& schedule, uint32_t rank) {
  size_t count = 0;
  for (const Action& action : schedule.actions[rank]) {
    if (gives_input_grad(action.kind)) return count;
    if (action.kind == ActionKind::kForward) ++count;
  }
  return count;
}

size_t computations_in(const Schedule& schedule, uint32_t rank) {
  const std::vector<Action>& actions = schedule.actions[rank];
  return static_cast<size_t>(std::count_if(actions.begin(), actions.end(), [](const Action& each) {
    return is_computation(each.kind);
  }));
}

std::string percent(uint64_t part, uint64_t whole) {
  if (whole == 0) return "0.0";
  return fmt::format("{:.1f}", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string time_text(const Outlook& outlook, uint64_t ns) {
  if (!outlook.has_times) return std::to_string(ns);
  return fmt::format("{:.3f}", static_cast<double>(ns) / 1e6);
}

std::string pipelines_text(const Outlook& outlook) {
  const Schedule& schedule = outlook.schedule;
  if (outlook.pipelines.empty()) {
    return fmt::format("{} ranks, {} stages, {} micro-batches\n", schedule.ranks(),
                       schedule.stages(), schedule.micro_batches);
  }
  std::string text = fmt::format("{} pipelines, {} ranks, {} stages\n", outlook.pipelines.size(),
                                 schedule.ranks(), schedule.stages());
  for (size_t i = 0; i < outlook.pipelines.size(); ++i) {
    const uint32_t end =
        i + 1 < outlook.pipelines.size() ? outlook.pipelines[i + 1].first_stage : schedule.stages();
    text +=
        fmt::format("pipeline {}: stages {} to {}, {} micro-batches\n", i,
                    outlook.pipelines[i].first_stage, end - 1, outlook.pipelines[i].micro_batches);
  }
  return text;
}

// Describes the share of the longest path that waits for transfers, in total and for each boundary.
std::string path_text(const Outlook& outlook) {
  uint64_t transfers = 0;
  uint64_t gathers = 0;
  std::map<uint32_t, uint64_t> by_boundary;  // keyed by the stage before the boundary
  for (const CriticalStep& step : critical_path(outlook)) {
    if (step.transfer_ns == 0) continue;
    transfers += step.transfer_ns;
    (step.is_gather ? gathers : by_boundary[step.boundary]) += step.transfer_ns;
  }
  std::string text = fmt::format("critical path: {} % waits for transfers",
                                 percent(transfers, outlook.forecast.total_ns));
  for (const auto& [stage, ns] : by_boundary) {
    text += fmt::format(", {} % between stages {} and {}", percent(ns, outlook.forecast.total_ns),
                        stage, stage + 1);
  }
  if (gathers > 0) {
    text += fmt::format(", {} % for weights", percent(gathers, outlook.forecast.total_ns));
  }
  return text + "\n";
}

// Returns the index of the pipeline that |rank| belongs to.
size_t pipeline_of(const Outlook& outlook, uint32_t rank) {
  size_t number = 0;
  while (number + 1 < outlook.pipelines.size() &&
         outlook.pipelines[number + 1].first_rank <= rank) {
    ++number;
  }
  return number;
}

// Returns the time at which the last step ends. Sums of gradients can end later.
uint64_t steps_ns(const Outlook& outlook) {
  uint64_t end_ns = 0;
  for (const std::vector<Span>& spans : outlook.forecast.actions) {
    for (const Span& each : spans) end_ns = std::max(end_ns, each.end_ns);
  }
  return end_ns;
}

std::string reductions_text(const Outlook& outlook, std::string_view unit) {
  std::string text;
  const uint64_t total_ns = outlook.forecast.total_ns;
  const uint64_t after_ns = total_ns - std::min(total_ns, steps_ns(outlook));
  if (after_ns > 0) {
    text += fmt::format("reductions end {} {} after the last step, {} %\n",
                        time_text(outlook, after_ns), unit, percent(after_ns, total_ns));
  }
  for (const Outlook::Reduction& each : outlook.reductions) {
    text += fmt::format("reduction of stages {}: from {} to {} {}, {} {} if it were alone\n",
                        fmt::join(each.stages, " "), time_text(outlook, each.span.start_ns),
                        time_text(outlook, each.span.end_ns), unit,
                        time_text(outlook, each.alone_ns), unit);
  }
  return text;
}

// Calls tell(time, held) for each time at which the memory held by |rank| changes.
template <typename Tell>
void for_each_change(const Outlook& outlook, uint32_t rank, Tell&& tell) {
  int64_t known = 0;
  const auto change = [&](uint64_t at_ns, int64_t held) {
    if (std::exchange(known, held) != held) tell(at_ns, held);
  };
  const std::vector<HeldMemory> memory = memory_over_time(outlook.schedule, rank, outlook.memory);
  for (size_t i = 0; i < memory.size(); ++i) {
    const Span& span = outlook.forecast.actions[rank][i];
    change(span.start_ns, memory[i].during);
    change(span.end_ns, memory[i].after);
  }
}

}  // namespace

std::string to_text(const Outlook& outlook) {
  const Schedule& schedule = outlook.schedule;
  const Forecast& forecast = outlook.forecast;
  const std::string_view unit = outlook.has_times ? "ms" : "steps";
  std::string text = pipelines_text(outlook);
  size_t width = 6;
  for (const std::string& each : outlook.rank_names) width = std::max(width, each.size());
  text += fmt::format("{:>{}} {:>8} {:>9} {:>14} {:>14} {:>10} {:>12}\n", "rank", width, "warm-up",
                      "steps", fmt::format("busy[{}]", unit), fmt::format("idle[{}]", unit),
                      "bubble[%]", "peak memory");
  for (uint32_t rank = 0; rank < schedule.ranks(); ++rank) {
    text += fmt::format("{:>{}} {:>8} {:>9} {:>14} {:>14} {:>10} {:>12}\n", outlook.rank_name(rank),
                        width, warmup_of(schedule, rank), computations_in(schedule, rank),
                        time_text(outlook, forecast.busy_ns[rank]),
                        time_text(outlook, forecast.idle_ns(rank)),
                        percent(forecast.idle_ns(rank), forecast.total_ns), outlook.peaks[rank]);
  }
  text += fmt::format("iteration: {} {}, bubble {:.1f} %\n", time_text(outlook, forecast.total_ns),
                      unit, static_cast<double>(forecast.bubble_ppm()) / 1e4);
  text += path_text(outlook);
  constexpr size_t kMaxShown = 12;
  for (size_t i = 0; i < outlook.resources.size(); ++i) {
    if (i == kMaxShown) {
      text += fmt::format("and {} links more\n", outlook.resources.size() - i);
      break;
    }
    const Outlook::Resource& each = outlook.resources[i];
    text += fmt::format("{}: busy {} {}, {} %\n", printable(each.name),
                        time_text(outlook, each.busy_ns), unit,
                        percent(each.busy_ns, forecast.total_ns));
  }
  text += reductions_text(outlook, unit);
  if (std::any_of(outlook.in_flight.begin(), outlook.in_flight.end(),
                  [](uint32_t each) { return each > 1; })) {
    text += "items in flight, by boundary:";
    for (const uint32_t each : outlook.in_flight) {
      text += each == 0 ? " |" : fmt::format(" {}", each);
    }
    text += "\n";
  }
  for (const uint32_t stage : outlook.exposed) {
    text += fmt::format(
        "the link between stages {} and {} is busy for longer than a stage computes: "
        "no schedule can hide that\n",
        stage, stage + 1);
  }
  return text;
}

std::string to_json(const Outlook& outlook) {
  OrderedJson json;
  json["format"] = kOutlookFormat;
  json["version"] = kOutlookVersion;
  OrderedJson& schedule = json["schedule"];
  schedule["micro_batches"] = outlook.schedule.micro_batches;
  schedule["rank_of"] = outlook.schedule.rank_of;
  schedule["actions"] = OrderedJson::array();
  for (const std::vector<Action>& actions : outlook.schedule.actions) {
    OrderedJson& cells = schedule["actions"].emplace_back(OrderedJson::array());
    for_each_cell(actions, [&](std::string text) { cells.push_back(std::move(text)); });
  }
  for (const Outlook::Part& each : outlook.pipelines) {
    json["pipelines"].push_back({{"first_rank", each.first_rank},
                                 {"first_stage", each.first_stage},
                                 {"micro_batches", each.micro_batches}});
  }
  if (!outlook.rank_names.empty()) json["ranks"] = outlook.rank_names;
  json["peaks"] = outlook.peaks;
  json["in_flight"] = outlook.in_flight;
  json["exposed_boundaries"] = outlook.exposed;
  if (!outlook.has_times) return json.dump(1) + "\n";
  OrderedJson& forecast = json["forecast"];
  forecast["total_ns"] = outlook.forecast.total_ns;
  forecast["steps_ns"] = steps_ns(outlook);
  forecast["busy_ns"] = outlook.forecast.busy_ns;
  forecast["bubble_ppm"] = outlook.forecast.bubble_ppm();
  // Indexed by rank: the times at which the memory held changes, and the memory held from then on.
  OrderedJson& memory = forecast["memory"] = OrderedJson::array();
  for (uint32_t rank = 0; rank < outlook.schedule.ranks(); ++rank) {
    OrderedJson& own = memory.emplace_back(OrderedJson::array());
    for_each_change(outlook, rank, [&](uint64_t at_ns, int64_t held) {
      own.push_back({{"at_ns", at_ns}, {"held", held}});
    });
  }
  for (const Outlook::Resource& each : outlook.resources) {
    forecast["resources"].push_back({{"name", each.name}, {"busy_ns", each.busy_ns}});
  }
  for (const Outlook::Reduction& each : outlook.reductions) {
    forecast["reductions"].push_back({{"stages", each.stages},
                                      {"start_ns", each.span.start_ns},
                                      {"end_ns", each.span.end_ns},
                                      {"alone_ns", each.alone_ns}});
  }
  OrderedJson& path = forecast["critical_path"] = OrderedJson::array();
  for (const CriticalStep& step : critical_path(outlook)) {
    path.push_back({{"rank", step.rank},
                    {"action", to_text(outlook.schedule.actions[step.rank][step.action])},
                    {"transfer_ns", step.transfer_ns}});
    if (step.is_gather) path.back()["waits_for"] = "weights";
  }
  return json.dump(1) + "\n";
}

std::string to_chrome_trace(const Outlook& outlook) {
  std::string events;
  const auto add = [&](const std::string& event) {
    events += events.empty() ? "\n" : ",\n";
    events += event;
  };
  const auto us = [](uint64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); };
  const auto name = [&](std::string_view kind, size_t process, size_t track,
                        const std::string& text) {
    add(fmt::format(R"({{"ph":"M","pid":{},"tid":{},"name":"{}","args":{{"name":"{}"}}}})", process,
                    track, kind, text));
  };
  const auto add_span = [&](size_t process, size_t track, const std::string& text,
                            std::string_view category, const Span& span) {
    add(fmt::format(R"({{"ph":"X","pid":{},"tid":{},"name":"{}","cat":"{}","ts":{},"dur":{}}})",
                    process, track, text, category, us(span.start_ns),
                    us(span.end_ns - span.start_ns)));
  };
  for (size_t i = 0; i < outlook.pipelines.size(); ++i) {
    name("process_name", i, 0, fmt::format("pipeline {}", i));
  }
  for (uint32_t rank = 0; rank < outlook.schedule.ranks(); ++rank) {
    const size_t process = pipeline_of(outlook, rank);
    name("thread_name", process, rank, "rank " + outlook.rank_name(rank));
    const std::vector<Action>& actions = outlook.schedule.actions[rank];
    for (size_t i = 0; i < actions.size(); ++i) {
      if (!is_computation(actions[i].kind)) continue;
      add_span(process, rank, to_text(actions[i]), name_of(actions[i].kind),
               outlook.forecast.actions[rank][i]);
    }
    for_each_change(outlook, rank, [&](uint64_t at_ns, int64_t held) {
      add(fmt::format(
          R"({{"ph":"C","pid":{},"name":"memory of rank {}","ts":{},"args":{{"held":{}}}}})",
          process, outlook.rank_name(rank), us(at_ns), held));
    });
  }
  const size_t sums = outlook.pipelines.size();
  if (sums > 0 && !outlook.reductions.empty()) name("process_name", sums, 0, "reductions");
  for (size_t i = 0; i < outlook.reductions.size(); ++i) {
    const Outlook::Reduction& each = outlook.reductions[i];
    const std::string text = fmt::format("reduction of stages {}", fmt::join(each.stages, " "));
    name("thread_name", sums, outlook.schedule.ranks() + i, text);
    add_span(sums, outlook.schedule.ranks() + i, text, "reduction", each.span);
  }
  return fmt::format("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[{}\n]}}\n", events);
}

}  // namespace hetcomm::pipeline
