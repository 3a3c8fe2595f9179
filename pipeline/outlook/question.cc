#include "pipeline/outlook/question.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "pipeline/arrange/arrange.h"
#include "pipeline/outlook/stage_time_json.h"
#include "pipeline/schedule/cells_json.h"
#include "pipeline/schedule/faults.h"
#include "pipeline/schedule/lower.h"
#include "pipeline/schedule/named.h"
#include "pipeline/schedule/text.h"
#include "src/present/json_fields.h"

namespace hetcomm::pipeline {
namespace {

using present::Fields;
using present::Json;

constexpr std::string_view kQuestionFormat = "hetcomm schedule question";
constexpr uint64_t kQuestionVersion = 1;
constexpr int kNesting = 8;
constexpr uint64_t kMaxLimit = uint64_t{1} << 60;  // in activations or bytes
constexpr uint64_t kMaxEffort = 100'000'000'000;   // at most about 6 hours
constexpr size_t kMaxHops = 64;                    // hops of a route, and resources of a hop
constexpr size_t kMaxTraces = size_t{1} << 16;
constexpr std::string_view kArranged = "arranged";

class QuestionReader {
 public:
  Result<ScheduleQuestion> read(const Json& document) {
    Fields fields(document, "", failure_);
    fields.allow_only({"format", "version", "schedule", "reductions", "level", "receives_ahead",
                       "send_waits", "send_buffers", "times", "routes", "memory", "limits",
                       "in_flight", "traces", "may_split", "stage_limits"});
    if (const Json* const times = fields.find("times"); times != nullptr) raw_times(*times);
    read_routes(fields);
    question_.check.in_flight = numbers(fields, "in_flight", kMaxMicroBatches);
    question_.check.limits = numbers<int64_t>(fields, "limits", kMaxLimit);
    read_memory(fields);
    read_traces(fields);
    const Json* const schedule = fields.find("schedule");
    if (schedule == nullptr && !question_.traces.empty()) {
      take_schedule_of_traces();
    } else if (schedule == nullptr) {
      fields.fail("schedule", "is missing");
    } else {
      read_schedule(Fields(*schedule, "schedule", failure_));
    }
    if (!failure_.ok()) return failure_;
    lower(fields);
    const uint32_t stages = question_.schedule.stages();
    spread(question_.check.limits, question_.schedule.ranks());
    if (stages > 0) spread(question_.check.in_flight, stages - 1);
    spread(question_.check.memory, stages);
    if (question_.times) spread_times(*question_.times, stages);
    if (!named_boundaries_.empty() && named_boundaries_.rbegin()->first + 1 >= stages) {
      fields.fail("times.boundaries", fmt::format("name one after stage {}, and there is none",
                                                  named_boundaries_.rbegin()->first));
    }
    if (!failure_.ok()) return failure_;
    return std::move(question_);
  }

 private:
  template <class Number = uint32_t>
  std::vector<Number> numbers(Fields& fields, const char* name, uint64_t most) {
    std::vector<Number> list;
    fields.each(
        name,
        [&](const Json& json, const std::string& path) {
          list.push_back(static_cast<Number>(fields.number_at(json, path, most)));
        },
        kMaxStages);
    return list;
  }

  void read_traces(Fields& fields) {
    fields.each(
        "traces",
        [&](const Json& json, const std::string& path) {
          question_.traces.push_back(read_trace(Fields(json, path, failure_)));
        },
        kMaxTraces);
    question_.may_split = fields.flag("may_split");
    question_.stage_limits = numbers<uint64_t>(fields, "stage_limits", kMaxLimit);
    if (!question_.traces.empty() && !question_.routes.empty()) {
      fields.fail("routes",
                  "and traces are both given: the traces have the times of the boundaries");
    }
    if (!question_.traces.empty()) return;
    for (const char* const name : {"traces", "may_split", "stage_limits"}) {
      if (fields.has(name)) fields.fail(name, "has no trace");
    }
  }

