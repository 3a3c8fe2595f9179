// Reads a question about a schedule from a JSON document. The question specifies the schedule, the
// level to which it is lowered, times, memory and limits. ../README.md describes the document.
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

// The maximum product of stages and micro-batches in a question.
inline constexpr uint64_t kMaxQuestionSteps = uint64_t{1} << 22;

struct ScheduleQuestion {
  Schedule schedule;              // lowered to the level that the document specifies; not checked
  std::vector<uint32_t> exposed;  // H-1F1B: boundaries that no schedule can hide (warmups.h)
  std::optional<PipelineTimes> times;
  std::vector<QuestionRoute> routes;  // empty: each direction of a boundary has a separate link
  CheckOptions check;                 // in_flight is empty if the document has none
  std::vector<RankTrace> traces;      // of a run of the schedule, for look_at_run() (run_view.h)
  // True if proposed schedules may split backward steps although |schedule| does not.
  bool may_split = false;
  // The maximum number of activations that proposed schedules may keep, indexed by stage. 0: any
  // number.
  std::vector<uint64_t> stage_limits;
};

// Parses a document. Fails with kInvalidArgument for a malformed document. The error text names the
// line of a syntax error, or the path of a wrong entry. Fails with kNotFound for an unknown
// schedule name, with kUnsupported if the version of the document is not supported, with
// kOutOfResources if stages times micro-batches exceed kMaxQuestionSteps, and with kOutOfRange if a
// schedule has to be arranged and no order meets the limits.
Result<ScheduleQuestion> parse_question(std::string_view json);

}  // namespace hetcomm::pipeline
