#include "pipeline/joint/forecast_question.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "pipeline/outlook/stage_time_json.h"
#include "pipeline/plan/plan_json.h"
#include "reshard/links_json.h"
#include "src/present/json_fields.h"

namespace hetcomm::pipeline {
namespace {

using present::Fields;
using present::Json;

constexpr std::string_view kFormat = "hetcomm forecast question";
constexpr uint64_t kVersion = 1;
constexpr int kNesting = 17;  // nesting depth of a plan inside a question

class QuestionReader {
 public:
  Result<ForecastQuestion> read(const Json& document) {
    Fields fields(document, "", failure_);
    fields.allow_only({"format", "version", "plan", "links", "times", "items"});
    for (const char* const name : {"plan", "times"}) {
      if (!fields.has(name)) fields.fail(name, "is missing");
    }
    if (failure_.ok()) read_plan(*fields.find("plan"));
    if (failure_.ok()) read_times(Fields(*fields.find("times"), "times", failure_));
    read_items(fields);
    if (const Json* const links = fields.find("links"); links != nullptr) {
      read_links(*links);
    } else if (fields.has("items")) {
      fields.fail("items", "need links: without them nothing takes time to move");
    }
    if (!failure_.ok()) return failure_;
    return std::move(question_);
  }

 private:
  void read_plan(const Json& json) {
    Result<PipelinePlan> plan = parse_plan(json.dump());
    if (!plan.ok()) return fail(plan.status().annotate("plan"));
    Result<std::vector<PipelineView>> views = check_plan(plan.value());
    if (!views.ok()) return fail(views.status().annotate("plan"));
    question_.plan = std::move(plan).value();
    question_.views = std::move(views).value();
  }

  void read_times(Fields fields) {
    fields.allow_only({"stages", "overlap_ppm"});
    size_t stages = 0;
    for (const PlanPipeline& each : question_.plan.pipelines) stages += each.stages.size();
    question_.overlap_ppm = static_cast<uint32_t>(fields.number("overlap_ppm", 1'000'000));
    fields.each(
        "stages",
        [&](const Json& stage, const std::string& path) {
          question_.stages.push_back(read_stage_time(Fields(stage, path, failure_)));
        },
        stages);
    spread(question_.stages, stages, "stages", fields);
  }

  void read_items(Fields& fields) {
    fields.each(
        "items",
        [&](const Json& json, const std::string& path) {
          Fields item(json, path, failure_);
          item.allow_only({"gradient_bytes", "weight_bytes"});
          question_.items.push_back({.gradient = item.number("gradient_bytes", kMaxItemBytes),
                                     .weight = item.number("weight_bytes", kMaxItemBytes)});
        },
        question_.plan.items);
    if (!fields.has("items")) question_.items.emplace_back();
    spread(question_.items, question_.plan.items, "items", fields);
    uint64_t bytes = 0;
    for (const ItemBytes& each : question_.items) {
      bytes += each.gradient + each.weight;
      if (bytes > kMaxItemBytes) {
        return fields.fail("items", fmt::format("have more than {} bytes together", kMaxItemBytes));
      }
    }
  }

  // If |list| has a single element, repeats it |count| times. Otherwise checks that it has |count|
  // elements.
  template <class T>
  void spread(std::vector<T>& list, size_t count, const char* name, Fields& fields) {
    if (list.size() == 1) list.resize(count, list.front());
    if (list.size() != count) {
      fields.fail(name, fmt::format("has {} elements, and the plan has {}", list.size(), count));
    }
  }

  void read_links(const Json& json) {
    std::vector<std::string> hosts;
    for (const PlanRank& each : question_.plan.ranks) hosts.push_back(each.host);
    const auto unknown = std::find(hosts.begin(), hosts.end(), "");
    if (unknown != hosts.end() && !json.contains("hosts")) {
      return fail(Status(Code::kInvalidArgument,
                         fmt::format("plan.ranks[{}] has no host, and there are no links.hosts",
                                     unknown - hosts.begin())));
    }
    Result<reshard::Links> links = reshard::parse_links(json, "links", std::move(hosts));
    if (!links.ok()) return fail(links.status());
    if (links->ranks() != question_.plan.ranks.size()) {
      return fail(
          Status(Code::kInvalidArgument, fmt::format("links.hosts has {} elements for {} ranks",
                                                     links->ranks(), question_.plan.ranks.size())));
    }
    question_.links = std::move(links).value();
  }

  void fail(const Status& status) {
    if (failure_.ok()) failure_ = status;
  }

  ForecastQuestion question_;
  Status failure_;
};

}  // namespace

Result<ForecastQuestion> parse_forecast_question(std::string_view json) {
  Result<Json> document = present::parse_document(json, kFormat, kVersion, kNesting);
  if (!document.ok()) return document.status();
  return QuestionReader().read(document.value());
}

}  // namespace hetcomm::pipeline