  void take_schedule_of_traces() {
    if (!failure_.ok()) return;
    Result<Schedule> schedule = schedule_of(question_.traces);
    if (!schedule.ok()) {
      failure_ = schedule.status();
    } else {
      question_.schedule = std::move(schedule).value();
    }
  }

  void read_schedule(Fields fields) {
    if (fields.has("name")) {
      return fields.text("name") == kArranged ? read_arranged(fields) : read_named(fields);
    }
    fields.allow_only({"csv", "rank_of", "actions"});
    Schedule& schedule = question_.schedule;
    std::vector<uint32_t> rank_of = numbers(fields, "rank_of", kMaxStages - 1);
    if (fields.has("csv")) {
      const Json* const csv = fields.find("csv");
      if (!csv->is_string()) return fields.fail("csv", "is no text");
      Result<Schedule> read = read_csv(csv->get_ref<const std::string&>(), std::move(rank_of));
      if (!read.ok()) return fields.fail("csv", fmt::format("is wrong: {}", read.status().text()));
      schedule = std::move(read).value();
      return;
    }
    if (!fields.has("actions")) return fields.fail("", "has no name, csv or actions");
    fields.each(
        "actions",
        [&](const Json& rank, const std::string& path) {
          read_cells(fields, rank, path, question_.schedule.actions.emplace_back());
        },
        kMaxStages);
    schedule.rank_of = std::move(rank_of);
    if (!failure_.ok()) return;
    const Status status = complete(schedule);
    if (!status.ok()) fields.fail("actions", fmt::format("are wrong: {}", status.text()));
  }

  // Fails if a schedule has more than kMaxQuestionSteps, so that it would take too much time or
  // memory.
  void refuse_many(uint64_t ranks, uint64_t chunks, uint64_t micro_batches) {
    const uint64_t steps = ranks * chunks * micro_batches;
    if (!failure_.ok() || steps <= kMaxQuestionSteps) return;
    failure_ =
        Status(Code::kOutOfResources,
               fmt::format("schedule has {} stages in {} micro-batches, and {} steps are the "
                           "most",
                           ranks * chunks, micro_batches, kMaxQuestionSteps));
  }

  // Reads the parameters of an arranged schedule, and arranges it.
  void read_arranged(Fields& fields) {
    static constexpr const char* kOrders[] = {"loop", "v"};
    fields.allow_only({"name", "ranks", "chunks", "order", "micro_batches", "whole_backward",
                       "recomputed_stages", "effort", "seed"});
    const auto ranks = static_cast<uint32_t>(fields.number("ranks", kMaxStages));
    const uint64_t chunks = fields.has("chunks") ? fields.number("chunks", kMaxStages) : 1;
    const StageOrder order = fields.word("order", kOrders, StageOrder::kLoop);
    ArrangeOptions options;
    if (fields.has("effort")) options.effort = fields.number("effort", kMaxEffort);
    if (fields.has("seed")) options.seed = static_cast<uint32_t>(fields.number("seed", UINT32_MAX));
    ArrangeProblem problem;
    problem.micro_batches = static_cast<uint32_t>(fields.number("micro_batches", kMaxMicroBatches));
    problem.splits_backward = !fields.flag("whole_backward");
    const std::vector<uint32_t> recomputed = numbers(fields, "recomputed_stages", kMaxStages - 1);
    if (failure_.ok() && (ranks == 0 || chunks == 0 || ranks * chunks > kMaxStages)) {
      fields.fail("", fmt::format("has {} ranks with {} stages each", ranks, chunks));
    }
    if (failure_.ok() && (!question_.times || question_.check.limits.empty())) {
      fields.fail("name", "is 'arranged', and times or limits are missing");
    }
    refuse_many(ranks, chunks, problem.micro_batches);
    if (!failure_.ok()) return;
    const auto stages = static_cast<uint32_t>(ranks * chunks);
    problem.rank_of = deal_stages(ranks, stages, order);
    problem.times = *question_.times;
    spread_times(problem.times, stages);
    problem.limits = question_.check.limits;
    spread(problem.limits, ranks);
    if (problem.limits.size() != ranks) {
      failure_ = invalid(fmt::format("limits of {} ranks for {}", problem.limits.size(), ranks));
      return;
    }
    problem.memory = question_.check.memory;
    spread(problem.memory, stages);
    problem.in_flight = question_.check.in_flight;
    spread(problem.in_flight, stages - 1);
    problem.recomputes.resize(recomputed.empty() ? 0 : stages);
    for (const uint32_t stage : recomputed) {
      if (stage >= stages) return fields.fail("recomputed_stages", "name one that does not exist");
      problem.recomputes[stage] = true;
    }
    Result<Schedule> schedule = arrange(problem, options);
    if (!schedule.ok()) {
      failure_ = schedule.status().annotate("schedule");
      return;
    }
    question_.schedule = std::move(schedule).value();
  }

