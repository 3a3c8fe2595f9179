// Reads a question about the time of a whole plan from a JSON document. ../README.md describes the
// document.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "pipeline/joint/plan_routes.h"
#include "pipeline/plan/check_plan.h"
#include "pipeline/plan/plan.h"
#include "pipeline/simulate/times.h"
#include "reshard/links.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

struct ForecastQuestion {
  PipelinePlan plan;
  std::vector<PipelineView> views;      // check_plan()
  std::vector<StageTime> stages;        // of all pipelines, one after the other
  uint32_t overlap_ppm = 0;             // as PipelineTimes::overlap_ppm
  std::optional<reshard::Links> links;  // none: transfers take no time
  std::vector<ItemBytes> items;         // by item
};

// Fails with kInvalidArgument for a wrong document; the text names the line of a syntax error, or
// the path of a wrong entry. Fails with kNotFound if the link model lacks a host or a NIC, with
// kUnsupported for a document of another version, and as check_plan() does.
Result<ForecastQuestion> parse_forecast_question(std::string_view json);

}  // namespace hetcomm::pipeline
