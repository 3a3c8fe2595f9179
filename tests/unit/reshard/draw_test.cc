// Human-readable descriptions of a plan:
//    - JSON contains every move, the bytes of each resource and why strategies were refused;
//    - tables and pictures show each message once, and report omissions.
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "reshard/mesh.h"
#include "reshard/move_plan_draw.h"
#include "reshard/move_plan_json.h"
#include "reshard/strategies.h"

namespace hetcomm::reshard {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::vector<int> ranks_from(int first, uint64_t count) {
  std::vector<int> ranks(count);
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

MovePlan two_to_three() {
  return plan_direct(layout_of({12}, {{2}, {0, 1}}, {shard(0)}).value(),
                     layout_of({12}, {{3}, {1, 2, 3}}, {shard(0)}).value())
      .value();
}

size_t count(const std::string& text, const std::string& what) {
  size_t found = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

TEST(PlanJson, ListsEveryMove) {
  const json plan = json::parse(to_json(two_to_three(), 4));
  EXPECT_EQ(plan["version"], 1);
  EXPECT_EQ(plan["strategy"], "direct");
  EXPECT_EQ(plan["shape"], json::parse("[12]"));
  ASSERT_EQ(plan["stages"].size(), 1u);
  const json& hop = plan["stages"][0];
  EXPECT_EQ(hop["messages"], 4);
  EXPECT_EQ(hop["bytes"], 48);
  EXPECT_EQ(hop["moves"], json::parse(R"([
    {"from": 0, "to": 1, "box": [[0, 4]], "adds": false},
    {"from": 0, "to": 2, "box": [[4, 6]], "adds": false},
    {"from": 1, "to": 2, "box": [[6, 8]], "adds": false},
    {"from": 1, "to": 3, "box": [[8, 12]], "adds": false}])"));
}

TEST(PlanJson, StatesTheCostOfEachResource) {
  topology::LinkModel model;
  model.clusters = {"one"};
  model.resources = {{"out", topology::ResourceKind::kNic, 1'000'000'000}};
  model.hosts.push_back({"h", 0, 100, {0}, {{"", {0}, {0}}}});
  model.paths = {{true, 1000, {}, 0}};
  const Links links = Links::create(model, std::vector<RankEnd>(4, {"h", ""})).value();
  const MovePlan plan = two_to_three();
  const Choice choice = plan_auto(plan.source, plan.destination(), 4, links).value();
  const json told = json::parse(to_json(choice, 4, links));
  EXPECT_EQ(told["forecast_ns"], choice.forecast.ns);
  EXPECT_EQ(told["strategy"], choice.plan.strategy);
  ASSERT_EQ(told["resources"].size(), 1u);
  EXPECT_EQ(told["resources"][0]["name"], "out");
  EXPECT_EQ(told["resources"][0]["bytes"], choice.forecast.resource_bytes[0]);
  EXPECT_EQ(told["stages"][0]["slowest"], "out");
  ASSERT_EQ(told["considered"].size(), 5u);
  EXPECT_EQ(told["considered"][2]["strategy"], "gather_p2p_scatter");
}

TEST(PlanText, ShowsEachMessageOnce) {
  EXPECT_EQ(to_text(two_to_three(), 4),
            "strategy direct, shape [12], 1 stage\n"
            "source to destination: 4 messages\n"
            "  from     to        bytes  boxes\n"
            "     0      1           16  [0:4]\n"
            "     0      2            8  [4:6]\n"
            "     1      2            8  [6:8]\n"
            "     1      3           16  [8:12]\n");
  EXPECT_THAT(to_text(two_to_three(), 4, 3), HasSubstr("and 1 more\n"));
}

TEST(PlanSvg, ShowsEachMessageOnce) {
  const std::string svg = to_svg(two_to_three(), 4);
  EXPECT_EQ(count(svg, "<line"), 4u);
  EXPECT_EQ(count(svg, " holds "), 5u);
  EXPECT_THAT(svg, HasSubstr("rank 0 to rank 2: 8 B"));
  EXPECT_THAT(svg, HasSubstr("rank 0 holds [0:6]"));
  const MovePlan large =
      plan_direct(layout_of({200}, {{200}, ranks_from(0, 200)}, {shard(0)}).value(),
                  layout_of({200}, {{1}, {0}}, {shard(0)}).value())
          .value();
  EXPECT_EQ(count(to_svg(large, 4), " holds "), 129u);
  EXPECT_THAT(to_svg(large, 4), HasSubstr("and 72 more"));
}

}  // namespace
}  // namespace hetcomm::reshard
