#include "tools/info/schedule.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <hetcomm_plan/hetcomm_plan.h>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string_view>
#include <thread>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "tools/common/plan_answer.h"
#include "tools/info/files.h"
#include "tools/info/handles.h"

namespace hetcomm_info {
namespace {

using Json = nlohmann::json;

// Size of the first buffer for an answer. Most answers fit, so a search does not run twice.
constexpr size_t kFirstSize = size_t{8} << 20;

// Converts a time such as "12.5ms" to nanoseconds. Throws std::runtime_error if it is malformed.
uint64_t nanoseconds(std::string_view text) {
  static constexpr std::pair<std::string_view, double> kUnits[] = {
      {"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit = text.substr(static_cast<size_t>(rest - text.data()));
  const auto* const known = std::find_if(std::begin(kUnits), std::end(kUnits),
                                         [&](const auto& each) { return each.first == unit; });
  constexpr double kMax = 1e15;
  if (error != std::errc() || known == std::end(kUnits) || !(number >= 0) ||
      number * known->second > kMax) {
    throw std::runtime_error(fmt::format("'{}' is no time such as 12.5ms", text));
  }
  return static_cast<uint64_t>(std::llround(number * known->second));
}

uint64_t element(const std::vector<std::string>& times, size_t stage, std::string_view option) {
  if (times.size() == 1) return nanoseconds(times.front());
  if (stage < times.size()) return nanoseconds(times[stage]);
  throw std::runtime_error(
      fmt::format("{} has {} times, and other options have more", option, times.size()));
}

Json stages_of(const ScheduleOrder& order) {
  const size_t count =
      std::max({order.forward.size(), order.backward.size(), order.weight_grad.size()});
  Json stages = Json::array();
  for (size_t i = 0; i < count; ++i) {
    Json stage = Json::object();
    const uint64_t forward_ns = element(order.forward, i, "--forward");
    stage["forward_ns"] = forward_ns;
    const uint64_t backward_ns =
        order.backward.empty() ? 2 * forward_ns : element(order.backward, i, "--backward");
    stage["backward_ns"] = backward_ns;
    if (!order.weight_grad.empty()) {
      const uint64_t weight_ns = element(order.weight_grad, i, "--weight-grad");
      if (weight_ns > backward_ns) {
        throw std::runtime_error("--weight-grad is longer than --backward");
      }
      stage["weight_grad_ns"] = weight_ns;
      stage["input_grad_ns"] = backward_ns - weight_ns;
    }
    stages.push_back(std::move(stage));
  }
  return stages;
}

Json boundaries_of(const ScheduleOrder& order) {
  Json boundaries = Json::array();
  for (const std::string& text : order.boundaries) {
    uint32_t stage = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), stage);
    const auto at = static_cast<size_t>(rest - text.data());
    if (error != std::errc() || at == text.size() || text[at] != '=') {
      throw std::runtime_error(fmt::format("--boundary {} is not of the form 1=5ms+20ms", text));
    }
    const std::string_view times = std::string_view(text).substr(at + 1);
    const size_t plus = std::min(times.find('+'), times.size());
    Json boundary = {{"after", stage}, {"busy_ns", nanoseconds(times.substr(0, plus))}};
    if (plus < times.size()) boundary["latency_ns"] = nanoseconds(times.substr(plus + 1));
    boundaries.push_back(std::move(boundary));
  }
  return boundaries;
}

uint32_t ppm(double percent) { return static_cast<uint32_t>(std::llround(percent * 1e4)); }

std::string lower(std::string name) {
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return name;
}

// Throws an error for options that the file of |order| replaces.
void refuse_options(const ScheduleOrder& order, bool is_question) {
  const bool is_named = order.ranks != 0 || order.micro_batches != 0 || order.chunks != 0 ||
                        !order.warmups.empty() || order.epsilon_percent > 0 ||
                        !order.order.empty() || order.effort > 0;
  const bool has_more = !order.forward.empty() || !order.backward.empty() ||
                        !order.weight_grad.empty() || !order.boundaries.empty() ||
                        order.overlap_percent > 0 || order.limit > 0 || order.level != "compute" ||
                        order.receives_ahead || order.send_buffers || !order.send_waits.empty() ||
                        !order.in_flight.empty() || !order.routes.empty() || order.reductions;
  if (is_named || (is_question && has_more)) {
    throw std::runtime_error(
        is_question
            ? "a file with a question, or a plan without --forward or --traces, takes no options "
              "but --format and --traces"
            : "--ranks, --micro-batches, --chunks, --warmups, --epsilon, --order and "
              "--effort do not go with a file");
  }
}

Json question_about(Json schedule) {
  return {
      {"format", "hetcomm schedule question"}, {"version", 1}, {"schedule", std::move(schedule)}};
}

// Returns the question about a schedule that is given by name.
Json named_question(const ScheduleOrder& order) {
  if (order.ranks == 0 || order.micro_batches == 0) {
    throw std::runtime_error("schedule needs --ranks and --micro-batches");
  }
  const std::string name = lower(order.what);
  if (name == "arranged" && (order.forward.empty() || order.limit == 0)) {
    throw std::runtime_error("arranged needs --forward and --memory-limit");
  }
  if (name == "h-1f1b" && order.forward.empty()) {
    throw std::runtime_error("h-1f1b needs --forward, and --boundary for each slow link");
  }
  Json schedule = {
      {"name", order.what}, {"ranks", order.ranks}, {"micro_batches", order.micro_batches}};
  if (order.chunks != 0) schedule["chunks"] = order.chunks;
  if (!order.warmups.empty()) schedule["warmups"] = order.warmups;
  if (order.epsilon_percent > 0) schedule["epsilon_ppm"] = ppm(order.epsilon_percent);
  if (!order.order.empty()) schedule["order"] = order.order;
  if (order.effort > 0) schedule["effort"] = order.effort;
  if (name == "virtual-1f1b") {
    // Every boundary that is given counts as slow.
    Json slow = Json::array();
    for (const Json& each : boundaries_of(order)) slow.push_back(each["after"]);
    schedule["slow_boundaries"] = std::move(slow);
  }
  return question_about(std::move(schedule));
}

// Returns whether |order| specifies a file instead of the name of a schedule.
bool names_file(const ScheduleOrder& order) {
  return order.what.find_first_of("./") != std::string::npos;
}

// Returns whether |text| is a JSON object whose "format" is |format|. Does not check its other
// members.
bool has_format(const std::string& text, std::string_view format) {
  const Json json = Json::parse(text, nullptr, false);
  return json.is_object() && json.value("format", Json()) == format;
}
bool is_plan(const std::string& text) { return has_format(text, "hetcomm pipeline plan"); }

Json parse_file(const std::string& path) {
  Json json = Json::parse(read_file(path), nullptr, false);
  if (!json.is_object()) throw std::runtime_error(fmt::format("{} is no JSON document", path));
  return json;
}

// Returns the number of the pipeline to simulate: from |traces| if there are any, otherwise from
// the option --pipeline, or 0.
size_t pipeline_number(const ScheduleOrder& order, const Json& traces, size_t count) {
  if (traces.empty()) {
    const size_t number = order.pipeline.value_or(0);
    if (number < count) {
      if (count > 1 && !order.pipeline) {
        fmt::print(
            stderr,
            "hetcomm_info: this is pipeline 0 of {}; --pipeline tells another one, and --links "
            "all at once\n",
            count);
      }
      return number;
    }
    throw std::runtime_error(
        fmt::format("the plan has {} pipelines, and none is {}", count, number));
  }
  if (order.pipeline)
    throw std::runtime_error("--pipeline does not go with --traces, which tell it");
  const Json number = traces.front().value("pipeline", Json());
  if (number.is_number_unsigned() && number < count) return number.get<size_t>();
  throw std::runtime_error("the traces are of no pipeline of the plan");
}

// Returns the question about a pipeline of |plan|, the text of a plan.
Json question_of_plan(const std::string& plan, const ScheduleOrder& order, const Json& traces) {
  const Json outline =
      Json::parse(tools::plan_answer(hetcomm_draft_pipeline, plan, HETCOMM_PLAN_JSON));
  const size_t number = pipeline_number(order, traces, outline["pipelines"].size());
  const Json& pipeline = outline["pipelines"][number];
  Json question =
      question_about({{"actions", pipeline["actions"]}, {"rank_of", pipeline["group_of_stage"]}});
  const Json& in_flight = pipeline["stage_in_flight"];
  if (!in_flight.empty()) question["in_flight"] = in_flight;
  if (traces.empty()) return question;
  // The plan is valid, since hetcomm_draft_pipeline() has accepted it.
  const Json planned = Json::parse(plan)["pipelines"][number];
  for (const Json& stage : planned["stages"]) {
    question["stage_limits"].push_back(stage.value("live_limit", 0));
  }
  return question;
}

// Throws an error if the number of |times| or the number of gradient |sizes| does not match |plan|,
// the text of a plan.
void check_counts(const std::string& plan, size_t times, size_t sizes) {
  const Json outline =
      Json::parse(tools::plan_answer(hetcomm_draft_pipeline, plan, HETCOMM_PLAN_JSON));
  size_t stages = 0;
  std::string told;
  for (size_t i = 0; i < outline["pipelines"].size(); ++i) {
    const size_t own = outline["pipelines"][i]["group_of_stage"].size();
    stages += own;
    told += fmt::format("{}pipeline {}: {}", i == 0 ? "" : ", ", i, own);
  }
  if (times != 1 && times != stages) {
    throw std::runtime_error(fmt::format(
        "times of {} stages are given, and the plan has {} ({}): give one time for all, or {}",
        times, stages, told, stages));
  }
  const auto items = Json::parse(plan)["model"]["items"].get<size_t>();
  if (sizes > 1 && sizes != items) {
    throw std::runtime_error(fmt::format(
        "--gradient-bytes has {} sizes, and the model has {} items: give one for all, or {}", sizes,
        items, items));
  }
}

// Returns the question about all pipelines of the plan in |order|, over the links in |order|.
Json forecast_question(const ScheduleOrder& order) {
  const std::string plan = names_file(order) ? read_file(order.what) : "";
  if (!is_plan(plan) || order.forward.empty()) {
    throw std::runtime_error("--links needs a pipeline plan and --forward");
  }
  refuse_options(order, false);
  if (!order.boundaries.empty() || !order.routes.empty() || !order.in_flight.empty() ||
      !order.traces.empty() || order.reductions || order.pipeline || order.level != "compute" ||
      order.limit > 0 || order.may_split) {
    throw std::runtime_error(
        "beside --links a plan takes --forward, --backward, --weight-grad, --overlap, --nics and "
        "--gradient-bytes");
  }
  const Json stages = stages_of(order);
  check_counts(plan, stages.size(), order.links.gradient_bytes.size());
  Json question = {{"format", "hetcomm forecast question"},
                   {"version", 1},
                   {"plan", Json::parse(plan)},
                   {"links", {{"model", parse_file(order.links.model)}}},
                   {"times", {{"stages", stages}, {"overlap_ppm", ppm(order.overlap_percent)}}}};
  if (!order.links.nics.empty()) question["links"]["nics"] = order.links.nics;
  for (const uint64_t bytes : order.links.gradient_bytes) {
    question["items"].push_back({{"gradient_bytes", bytes}});
  }
  return question;
}

// Returns the plan of |order| with the proposed schedule, which is better for the times in the
// traces. Throws an error if no schedule is better.
std::string proposed_plan(const ScheduleOrder& order, const Json& question) {
  const bool is_run = names_file(order) && !order.traces.empty();
  const std::string plan = is_run ? read_file(order.what) : "";
  if (!is_plan(plan)) throw std::runtime_error("--format plan needs a pipeline plan and --traces");
  const size_t number = question["traces"].front()["pipeline"].get<size_t>();
  const Json answer = Json::parse(
      tools::plan_answer(hetcomm_draft_schedule, question.dump(), HETCOMM_PLAN_JSON, kFirstSize));
  const Json& proposal = answer["proposal"];
  if (proposal.is_null()) {
    throw std::runtime_error(
        "no schedule is better for the times of the run: the plan stays as it is");
  }
  Json changed = Json::parse(plan);
  Json& pipeline = changed["pipelines"][number];
  pipeline["schedule"] = proposal["schedule"];
  for (Json& boundary : pipeline["boundaries"]) {
    const auto from = boundary["from"].get<size_t>();
    if (boundary["to"] != from + 1) continue;
    boundary["in_flight"] = proposal["in_flight"][from];
  }
  return changed.dump(1) + "\n";
}

// Adds the traces of a run to |question|.
Json with_traces(Json question, Json traces, bool may_split) {
  question["traces"] = std::move(traces);
  question["may_split"] = may_split;
  return question;
}

Json question_of(const ScheduleOrder& order) {
  Json question;
  if (!order.links.model.empty()) return forecast_question(order);
  if (!order.links.gradient_bytes.empty() || !order.links.nics.empty()) {
    throw std::runtime_error("--gradient-bytes and --nics need --links");
  }
  Json traces = Json::array();
  for (const std::string& file : order.traces) {
    traces.push_back(parse_file(file));
    if (traces.back().value("format", Json()) == "hetcomm pipeline trace") continue;
    throw std::runtime_error(fmt::format("{} is no trace of a pipeline", file));
  }
  if (traces.empty() && order.may_split) throw std::runtime_error("--may-split needs --traces");
  const std::string text = names_file(order) ? read_file(order.what) : "";
  const bool asks_plan = is_plan(text) && (!traces.empty() || !order.forward.empty());
  if (order.pipeline && !asks_plan) {
    throw std::runtime_error("--pipeline needs a pipeline plan and --forward");
  }
  if (!names_file(order)) {
    question = named_question(order);
  } else {
    const bool is_question = !order.what.ends_with(".csv") && !asks_plan;
    refuse_options(order, is_question);
    if (is_question && traces.empty()) return Json(text);
    if (is_question) {
      return with_traces(parse_file(order.what), std::move(traces), order.may_split);
    }
    question = asks_plan ? question_of_plan(text, order, traces) : question_about({{"csv", text}});
  }
  if (!order.forward.empty()) {
    question["times"] = {{"stages", stages_of(order)},
                         {"boundaries", boundaries_of(order)},
                         {"overlap_ppm", ppm(order.overlap_percent)}};
  } else if (!order.backward.empty() || !order.weight_grad.empty() || !order.boundaries.empty() ||
             order.overlap_percent > 0) {
    throw std::runtime_error("--backward, --weight-grad, --boundary and --overlap need --forward");
  }
  if (!order.routes.empty()) {
    Json routes = Json::parse(read_file(order.routes), nullptr, false);
    if (!routes.is_array()) {
      throw std::runtime_error(fmt::format("{} is no JSON list of routes", order.routes));
    }
    question["routes"] = std::move(routes);
  }
  if (order.reductions) question["reductions"] = true;
  if (!order.in_flight.empty()) question["in_flight"] = order.in_flight;
  if (order.limit > 0) question["limits"] = {order.limit};
  if (order.level != "compute") {
    question["level"] = order.level;
    if (order.receives_ahead) question["receives_ahead"] = *order.receives_ahead;
    if (order.send_buffers) question["send_buffers"] = *order.send_buffers;
    if (!order.send_waits.empty()) question["send_waits"] = order.send_waits;
  } else if (order.receives_ahead || order.send_buffers || !order.send_waits.empty()) {
    throw std::runtime_error("--receives-ahead, --send-buffers and --send-waits need --level");
  }
  if (traces.empty()) return question;
  return with_traces(std::move(question), std::move(traces), order.may_split);
}

// SearchClock shows on a terminal how long a search has been running, starting after two seconds.
class SearchClock {
 public:
  SearchClock() {
    if (isatty(STDERR_FILENO) == 0) return;
    thread_ = std::jthread([this](const std::stop_token& stop) { tick(stop); });
  }