  void read_named(Fields& fields) {
    fields.allow_only({"name", "ranks", "chunks", "micro_batches", "warmups", "slow_boundaries",
                       "epsilon_ppm", "recomputed_stages"});
    ScheduleParameters parameters;
    parameters.ranks = static_cast<uint32_t>(fields.number("ranks", kMaxStages));
    parameters.chunks = static_cast<uint32_t>(fields.number("chunks", kMaxStages));
    parameters.micro_batches =
        static_cast<uint32_t>(fields.number("micro_batches", kMaxMicroBatches));
    parameters.warmups = numbers(fields, "warmups", kMaxMicroBatches);
    parameters.slow_boundaries = numbers(fields, "slow_boundaries", kMaxStages);
    parameters.recomputed_stages = numbers(fields, "recomputed_stages", kMaxStages);
    parameters.epsilon_ppm = static_cast<uint32_t>(fields.number("epsilon_ppm", 1'000'000));
    if (failure_.ok() && parameters.ranks == 0) fields.fail("ranks", "is missing or 0");
    refuse_many(parameters.ranks, std::max(1u, parameters.chunks), parameters.micro_batches);
    if (!failure_.ok()) return;
    if (question_.times) add_times(*question_.times, parameters);
    Result<NamedSchedule> named = make_schedule(fields.text("name"), parameters);
    if (!named.ok()) {
      failure_ = named.status().annotate("schedule");
      return;
    }
    question_.schedule = std::move(named->schedule);
    question_.exposed = std::move(named->exposed);
  }

  // Sets the times that the schedule may depend on, for one stage on each rank.
  void add_times(PipelineTimes times, ScheduleParameters& parameters) {
    spread_times(times, parameters.ranks);
    for (const StageTime& each : times.stages) {
      parameters.stage_ns.push_back(each.forward_ns + each.backward_ns);
    }
    // The slower direction of each boundary counts.
    parameters.boundaries.resize(std::max(times.forward.size(), times.backward.size()));
    for (const auto* boundaries : {&times.forward, &times.backward}) {
      for (size_t i = 0; i < boundaries->size(); ++i) {
        BoundaryTime& slower = parameters.boundaries[i];
        slower.busy_ns = std::max(slower.busy_ns, (*boundaries)[i].busy_ns);
        slower.latency_ns = std::max(slower.latency_ns, (*boundaries)[i].latency_ns);
      }
    }
    // If no boundaries are given, transfers take no time.
    if (parameters.boundaries.empty()) parameters.boundaries.resize(parameters.ranks - 1);
    if (!question_.routes.empty() && parameters.boundaries.size() + 1 == parameters.ranks) {
      parameters.boundaries =
          boundary_times(question_.routes, std::move(parameters.boundaries), parameters.ranks);
    }
  }

