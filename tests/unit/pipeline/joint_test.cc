// Forecasts of whole plans over the links of a model:
//    - a transfer occupies each resource for as long as its bytes take there, and takes what the
//      forecast of its reshard plan says;
//    - pipelines share links, each with its own micro-batches; ranks use the NICs that are told;
//    - gradients are summed over all ranks that hold an item, weights are gathered where a schedule
//      says so, and both use the links;
//    - an outlook of several pipelines says what belongs to which;
//    - wrong questions are refused with the path of the entry.
#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "pipeline/joint/forecast_question.h"
#include "pipeline/joint/joint_outlook.h"
#include "pipeline/joint/link_ways.h"
#include "pipeline/joint/plan_routes.h"
#include "pipeline/plan/plan_json.h"
#include "pipeline/simulate/longest_path.h"
#include "reshard/forecast.h"
#include "reshard/plans.h"
#include "tests/support/pipeline_plans.h"
#include "topology/links/link_model_json.h"

namespace hetcomm::pipeline {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Hosts a and b are in cluster x, c and d in y. A NIC moves a byte each nanosecond, but for d's
// second one, which takes four. The trunk of both directions takes ten.
json model() {
  json resources = json::array();
  const auto add = [&](const std::string& name, const char* kind, uint64_t rate) {
    resources.push_back({{"name", name}, {"kind", kind}, {"bytes_per_s", rate}});
  };
  json hosts = json::array();
  for (const char* const label : {"a", "b", "c", "d"}) {
    const std::string name = label;
    add(name + " out", "nic", 1'000'000'000);
    add(name + " in", "nic", 1'000'000'000);
    hosts.push_back(
        {{"label", name},
         {"cluster", name < "c" ? "x" : "y"},
         {"latency_ns", 100},
         {"nics", {{{"name", "fast"}, {"out", {name + " out"}}, {"in", {name + " in"}}}}}});
  }
  add("d slow out", "nic", 250'000'000);
  add("d slow in", "nic", 250'000'000);
  hosts[3]["nics"].push_back({{"name", "slow"}, {"out", {"d slow out"}}, {"in", {"d slow in"}}});
  add("trunk x to y", "trunk", 100'000'000);
  add("trunk y to x", "trunk", 100'000'000);
  return {
      {"format", "hetcomm link model"},
      {"version", 1},
      {"source", "a test"},
      {"resources", resources},
      {"clusters", {{{"name", "x"}}, {{"name", "y"}}}},
      {"hosts", hosts},
      {"paths",
       {{{"from", "x"}, {"to", "x"}, {"latency_ns", 1000}},
        {{"from", "y"}, {"to", "y"}, {"latency_ns", 1000}},
        {{"from", "x"}, {"to", "y"}, {"latency_ns", 50'000}, {"resources", {"trunk x to y"}}},
        {{"from", "y"}, {"to", "x"}, {"latency_ns", 50'000}, {"resources", {"trunk y to x"}}}}}};
}

reshard::Links links_of(const std::vector<reshard::RankEnd>& ends) {
  return reshard::Links::create(topology::parse_link_model(model().dump()).value(), ends).value();
}

// A plan whose ranks are on |hosts|.
PipelinePlan on_hosts(PipelinePlan plan, const std::vector<std::string>& hosts) {
  for (size_t i = 0; i < hosts.size(); ++i) plan.ranks.at(i).host = hosts[i];
  return plan;
}

// Puts the pipelines of |more| behind those of |plan|, on ranks of their own.
PipelinePlan joined(PipelinePlan plan, PipelinePlan more) {
  const auto first = static_cast<uint32_t>(plan.ranks.size());
  for (PlanPipeline& each : more.pipelines) {
    for (PlanStage& stage : each.stages) {
      for (uint32_t& rank : stage.ranks) rank += first;
    }
    plan.pipelines.push_back(each);
  }
  plan.ranks.insert(plan.ranks.end(), more.ranks.begin(), more.ranks.end());
  plan.training.global_batch += more.training.global_batch;
  return plan;
}

// Gives the stages of pipeline |number| so many items each.
void set_items(PipelinePlan& plan, size_t number, const std::vector<uint32_t>& items) {
  uint32_t begin = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    plan.pipelines[number].stages[i].items_begin = begin;
    plan.pipelines[number].stages[i].items_end = begin += items[i];
  }
  plan.items = begin;
}

json question(const PipelinePlan& plan, uint64_t forward_ns = 1'000'000) {
  return {{"format", "hetcomm forecast question"},
          {"version", 1},
          {"plan", json::parse(to_json(plan))},
          {"links", {{"model", model()}}},
          {"times", {{"stages", {{{"forward_ns", forward_ns}, {"backward_ns", 2 * forward_ns}}}}}}};
}

Outlook look(const json& document) {
  Result<ForecastQuestion> read = parse_forecast_question(document.dump());
  EXPECT_TRUE(read.ok()) << read.status().text();
  if (!read.ok()) return {};
  Result<Outlook> outlook = look_at_plan(read.value());
  EXPECT_TRUE(outlook.ok()) << outlook.status().text();
  return outlook.ok() ? std::move(outlook).value() : Outlook{};
}

std::string refusal(const json& document) {
  Result<ForecastQuestion> read = parse_forecast_question(document.dump());
  if (!read.ok()) return std::string(read.status().text());
  const Result<Outlook> outlook = look_at_plan(read.value());
  return outlook.ok() ? "none" : std::string(outlook.status().text());
}

std::map<std::string, uint64_t> busy(const Outlook& outlook) {
  std::map<std::string, uint64_t> all;
  for (const Outlook::Resource& each : outlook.resources) all[each.name] = each.busy_ns;
  return all;
}

TEST(LinkWays, EachResourceHasItsOwnTimeAndTheSlowestIsFirst) {
  const reshard::Links links = links_of({{"a", ""}, {"c", ""}, {"d", "slow"}});
  LinkWays ways(links);
  const Route route = ways.way_of({{{{0, 1}, 1000}, {{0, 2}, 3000}}}, 4, "own");
  EXPECT_EQ(route.hops[0].slices, 4u);
  std::vector<std::pair<std::string, uint64_t>> hops;
  for (const RouteHop& each : route.hops) {
    ASSERT_EQ(each.resources.size(), 1u);
    hops.emplace_back(ways.resources()[each.resources[0]], each.busy_ns);
  }
  EXPECT_THAT(hops, ElementsAre(std::pair("trunk x to y", 40'000u), std::pair("d slow in", 12'000u),
                                std::pair("a out", 4000u), std::pair("c in", 1000u)));
  // The latency, and the processor time of the second message of rank 0.
  EXPECT_EQ(route.hops.back().latency_ns, 50'000 + reshard::kMessageNs);
  EXPECT_THAT(ways.way_of({{}}, 1, "own").hops, IsEmpty());
}

TEST(LinkWays, LimitedStreamLeavesTrunkCapacityToOthers) {
  json limited = model();
  limited["paths"][2]["single_bytes_per_s"] = 10'000'000;
  const reshard::Links links =
      reshard::Links::create(topology::parse_link_model(limited.dump()).value(),
                             {{"a", ""}, {"c", ""}, {"b", ""}, {"d", ""}})
          .value();
  LinkWays ways(links);
  const Route first = ways.way_of({{{{0, 1}, 1000}}}, 1, "first");
  const Route second = ways.way_of({{{{2, 3}, 1000}}}, 1, "second");
  ASSERT_EQ(ways.resources()[first.hops[0].resources[0]], "first");
  EXPECT_EQ(ways.resources()[second.hops[0].resources[0]], "second");
  EXPECT_EQ(first.hops[0].busy_ns, 100'000u);
  EXPECT_EQ(first.hops[1].busy_ns, 10'000u);
}

// Ranks whose host tells nothing of its inside have a latency only.
TEST(LinkWays, UnknownResourcesTakeNoTime) {
  const reshard::Links links = links_of({{"a", ""}, {"a", ""}});
  LinkWays ways(links);
  const Route route = ways.way_of({{{{0, 1}, 1000}}}, 8, "own");
  ASSERT_EQ(route.hops.size(), 1u);
  EXPECT_EQ(route.hops[0].busy_ns, 0u);
  EXPECT_EQ(route.hops[0].latency_ns, 100u);
}

// Whatever the degrees and strategies, a transfer alone takes what its reshard plan forecasts.
TEST(Joint, TransferTakesAsLongAsItsReshardPlanForecasts) {
  const StageDegrees one;
  const StageDegrees tensor{.tensor = 2};
  const StageDegrees data{.data = 2};
  for (const auto strategy : {reshard::Strategy::kDirect, reshard::Strategy::kBsr,
                              reshard::Strategy::kLeader, reshard::Strategy::kGatherP2pScatter}) {
    for (const auto& [from, to] : std::vector<std::pair<StageDegrees, StageDegrees>>{
             {tensor, data}, {data, tensor}, {tensor, tensor}}) {
      PipelinePlan plan =
          on_hosts(test::plan_of({{{0, 1}, from}, {{2, 3}, to}}, "1f1b", 1, 4, 4096, 2),
                   {"a", "b", "c", "d"});
      plan.pipelines[0].boundaries[0].strategy = static_cast<int32_t>(strategy);
      const Outlook outlook = look(question(plan, 1000));
      const PlanTensor& moved = plan.pipelines[0].boundaries[0].tensors[0];
      const auto layout = [&](const PlanStage& stage) {
        const TensorMesh held = mesh_of(moved, stage).value();
        return reshard::layout_of(moved.shape, held.mesh, held.placements).value();
      };
      const reshard::Layout source = layout(plan.pipelines[0].stages[0]);
      const reshard::Layout destination = layout(plan.pipelines[0].stages[1]);
      const reshard::Links links = links_of({{"a", ""}, {"b", ""}, {"c", ""}, {"d", ""}});
      const auto choice =
          reshard::make_plans({{&source, &destination, 8}}, {.strategy = strategy, .links = &links})
              .value();
      const reshard::Forecast& alone = choice[0].forecast;
      // F of stage 0 takes 1 us.
      const uint64_t there = outlook.forecast.actions[1][0].start_ns - 1000;
      // Every hop but the longest counts with one of eight slices. Here latencies count in full.
      const auto latencies = 50'000 * alone.hops.size();
      EXPECT_GE(there + there / 50, alone.ns) << choice[0].plan.strategy;
      EXPECT_LE(there, alone.ns + alone.ns / 8 * (alone.hops.size() - 1) + latencies + 100)
          << choice[0].plan.strategy;
    }
  }
}

TEST(Joint, PipelinesShareTheirTrunkCapacity) {
  const PipelinePlan pair = test::plan_of({{{0}}, {{1}}}, "forward-only", 8, 4, 1024, 2);
  const uint64_t item_ns = 4 * 1024 * 2 * 8 * 10;  // over the trunk
  const PipelinePlan near = on_hosts(joined(pair, pair), {"a", "b", "c", "d"});
  const PipelinePlan far = on_hosts(joined(pair, pair), {"a", "c", "b", "d"});
  const PipelinePlan single = on_hosts(pair, {"a", "c"});
  const uint64_t alone_ns = look(question(single, 1000)).forecast.total_ns;
  const Outlook both = look(question(far, 1000));
  EXPECT_EQ(busy(both)["trunk x to y"], 16 * item_ns);
  EXPECT_GE(both.forecast.total_ns, 16 * item_ns);
  EXPECT_LE(both.forecast.total_ns, 16 * item_ns + 2 * item_ns);
  EXPECT_LE(alone_ns, 8 * item_ns + 2 * item_ns);
  EXPECT_LT(look(question(near, 1000)).forecast.total_ns, alone_ns / 2);
}

// Both stages of the second pipeline are in cluster y. What the first one sends does not hold it
// up, although c receives both.
TEST(Joint, SlowSenderDoesNotOccupyTheNicOfItsReceiver) {
  const PipelinePlan pair = test::plan_of({{{0}}, {{1}}}, "forward-only", 8, 4, 1024, 2);
  const PipelinePlan local = on_hosts(pair, {"d", "c"});
  const uint64_t local_ns = look(question(local, 100'000)).forecast.total_ns;
  const Outlook both = look(question(on_hosts(joined(pair, pair), {"a", "c", "d", "c"}), 100'000));
  EXPECT_LE(both.forecast.actions[3].back().end_ns, local_ns + local_ns / 5);
}

TEST(Joint, RanksUseTheNicNamedInTheQuestion) {
  const PipelinePlan plan =
      on_hosts(test::plan_of({{{0}}, {{1}}}, "1f1b", 4, 4, 1024, 2), {"c", "d"});
  const uint64_t bytes = 4 * 1024 * 2 * 8;
  json document = question(plan);
  EXPECT_EQ(busy(look(document))["d in"], 4 * bytes);
  document["links"]["nics"] = {"fast", "slow"};
  const std::map<std::string, uint64_t> slow = busy(look(document));
  EXPECT_EQ(slow.at("d slow in"), 4 * 4 * bytes);
  EXPECT_EQ(slow.at("d slow out"), 4 * 4 * bytes);
  EXPECT_EQ(slow.count("d in"), 0u);
}

// Pipelines of 2 and 3 stages hold six items in different cuts: 0 to 3 and 4 to 5; 0 to 1, 2 to 4
// and 5.
TEST(Joint, EachItemIsSummedOverAllRanksThatHoldIt) {
  PipelinePlan plan = joined(test::plan_of({{{0}}, {{1}}}, "1f1b", 2),
                             test::plan_of({{{0}}, {{1}}, {{2}}}, "1f1b", 4));
  set_items(plan, 0, {4, 2});
  set_items(plan, 1, {2, 3, 1});
  plan = on_hosts(plan, {"a", "a", "b", "b", "b"});
  json document = question(plan);
  document["items"] = {{{"gradient_bytes", 1000}}};
  const Outlook outlook = look(document);
  std::vector<std::vector<uint32_t>> stages;
  for (const Outlook::Reduction& each : outlook.reductions) stages.push_back(each.stages);
  EXPECT_THAT(stages, ElementsAre(ElementsAre(0, 2), ElementsAre(0, 3), ElementsAre(1, 3),
                                  ElementsAre(1, 4)));
  // Each of two ranks passes as much as it holds to the other one: 2 * 1 / 2.
  const uint64_t items_ns = look(question(plan)).forecast.total_ns;
  EXPECT_GT(outlook.forecast.total_ns, items_ns);
  const uint64_t moved = busy(outlook)["a out"];
  EXPECT_GE(moved, 6000u);
  EXPECT_LE(moved, 6016u);
  // The sum of the items 2 and 3 begins when both holders have ended their last backward step.
  const Outlook::Reduction& second = outlook.reductions[1];
  const auto end_of = [&](uint32_t stage) {
    uint64_t end_ns = 0;
    const uint32_t rank = outlook.schedule.rank_of[stage];
    for (size_t i = 0; i < outlook.schedule.actions[rank].size(); ++i) {
      if (outlook.schedule.actions[rank][i].kind != ActionKind::kBackward) continue;
      end_ns = outlook.forecast.actions[rank][i].end_ns;
    }
    return end_ns;
  };
  EXPECT_EQ(second.span.start_ns, std::max(end_of(0), end_of(3)));
  // The first one to begin has its link to itself; others wait for it.
  const auto first = std::min_element(
      outlook.reductions.begin(), outlook.reductions.end(),
      [](const auto& a, const auto& b) { return a.span.start_ns < b.span.start_ns; });
  EXPECT_EQ(first->span.end_ns - first->span.start_ns, first->alone_ns);
}

// A stage with two ranks of tensor parallelism beside one without: each of the two holds half.
TEST(Joint, GradientsAreSummedInShardsOfTheHighestTensorDegree) {
  PipelinePlan plan = joined(test::plan_of({{{0, 1}, {.tensor = 2}}}, "1f1b", 2),
                             test::plan_of({{{0}}}, "1f1b", 2));
  plan = on_hosts(plan, {"a", "b", "c"});
  json document = question(plan);
  document["items"] = {{{"gradient_bytes", 1'000'000}}};
  const std::map<std::string, uint64_t> used = busy(look(document));
  // 2 * 1 / 2 of half of the bytes from a and b each, and all of them back.
  EXPECT_NEAR(static_cast<double>(used.at("a out")), 500'000, 10);
  EXPECT_NEAR(static_cast<double>(used.at("b out")), 500'000, 10);
  EXPECT_NEAR(static_cast<double>(used.at("c out")), 1'000'000, 10);
  EXPECT_NEAR(static_cast<double>(used.at("trunk x to y")), 10'000'000, 100);
}

// Four ranks hold copies: the ring crosses the trunk once in each direction, however the ranks are
// numbered.
TEST(Joint, RingOfASumCrossesATrunkOnceInEachDirection) {
  const PipelinePlan plan = test::plan_of({{{0, 1, 2, 3}, {.data = 4}}}, "1f1b", 2);
  for (const std::vector<std::string>& hosts :
       {std::vector<std::string>{"a", "b", "c", "d"}, {"a", "c", "b", "d"}, {"d", "a", "c", "b"}}) {
    json document = question(on_hosts(plan, hosts));
    document["items"] = {{{"gradient_bytes", 1'000'000}}};
    const std::map<std::string, uint64_t> used = busy(look(document));
    EXPECT_NEAR(static_cast<double>(used.at("trunk x to y")), 15'000'000, 100);
    EXPECT_NEAR(static_cast<double>(used.at("trunk y to x")), 15'000'000, 100);
    EXPECT_NEAR(static_cast<double>(used.at("a out")), 1'500'000, 10);
  }
}

// Sixty-four NICs work at the same time, however many there are.
TEST(Joint, SumOverManyHostsTakesTheTimeOfTheSlowestNic) {
  constexpr uint32_t kRanks = 64;
  json many = model();
  many["clusters"] = {{{"name", "x"}}};
  many["paths"] = {{{"from", "x"}, {"to", "x"}, {"latency_ns", 1000}}};
  many["resources"] = json::array();
  many["hosts"] = json::array();
  std::vector<uint32_t> ranks;
  std::vector<std::string> hosts;
  for (uint32_t i = 0; i < kRanks; ++i) {
    hosts.push_back("h" + std::to_string(i));
    ranks.push_back(i);
    for (const char* const way : {" out", " in"}) {
      many["resources"].push_back(
          {{"name", hosts[i] + way}, {"kind", "nic"}, {"bytes_per_s", 1'000'000'000}});
    }
    many["hosts"].push_back(
        {{"label", hosts[i]},
         {"cluster", "x"},
         {"nics", {{{"out", {hosts[i] + " out"}}, {"in", {hosts[i] + " in"}}}}}});
  }
  json document =
      question(on_hosts(test::plan_of({{ranks, {.data = kRanks}}}, "1f1b", 1, kRanks), hosts));
  document["links"]["model"] = many;
  document["items"] = {{{"gradient_bytes", 1'000'000'000}}};
  const Outlook outlook = look(document);
  ASSERT_EQ(outlook.reductions.size(), 1u);
  EXPECT_NEAR(static_cast<double>(outlook.reductions[0].alone_ns), 2e9 * 63 / 64, 1e6);
  EXPECT_EQ(outlook.reductions[0].span.end_ns - outlook.reductions[0].span.start_ns,
            outlook.reductions[0].alone_ns);
}

// The ranks of a host are not in turn. Some name their NIC, others use the first of their host.
TEST(Joint, RingKeepsTheRanksOfAHostTogether) {
  const PipelinePlan plan =
      on_hosts(test::plan_of({{{0, 1, 2, 3}, {.data = 4}}}, "1f1b", 2), {"a", "b", "a", "b"});
  json document = question(plan);
  document["items"] = {{{"gradient_bytes", 1'000'000}}};
  const std::map<std::string, uint64_t> used = busy(look(document));
  EXPECT_NEAR(static_cast<double>(used.at("a out")), 1'500'000, 10);
  document["links"]["nics"] = {"fast", "fast", "", ""};
  EXPECT_EQ(busy(look(document)), used);
}

TEST(Joint, EachHopOfAPlanHasItsOwnStreamLimit) {
  json limited = model();
  for (json& path : limited["paths"]) path["single_bytes_per_s"] = 10'000'000;
  const PipelinePlan plan = [&] {
    PipelinePlan made = on_hosts(test::plan_of({{{0, 1}, {.tensor = 2}}, {{2, 3}, {.tensor = 2}}},
                                               "forward-only", 8, 4, 4096, 2),
                                 {"a", "b", "c", "d"});
    made.pipelines[0].boundaries[0].strategy = static_cast<int32_t>(reshard::Strategy::kLeader);
    return made;
  }();
  json document = question(plan, 1000);
  document["links"]["model"] = limited;
  const Outlook outlook = look(document);
  // The whole tensor goes from leader to leader, half of it from and to the others meanwhile.
  const uint64_t item_ns = 4 * 4096 * 2 * 8 * 100;
  EXPECT_GE(outlook.forecast.total_ns, 8 * item_ns);
  EXPECT_LE(outlook.forecast.total_ns, 8 * item_ns + item_ns);
}

// Nothing comes back: backward steps wait for none of the next stage, and a credit takes as long as
// the data did.
TEST(Joint, BoundaryWithoutGradientsSendsNothingBack) {
  PipelinePlan plan = on_hosts(test::plan_of({{{0}}, {{1}}}, "gpipe", 4), {"a", "c"});
  plan.pipelines[0].boundaries[0].in_flight = 1;
  const Outlook both = look(question(plan, 100));
  for (PlanTensor& each : plan.pipelines[0].boundaries[0].tensors) each.has_gradient = false;
  const Outlook one = look(question(plan, 100));
  EXPECT_EQ(one.forecast.actions[1][3], both.forecast.actions[1][3]);
  for (size_t i = 5; i < 8; ++i) {
    EXPECT_EQ(one.forecast.actions[1][i].start_ns, one.forecast.actions[1][i - 1].end_ns);
  }
  EXPECT_EQ(one.forecast.actions[0][4].start_ns, one.forecast.actions[0][3].end_ns);
  EXPECT_EQ(busy(one).count("trunk y to x"), 0u);
}

TEST(Joint, ReductionsGivenInAScheduleAreNotAddedAgain) {
  PipelinePlan plan = on_hosts(test::plan_of({{{0}}, {{1}}}, "", 1), {"a", "b"});
  const auto actions = [](uint16_t stage) {
    return std::vector<Action>{{.stage = stage, .kind = ActionKind::kForward},
                               {.stage = stage, .kind = ActionKind::kBackward},
                               {.stage = stage, .kind = ActionKind::kReduceGradient}};
  };
  plan.pipelines[0].schedule.actions = {actions(0), actions(1)};
  plan.shared = {{.item = 0, .holders = {{0, 0}, {0, 1}}}};
  json document = question(plan);
  document["items"] = {{{"gradient_bytes", 1000}}};
  const Outlook outlook = look(document);
  EXPECT_EQ(outlook.schedule.actions[0].size(), 3u);
  EXPECT_EQ(outlook.reductions.size(), 1u);
}

TEST(Joint, SharedItemsAreSummedBetweenTheirStages) {
  PipelinePlan plan = on_hosts(test::plan_of({{{0}}, {{1}}}, "1f1b", 2), {"a", "b"});
  plan.shared = {{.item = 0, .holders = {{0, 0}, {0, 1}}}};
  json document = question(plan);
  document["items"] = {{{"gradient_bytes", 1000}}, {{"gradient_bytes", 500}}};
  const Outlook outlook = look(document);
  ASSERT_EQ(outlook.reductions.size(), 1u);
  EXPECT_THAT(outlook.reductions[0].stages, ElementsAre(0, 1));
}

// The two ranks of a stage hold half of its weights each.
TEST(Joint, WeightsAreGatheredWhereTheScheduleSaysSo) {
  PipelinePlan plan = on_hosts(test::plan_of({{{0, 1}, {.data = 2}}}, "", 1), {"a", "b"});
  plan.pipelines[0].schedule.actions = {
      {{.micro_batch = 0, .stage = 0, .kind = ActionKind::kUnshard},
       {.micro_batch = 0, .stage = 0, .kind = ActionKind::kForward},
       {.micro_batch = 0, .stage = 0, .kind = ActionKind::kBackward},
       {.micro_batch = 0, .stage = 0, .kind = ActionKind::kReshard}}};
  json document = question(plan, 1000);
  document["items"] = {{{"weight_bytes", 1'000'000}}};
  EXPECT_EQ(look(question(plan, 1000)).forecast.total_ns, 3000u) << "no sizes are known";
  const Outlook outlook = look(document);
  EXPECT_NEAR(static_cast<double>(busy(outlook)["a out"]), 500'000, 10);
  EXPECT_GT(outlook.forecast.total_ns, 500'000u);
  const std::vector<CriticalStep> path = critical_path(outlook);
  EXPECT_TRUE(
      std::any_of(path.begin(), path.end(), [](const auto& each) { return each.is_gather; }));
}

TEST(Joint, ForecastWithoutLinksEqualsThatOfEachPipelineAlone) {
  const PipelinePlan plan = joined(test::plan_of({{{0}}, {{1}}}, "1f1b", 4),
                                   test::plan_of({{{0}}, {{1}}, {{2}}}, "zb-h1", 6));
  PipelinePlan fitting = plan;
  set_items(fitting, 0, {2, 1});
  set_items(fitting, 1, {1, 1, 1});
  json document = question(fitting, 1000);
  document.erase("links");
  const Outlook outlook = look(document);
  for (const bool is_second : {false, true}) {
    const PipelineView view = check_plan(fitting).value()[is_second ? 1 : 0];
    PipelineTimes times;
    times.stages.assign(is_second ? 3 : 2, {1000, 2000, 1000, 1000, 1000});
    const Forecast own =
        simulate(view.schedule, times, {.in_flight = view.stage_in_flight, .keeps_spans = true})
            .value();
    for (size_t rank = 0; rank < own.actions.size(); ++rank) {
      EXPECT_EQ(outlook.forecast.actions[rank + (is_second ? 2 : 0)], own.actions[rank]);
    }
  }
}

TEST(Joint, OutlookNamesThePipelineOfEachStageAndRank) {
  PipelinePlan plan = joined(test::plan_of({{{0, 1}, {.data = 2}}, {{2}}}, "1f1b", 4),
                             test::plan_of({{{0}}, {{1}}, {{2}}}, "1f1b", 6));
  set_items(plan, 0, {2, 1});
  set_items(plan, 1, {1, 1, 1});
  plan = on_hosts(plan, {"a", "b", "c", "b", "c", "d"});
  json document = question(plan, 1000);
  document["items"] = {{{"gradient_bytes", 1000}}};
  const Outlook outlook = look(document);
  const std::string text = to_text(outlook);
  EXPECT_THAT(text, HasSubstr("2 pipelines, 5 ranks, 5 stages\n"
                              "pipeline 0: stages 0 to 1, 4 micro-batches\n"
                              "pipeline 1: stages 2 to 4, 6 micro-batches\n"));
  EXPECT_THAT(text, HasSubstr("\n   0-1 "));
  EXPECT_THAT(text, HasSubstr("items in flight, by boundary: 2 | 2 2\n"));
  const json told = json::parse(to_json(outlook));
  EXPECT_EQ(told["pipelines"],
            json::parse(R"([{"first_rank": 0, "first_stage": 0, "micro_batches": 4},
                            {"first_rank": 2, "first_stage": 2, "micro_batches": 6}])"));
  EXPECT_EQ(told["ranks"], json::parse(R"(["0-1", "2", "3", "4", "5"])"));
  EXPECT_EQ(told["schedule"]["rank_of"], json::parse("[0, 1, 2, 3, 4]"));
  EXPECT_EQ(told["schedule"]["actions"][3][0], "3F0");
  const Result<std::string> picture = to_svg(outlook);
  ASSERT_TRUE(picture.ok());
  EXPECT_THAT(picture.value(), HasSubstr("rank 0-1<"));
  const std::string trace = to_chrome_trace(outlook);
  EXPECT_THAT(trace, HasSubstr(R"("args":{"name":"rank 0-1"})"));
  EXPECT_THAT(trace,
              HasSubstr(R"("pid":1,"tid":0,"name":"process_name","args":{"name":"pipeline 1"})"));
  EXPECT_THAT(trace, HasSubstr(R"("pid":1,"tid":3,"name":"3F0")"));
  EXPECT_THAT(text, HasSubstr("after the last step"));
  // A step waits for steps of its own pipeline only.
  const std::vector<CriticalStep> path = critical_path(outlook);
  for (size_t i = 1; i < path.size(); ++i) EXPECT_EQ(path[i].rank < 2, path[i - 1].rank < 2);
  EXPECT_EQ(to_json(look(document)), to_json(outlook));
}

// On random plans and models no step is earlier than without links, no resource is busy for longer
// than the step, and the same question has the same answer.
TEST(Joint, RandomPlansRespectTheirLinks) {
  std::mt19937 random(7);
  const auto below = [&](uint32_t end) { return static_cast<uint32_t>(random() % end); };
  for (int round = 0; round < 60; ++round) {
    PipelinePlan plan;
    std::vector<std::string> hosts;
    for (uint32_t number = 0; number <= below(3); ++number) {
      std::vector<test::StageWish> stages;
      uint32_t rank = 0;
      for (uint32_t i = 0; i <= 1 + below(3); ++i) {
        StageDegrees degrees{.data = 1 + below(2), .tensor = 1 + below(2)};
        std::vector<uint32_t> ranks;
        for (uint32_t k = 0; k < degrees.data * degrees.tensor; ++k) ranks.push_back(rank++);
        stages.push_back({ranks, degrees});
      }
      PipelinePlan more = test::plan_of(stages, below(2) == 0 ? "1f1b" : "zb-h1", 1 + below(6), 4,
                                        8u << below(8), 2);
      std::vector<uint32_t> items(stages.size(), 1);
      items[below(static_cast<uint32_t>(items.size()))] += 8 - static_cast<uint32_t>(items.size());
      set_items(more, 0, items);
      plan = number == 0 ? more : joined(plan, more);
    }
    for (size_t i = 0; i < plan.ranks.size(); ++i) hosts.emplace_back(1, "abcd"[below(4)]);
    json document = question(on_hosts(plan, hosts), 10'000);
    document["items"] = {{{"gradient_bytes", 1u << below(20)}}};
    const Outlook outlook = look(document);
    document.erase("links");
    document.erase("items");
    const Outlook free = look(document);
    EXPECT_GE(outlook.forecast.total_ns, free.forecast.total_ns);
    for (const Outlook::Resource& each : outlook.resources) {
      EXPECT_LE(each.busy_ns, outlook.forecast.total_ns) << each.name;
    }
  }
}

TEST(Joint, InvalidQuestionIsRefusedNamingTheEntry) {
  const PipelinePlan plan = on_hosts(test::plan_of({{{0}}, {{1}}}, "1f1b", 2), {"a", "c"});
  const json good = question(plan);
  EXPECT_EQ(refusal(good), "none");
  const auto told = [&](const char* pointer, const json& value) {
    json changed = good;
    changed[json::json_pointer(pointer)] = value;
    return refusal(changed);
  };
  json without = good;
  without.erase("plan");
  EXPECT_THAT(refusal(without), HasSubstr("plan is missing"));
  without = good;
  without.erase("times");
  EXPECT_THAT(refusal(without), HasSubstr("times is missing"));
  EXPECT_THAT(told("/version", 2), HasSubstr("version"));
  EXPECT_THAT(told("/more", 1), HasSubstr("more is no field"));
  EXPECT_THAT(told("/plan/pipelines/0/micro_batches", 0), HasSubstr("plan: pipelines[0]"));
  EXPECT_THAT(told("/plan/ranks/1/host", "nowhere"), HasSubstr("no host 'nowhere'"));
  EXPECT_THAT(told("/links/nics", {"fast"}),
              HasSubstr("links.nics has 1 elements, and the number of ranks is 2"));
  EXPECT_THAT(told("/links/nics", {"fast", "none"}), HasSubstr("none"));
  EXPECT_THAT(told("/links/hosts", {"a"}), HasSubstr("links.hosts has 1 elements for 2 ranks"));
  EXPECT_THAT(told("/plan/ranks/1/host", ""), HasSubstr("plan.ranks[1] has no host"));
  json local = good;
  local["items"] = {{{"gradient_bytes", 8}}};
  local.erase("links");
  EXPECT_THAT(refusal(local), HasSubstr("items need links"));
  EXPECT_THAT(told("/links/model/version", 9), HasSubstr("links.model"));
  EXPECT_THAT(told("/times/stages", json::array({json::object(), json::object(), json::object()})),
              HasSubstr("times.stages"));
  EXPECT_THAT(told("/times/stages", json::array()), HasSubstr("stages has 0 elements"));
  EXPECT_THAT(told("/items", json::array({json::object(), json::object(), json::object()})),
              HasSubstr("items"));
  json slow = good;
  for (json& each : slow["links"]["model"]["resources"]) each["bytes_per_s"] = 1;
  EXPECT_EQ(refusal(slow), "none");
  for (const int bits : {40, 55}) {
    slow["plan"]["shared"] = {{{"item", 0}, {"holders", {{{"stage", 0}}, {{"stage", 1}}}}}};
    slow["items"] = {{{"gradient_bytes", uint64_t{1} << bits}}};
    EXPECT_THAT(refusal(slow), HasSubstr("take longer than 2^61 ns")) << bits;
  }
  slow["plan"]["pipelines"][0]["boundaries"][0]["tensors"][0]["shape"] = {4, 1u << 30, 2};
  EXPECT_THAT(refusal(slow), HasSubstr("plan.pipelines[0]: its transfers take longer"));
  json deep = 1;
  for (int i = 0; i < 14; ++i) deep = json::array({deep});
  EXPECT_EQ(told("/plan/provenance", {{"deep", deep}}), "none");
  const json huge = {{"gradient_bytes", uint64_t{1} << 56}};
  EXPECT_THAT(told("/items", json::array({huge, huge})), HasSubstr("items have more than"));
  EXPECT_THAT(told("/items", json::array({{{"gradient_bytes", -1}}})),
              HasSubstr("items[0].gradient_bytes"));
}

}  // namespace
}  // namespace hetcomm::pipeline
