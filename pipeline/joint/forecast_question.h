// A ForecastQuestion asks for the time of a whole plan. It is read from a JSON document, which
// ../README.md describes.
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
  std::vector<PipelineView> views;      // result of check_plan()
  std::vector<StageTime> stages;        // the stages of all pipelines, pipeline by pipeline
  uint32_t overlap_ppm = 0;             // as PipelineTimes::overlap_ppm
  std::optional<reshard::Links> links;  // if absent, transfers take no time
  std::vector<ItemBytes> items;         // indexed by item
};

// Parses a document. Fails with kInvalidArgument for a malformed document. The error text names the
// line of a syntax error, or the path of a wrong entry. Fails with kNotFound if the link model
// lacks a host or a NIC, with kUnsupported if the version of the document is not supported, and as
// check_plan() does.
Result<ForecastQuestion> parse_forecast_question(std::string_view json);

}  // namespace hetcomm::pipeline