  void lower(Fields& fields) {
    static constexpr const char* kLevels[] = {"compute", "transfers", "waits"};
    static constexpr const char* kSendWaits[] = {"at_once", "before_reuse"};
    Schedule& schedule = question_.schedule;
    if (fields.flag("reductions")) schedule = add_reductions(std::move(schedule));
    enum class Wanted : uint8_t { kCompute, kTransfers, kWaits };
    const Wanted wanted = fields.word("level", kLevels, Wanted::kCompute);
    const auto ahead =
        fields.has("receives_ahead")
            ? static_cast<uint32_t>(fields.number("receives_ahead", kMaxMicroBatches))
            : 1;
    const SendWaits where = fields.word("send_waits", kSendWaits, SendWaits::kBeforeReuse);
    const auto buffers =
        fields.has("send_buffers")
            ? static_cast<uint32_t>(fields.number("send_buffers", kMaxMicroBatches))
            : 1;
    if (buffers == 0) fields.fail("send_buffers", "is 0");
    if (!failure_.ok() || wanted == Wanted::kCompute) return;
    if (level_of(schedule) != Level::kCompute) {
      return fields.fail("level", "can't be changed: the schedule has transfers of its own");
    }
    // Only sound schedules can be lowered.
    failure_ = check_unlimited(schedule).annotate("schedule");
    if (!failure_.ok()) return;
    schedule = add_transfers(schedule, ahead);
    if (wanted == Wanted::kWaits) schedule = add_waits(schedule, where, buffers);
  }

  void raw_times(const Json& json) {
    Fields fields(json, "times", failure_);
    fields.allow_only({"stages", "forward", "backward", "boundaries", "overlap_ppm"});
    PipelineTimes& times = question_.times.emplace();
    fields.each(
        "stages",
        [&](const Json& stage, const std::string& path) {
          times.stages.push_back(read_stage_time(Fields(stage, path, failure_)));
        },
        kMaxStages);
    if (failure_.ok() && times.stages.empty()) fields.fail("stages", "has no element");
    read_boundaries(fields, "forward", times.forward);
    read_boundaries(fields, "backward", times.backward);
    if (!fields.has("backward")) times.backward = times.forward;
    fields.each(
        "boundaries",
        [&](const Json& boundary, const std::string& path) {
          read_named_boundary(Fields(boundary, path, failure_));
        },
        kMaxStages);
    if (fields.has("boundaries") && (fields.has("forward") || fields.has("backward"))) {
      fields.fail("boundaries", "and forward or backward are both given");
    }
    times.overlap_ppm = static_cast<uint32_t>(fields.number("overlap_ppm", 1'000'000));
  }

  void read_boundaries(Fields& fields, const char* name, std::vector<BoundaryTime>& out) {
    fields.each(
        name,
        [&](const Json& json, const std::string& path) {
          Fields boundary(json, path, failure_);
          boundary.allow_only({"busy_ns", "latency_ns"});
          out.push_back({.busy_ns = boundary.number("busy_ns", kMaxNs),
                         .latency_ns = boundary.number("latency_ns", kMaxNs)});
        },
        kMaxStages);
  }

  void read_named_boundary(Fields fields) {
    fields.allow_only({"after", "busy_ns", "latency_ns"});
    if (!fields.has("after")) fields.fail("after", "is missing");
    const BoundaryTime time{.busy_ns = fields.number("busy_ns", kMaxNs),
                            .latency_ns = fields.number("latency_ns", kMaxNs)};
    const auto stage = static_cast<uint32_t>(fields.number("after", kMaxStages));
    if (!named_boundaries_.emplace(stage, time).second) fields.fail("after", "is there twice");
  }

  void read_routes(Fields& fields) {
    fields.each(
        "routes",
        [&](const Json& json, const std::string& path) {
          read_route(Fields(json, path, failure_));
        },
        kMaxStages);
    if (!question_.routes.empty() && !question_.times) fields.fail("routes", "need times");
  }