 private:
  void tick(const std::stop_token& stop) {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    for (int seconds = 1;; ++seconds) {
      changed_.wait_for(lock, stop, std::chrono::seconds(1), [] { return false; });
      if (stop.stop_requested()) break;
      if (seconds > 1) fmt::print(stderr, "\rsearching for {} s", seconds);
    }
    fmt::print(stderr, "\r{:30}\r", "");
  }

  std::condition_variable_any changed_;
  std::jthread thread_;
};

// Returns the library function that handles |text|, a question or a plan.
auto* draft_of(const std::string& text) {
  if (is_plan(text)) return hetcomm_draft_pipeline;
  return has_format(text, "hetcomm forecast question") ? hetcomm_draft_forecast
                                                       : hetcomm_draft_schedule;
}

const std::map<std::string, int32_t>& forms() {
  static const std::map<std::string, int32_t> all = {{"text", HETCOMM_PLAN_TEXT},
                                                     {"json", HETCOMM_PLAN_JSON},
                                                     {"svg", HETCOMM_PLAN_SVG},
                                                     {"csv", HETCOMM_PLAN_CSV},
                                                     {"trace", HETCOMM_PLAN_TRACE}};
  return all;
}

}  // namespace

const std::vector<std::string>& schedule_formats() {
  static const std::vector<std::string> names = {"text", "json", "svg", "csv", "trace", "plan"};
  return names;
}

int print_schedule(const ScheduleOrder& order, const std::string& format) {
  try {
    const Json question = question_of(order);
    if (format == "plan") {
      std::fputs(proposed_plan(order, question).c_str(), stdout);
      return kSuccess;
    }
    // Passes a question from a file on unchanged, so that errors refer to the lines of the file.
    const std::string text = question.is_string() ? question.get<std::string>() : question.dump();
    auto* const draft = draft_of(text);
    if (draft == hetcomm_draft_pipeline && (format == "csv" || format == "trace")) {
      throw std::runtime_error(
          "a plan is told as text, json or svg; csv and trace need --forward or --traces");
    }
    std::optional<SearchClock> clock;
    if (order.what == "arranged") clock.emplace();
    const std::string answer = tools::plan_answer(draft, text, forms().at(format), kFirstSize);
    clock.reset();
    std::fputs(answer.c_str(), stdout);
    return kSuccess;
  } catch (const std::runtime_error& error) {
    std::fprintf(stderr, "hetcomm_info: %s\n", error.what());
    return kFailure;
  }
}

}  // namespace hetcomm_info
