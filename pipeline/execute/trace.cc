#include "pipeline/execute/trace.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "pipeline/schedule/text.h"

namespace hetcomm::pipeline {
namespace {

using Json = nlohmann::json;

constexpr double kNsPerUs = 1000;

}  // namespace

std::string to_json(const Program& program, const RunRecord& record) {
  Json steps = Json::array();
  for (size_t i = 0; i < record.steps.size(); ++i) {
    const StepRecord& each = record.steps[i];
    steps.push_back({{"action", to_text(program.steps[i].action)},
                     {"start_ns", each.start_ns},
                     {"end_ns", each.end_ns},
                     {"data_wait_ns", each.data_wait_ns},
                     {"room_wait_ns", each.room_wait_ns}});
  }
  const Json document = {{"format", "hetcomm pipeline trace"},
                         {"version", 1},
                         {"rank", program.rank},
                         {"pipeline", program.pipeline},
                         {"group", program.group},
                         {"training_step", record.step},
                         {"evaluation", record.kind == RunKind::kEvaluate},
                         {"total_ns", record.total_ns},
                         {"steps", std::move(steps)}};
  return document.dump(1) + "\n";
}

std::string to_chrome_trace(const Program& program, const RunRecord& record) {
  Json events = Json::array();
  const auto add = [&](const std::string& name, const char* category, uint64_t start_ns,
                       uint64_t length_ns) {
    events.push_back({{"name", name},
                      {"cat", category},
                      {"ph", "X"},
                      {"pid", program.pipeline},
                      {"tid", program.rank},
                      {"ts", static_cast<double>(start_ns) / kNsPerUs},
                      {"dur", static_cast<double>(length_ns) / kNsPerUs}});
  };
  for (size_t i = 0; i < record.steps.size(); ++i) {
    const StepRecord& each = record.steps[i];
    const uint64_t waited_ns = each.data_wait_ns + each.room_wait_ns;
    if (waited_ns > 0) {
      add(each.data_wait_ns >= each.room_wait_ns ? "wait for data" : "wait for room", "wait",
          each.start_ns - waited_ns, waited_ns);
    }
    add(to_text(program.steps[i].action), "step", each.start_ns, each.end_ns - each.start_ns);
  }
  events.push_back({{"name", "thread_name"},
                    {"ph", "M"},
                    {"pid", program.pipeline},
                    {"tid", program.rank},
                    {"args", {{"name", "rank " + std::to_string(program.rank)}}}});
  const Json document = {{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}};
  return document.dump() + "\n";
}

}  // namespace hetcomm::pipeline