  void read_route(Fields fields) {
    using Use = QuestionRoute::Use;
    static constexpr const char* kDirections[] = {"forward", "backward", "both"};
    fields.allow_only({"after", "direction", "gather", "reduce", "hops", "slices"});
    QuestionRoute& route = question_.routes.emplace_back();
    const int uses = fields.has("after") + fields.has("gather") + fields.has("reduce");
    if (uses != 1) return fields.fail("", "needs one of after, gather and reduce");
    route.use = fields.word("direction", kDirections, Use::kBothWays);
    if (!fields.has("after") && fields.has("direction")) {
      return fields.fail("direction", "is for a boundary");
    }
    if (fields.has("reduce")) {
      route.use = Use::kReduce;
      route.stages = numbers(fields, "reduce", kMaxStages - 1);
      if (route.stages.empty()) return fields.fail("reduce", "has no stage");
    } else {
      const char* const name = fields.has("after") ? "after" : "gather";
      if (fields.has("gather")) route.use = Use::kGather;
      route.stages.push_back(static_cast<uint32_t>(fields.number(name, kMaxStages - 1)));
    }
    if (fields.has("slices")) {
      route.slices = static_cast<uint32_t>(fields.number("slices", kMaxMicroBatches));
    }
    if (route.slices == 0) return fields.fail("slices", "is 0");
    fields.each(
        "hops",
        [&](const Json& json, const std::string& path) {
          read_hop(Fields(json, path, failure_), route.hops.emplace_back());
        },
        kMaxHops);
    if (route.hops.empty()) fields.fail("hops", "is missing or empty");
  }

  void read_hop(Fields fields, QuestionRoute::Hop& hop) {
    fields.allow_only({"busy_ns", "latency_ns", "resources"});
    hop.busy_ns = fields.number("busy_ns", kMaxNs);
    hop.latency_ns = fields.number("latency_ns", kMaxNs);
    fields.each(
        "resources",
        [&](const Json& json, const std::string& path) {
          if (!json.is_string()) return fields.fail_at(path, "is no text");
          hop.resources.push_back(json.get<std::string>());
        },
        kMaxHops);
  }

  void read_memory(Fields& fields) {
    fields.each(
        "memory",
        [&](const Json& json, const std::string& path) {
          Fields stage(json, path, failure_);
          stage.allow_only(
              {"forward_adds", "recompute_adds", "input_grad_frees", "weight_grad_frees"});
          const auto number = [&](const char* name) {
            return static_cast<int64_t>(stage.number(name, uint64_t{kMaxStepMemory}));
          };
          question_.check.memory.push_back({.forward = number("forward_adds"),
                                            .recompute = number("recompute_adds"),
                                            .input_grad = -number("input_grad_frees"),
                                            .weight_grad = -number("weight_grad_frees")});
        },
        kMaxStages);
  }

  // If |list| has a single element, repeats it |count| times.
  template <class T>
  static void spread(std::vector<T>& list, size_t count) {
    if (list.size() == 1) list.resize(count, list.front());
  }
  // Extends |times| to |stages| stages and all their boundaries. Named boundaries after the last
  // stage are ignored.
  void spread_times(PipelineTimes& times, uint32_t stages) {
    if (stages == 0) return;
    spread(times.stages, stages);
    spread(times.forward, stages - 1);
    spread(times.backward, stages - 1);
    if (named_boundaries_.empty()) return;
    times.forward.assign(stages - 1, {});
    for (const auto& [stage, time] : named_boundaries_) {
      if (stage + 1 < stages) times.forward[stage] = time;
    }
    times.backward = times.forward;
  }

  ScheduleQuestion question_;
  std::map<uint32_t, BoundaryTime> named_boundaries_;  // keyed by the stage before the boundary
  Status failure_;
};

}  // namespace

Result<ScheduleQuestion> parse_question(std::string_view json) {
  Result<Json> document =
      present::parse_document(json, kQuestionFormat, kQuestionVersion, kNesting);
  if (!document.ok()) return document.status();
  return QuestionReader().read(document.value());
}

}  // namespace hetcomm::pipeline
