#include "bench/pipeline_draft.h"

#include <algorithm>
#include <hetcomm_plan/schedule.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tools/common/plan_answer.h"
#include "tools/common/session.h"

namespace bench {
namespace {

using Json = nlohmann::ordered_json;

uint64_t ns_of(double us) { return static_cast<uint64_t>(us * 1e3); }

Json steps_of(double stage_us) {
  Json stage;
  stage["forward_ns"] = ns_of(stage_us * kThird);
  stage["backward_ns"] = ns_of(stage_us * 2 * kThird);
  return Json::array({stage});
}

Json boundaries_of(const std::vector<LinkTime>& links) {
  Json list = Json::array();
  for (const LinkTime& each : links) {
    list.push_back({{"busy_ns", ns_of(each.busy_us)}, {"latency_ns", ns_of(each.latency_us)}});
  }
  return list;
}

// Returns the parameter of Virtual-1F1B that declares every boundary slow.
Json slow_boundaries(int ranks) {
  Json slow = Json::array();
  for (int i = 0; i + 1 < ranks; ++i) slow.push_back(i);
  return slow;
}

Json question_of(const Case& of) {
  Json question;
  question["format"] = "hetcomm schedule question";
  question["version"] = 1;
  question["times"] = {{"stages", steps_of(of.stage_us)}};
  if (!of.links.empty()) question["times"]["forward"] = boundaries_of(of.links);
  return question;
}

Json ask(const Json& question, const std::string& schedule) {
  try {
    return Json::parse(
        tools::plan_answer(hetcomm_draft_schedule, question.dump(), HETCOMM_PLAN_JSON));
  } catch (const tools::PlanError& error) {
    tools::fail(fmt::format("{}: {}", schedule, error.what()));
  }
}

double us_of(const Json& ns) { return static_cast<double>(ns.get<uint64_t>()) / 1e3; }

}  // namespace

std::vector<LinkTime> by_stage(const std::vector<uint32_t>& rank_of,
                               const std::vector<LinkTime>& links) {
  std::vector<LinkTime> all;
  for (size_t stage = 0; stage + 1 < rank_of.size(); ++stage) {
    const uint32_t one = std::min(rank_of[stage], rank_of[stage + 1]);
    const uint32_t other = std::max(rank_of[stage], rank_of[stage + 1]);
    LinkTime slowest;
    for (uint32_t at = one; at < other; ++at) {
      if (links[at].busy_us + links[at].latency_us > slowest.busy_us + slowest.latency_us) {
        slowest = links[at];
      }
    }
    all.push_back(slowest);
  }
  return all;
}

Draft draft(const Case& of, const std::vector<uint32_t>& in_flight) {
  Json question = question_of(of);
  question["schedule"] = {
      {"name", of.schedule}, {"ranks", of.ranks}, {"micro_batches", of.micro_batches}};
  if (of.schedule == "virtual-1f1b") {
    question["schedule"]["slow_boundaries"] = slow_boundaries(of.ranks);
  }
  if (!in_flight.empty()) question["in_flight"] = in_flight;
  const Json answer = ask(question, of.schedule);
  Draft draft{.rank_of = answer["schedule"]["rank_of"].get<std::vector<uint32_t>>(),
              .in_flight = answer["in_flight"].get<std::vector<uint32_t>>(),
              .total_us = us_of(answer["forecast"]["total_ns"])};
  for (const Json& actions : answer["schedule"]["actions"]) {
    draft.actions = std::max(draft.actions, actions.size());
  }
  return draft;
}

double replayed_us(const Case& of, const std::vector<uint32_t>& in_flight,
                   const std::vector<std::string>& traces) {
  Json question = question_of(of);
  if (!in_flight.empty()) question["in_flight"] = in_flight;
  for (const std::string& each : traces) question["traces"].push_back(Json::parse(each));
  // Nearly all other schedules keep more micro-batches than this limit, so the simulator considers
  // only a few schedules.
  question["stage_limits"] = std::vector<int>(in_flight.size() + 1, 1);
  return us_of(ask(question, of.schedule)["run"]["replayed_ns"]);
}

std::string plan_of(const Case& of, const Draft& draft, const std::vector<uint32_t>& in_flight,
                    uint64_t bytes) {
  const auto stages = static_cast<uint32_t>(draft.rank_of.size());
  Json plan;
  plan["format"] = "hetcomm pipeline plan";
  plan["version"] = 1;
  plan["cluster"] = {{"hash", "bench"}};
  plan["model"] = {{"hash", "bench"}, {"items", stages}};
  plan["training"] = {{"global_batch", of.micro_batches},
                      {"sequence", 1},
                      {"precision", "float32"},
                      {"optimizer", "none"}};
  plan["ranks"] = Json::array();
  for (int i = 0; i < of.ranks; ++i) plan["ranks"].push_back({{"host", "any"}, {"device", 0}});
  Json pipeline = {{"micro_batches", of.micro_batches}, {"micro_batch_size", 1}};
  std::vector<uint32_t> chunks(static_cast<size_t>(of.ranks));
  for (uint32_t stage = 0; stage < stages; ++stage) {
    pipeline["stages"].push_back({{"items", {stage, stage + 1}},
                                  {"chunk", chunks[draft.rank_of[stage]]++},
                                  {"ranks", {draft.rank_of[stage]}}});
    if (stage == 0) continue;
    const Json tensor = {
        {"name", "activations"}, {"type", "uint8"}, {"shape", {bytes}}, {"cut", Json::object()}};
    pipeline["boundaries"].push_back({{"from", stage - 1},
                                      {"to", stage},
                                      {"tensors", {tensor}},
                                      {"in_flight", in_flight[stage - 1]}});
  }
  if (stages == 1) pipeline["boundaries"] = Json::array();
  pipeline["schedule"]["name"] = of.schedule;
  Json& parameters = pipeline["schedule"]["parameters"] = Json::object();
  if (of.schedule == "virtual-1f1b") parameters["slow_boundaries"] = slow_boundaries(of.ranks);
  if (of.schedule == "h-1f1b") {
    parameters["stage_ns"] = std::vector<uint64_t>(stages, ns_of(of.stage_us));
    parameters["boundaries"] = boundaries_of(of.links);
  }
  plan["pipelines"] = Json::array({pipeline});
  plan["gradients"] = {{"weight", "samples"}};
  return plan.dump();
}

}  // namespace bench
