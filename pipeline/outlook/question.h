// Reads a question about a schedule from a JSON document: which schedule, lowered how far, with
// which times, memory and limits. ../README.md describes the document.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "pipeline/outlook/measured.h"
#include "pipeline/outlook/routes.h"
#include "pipeline/schedule/check.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/times.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

// The largest product of stages and micro-batches in a question.
inline constexpr uint64_t kMaxQuestionSteps = uint64_t{1} << 22;

struct ScheduleQuestion {
  Schedule schedule;              // lowered as the document asks; not checked
  std::vector<uint32_t> exposed;  // H-1F1B: boundaries that no schedule can hide (warmups.h)
  std::optional<PipelineTimes> times;
  std::vector<QuestionRoute> routes;  // empty: each direction of a boundary has a link of its own
  CheckOptions check;                 // in_flight is empty if the document has none
  std::vector<RankTrace> traces;      // of a run of the schedule; run_view.h looks at it
  // True if better schedules may split backward steps although |schedule| does not.
  bool may_split = false;
  // The most activations of each stage that better schedules may keep; 0: any number.
  std::vector<uint64_t> stage_limits;
};

// Fails with kInvalidArgument for a wrong document; the text names the line of a syntax error, or
// the path of a wrong entry. Fails with kNotFound for an unknown name of a schedule, with
// kUnsupported for a document of another version, with kOutOfResources if stages times
// micro-batches are more than kMaxQuestionSteps, and with kOutOfRange if a schedule is to be
// arranged and no order meets the limits.
Result<ScheduleQuestion> parse_question(std::string_view json);

}  // namespace hetcomm::pipeline
