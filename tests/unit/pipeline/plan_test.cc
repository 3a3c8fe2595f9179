// Pipeline plans as documents:
//    - good documents are read, are sound, and come back byte for byte;
//    - a document with one fault is refused with the status and the text that its entry tells;
//    - the hash covers every field but the provenance;
//    - groups, schedules, items in flight, peaks and layouts follow from a plan;
//    - a damaged document is refused, or read as what it says.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "pipeline/plan/check_plan.h"
#include "pipeline/plan/plan_json.h"
#include "pipeline/schedule/text.h"
#include "tests/support/pipeline_plans.h"

namespace hetcomm::pipeline {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = reshard::Placement::Kind;

std::string file(const std::string& name) {
  std::ifstream in(HETCOMM_TEST_DATA "/" + name, std::ios::binary);
  EXPECT_TRUE(in.good()) << name;
  return {std::istreambuf_iterator<char>(in), {}};
}

// Returns the names of the documents in |folder|, sorted.
std::vector<std::string> documents(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(HETCOMM_TEST_DATA "/" + folder)) {
    if (entry.path().filename() != "expected.json") names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> good_documents() {
  std::vector<std::string> texts;
  for (const std::string& name : documents("good")) texts.push_back(file("good/" + name));
  return texts;
}

PipelinePlan read(const std::string& text) {
  Result<PipelinePlan> plan = parse_plan(text);
  EXPECT_TRUE(plan.ok()) << plan.status().text();
  return plan.ok() ? std::move(plan).value() : PipelinePlan();
}

PipelineView view_of(const PipelinePlan& plan) {
  Result<std::vector<PipelineView>> views = check_plan(plan);
  EXPECT_TRUE(views.ok()) << views.status().text();
  return views.ok() ? std::move(views->front()) : PipelineView();
}

// A document without the fields that have defaults.
constexpr const char* kShort = R"({"version": 1, "format": "hetcomm pipeline plan",
  "model": {"items": 2, "hash": "0"}, "cluster": {"hash": "0"}, "gradients": {},
  "ranks": [{"host": "host", "device": 0}, {"host": "host", "device": 0}],
  "training": {"optimizer": "sgd", "precision": "float32", "sequence": 8, "global_batch": 8},
  "pipelines": [{"micro_batches": 2, "micro_batch_size": 4, "schedule": {"name": "1f1b"},
    "stages": [{"items": [0, 1], "ranks": [0]}, {"items": [1, 2], "ranks": [1]}],
    "boundaries": [{"from": 0, "to": 1, "tensors": [{"name": "x", "type": "uint64",
      "shape": [4, 8, 2], "cut": {"tensor": 1, "context": 1, "data": 0}}]}]}]})";

TEST(Plan, ValidDocumentsPassAndRoundTripByteForByte) {
  const std::vector<std::string> names = documents("good");
  EXPECT_GE(names.size(), 10u);
  for (const std::string& name : names) {
    const std::string text = file("good/" + name);
    const Result<PipelinePlan> plan = parse_plan(text);
    ASSERT_TRUE(plan.ok()) << name << ": " << plan.status().text();
    const Result<std::vector<PipelineView>> views = check_plan(plan.value());
    ASSERT_TRUE(views.ok()) << name << ": " << views.status().text();
    EXPECT_EQ(views.value().size(), plan.value().pipelines.size()) << name;
    EXPECT_EQ(to_json(plan.value()), text) << name;
  }
}

TEST(Plan, FieldsWithDefaultsMayBeLeftOut) {
  const PipelinePlan plan = read(kShort);
  EXPECT_EQ(plan, test::plan_of(test::on_ranks({0, 1}), "1f1b", 2));
  view_of(plan);
  const std::string whole = to_json(plan);
  EXPECT_THAT(whole, HasSubstr("\"live_limit\": 0"));
  EXPECT_EQ(read(whole), plan);
}

TEST(Plan, InvalidDocumentsGiveTheExpectedStatusAndText) {
  const json expected = json::parse(file("bad/expected.json"));
  const std::vector<std::string> names = documents("bad");
  EXPECT_GE(names.size(), 30u);
  EXPECT_EQ(names.size(), expected.size());
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(expected.contains(name));
    const json& entry = expected[name];
    const Result<PipelinePlan> plan = parse_plan(file("bad/" + name));
    Status status = plan.status();
    if (entry["refused_by"] == "check") {
      ASSERT_TRUE(plan.ok()) << status.text();
      status = check_plan(plan.value()).status();
    }
    EXPECT_EQ(code_name(status.code()), entry["status"].get<std::string>());
    EXPECT_THAT(std::string(status.text()), HasSubstr(entry["text"].get<std::string>()));
  }
}

TEST(Plan, OversizedDocumentIsRefused) {
  const std::string text(kMaxPlanBytes + 1, ' ');
  EXPECT_EQ(parse_plan(text).status().text(), "the plan is longer than 256 MiB");
}

TEST(Plan, HashIgnoresTheProvenance) {
  PipelinePlan plan = read(kShort);
  const PlanHash hash = hash_of(plan);
  EXPECT_EQ(hash_of(test::plan_of(test::on_ranks({0, 1}), "1f1b", 2)), hash);
  EXPECT_EQ(to_text(hash).size(), 32u);
  const std::string without = to_json(plan);
  plan.provenance = R"({"made_by":"hand"})";
  EXPECT_EQ(hash_of(plan), hash);
  EXPECT_NE(to_json(plan), without);
  EXPECT_EQ(read(to_json(plan)), plan);
}

struct Change {
  const char* field;
  std::function<void(PipelinePlan& plan)> make;
};

PlanStage& stage(PipelinePlan& plan) { return plan.pipelines[0].stages[0]; }
PlanSchedule& schedule(PipelinePlan& plan) { return plan.pipelines[0].schedule; }
PlanBoundary& boundary(PipelinePlan& plan) { return plan.pipelines[0].boundaries[0]; }
PlanTensor& tensor(PipelinePlan& plan) { return boundary(plan).tensors[0]; }

std::vector<Change> changes_of_the_plan() {
  return {
      {"cluster.hash", [](PipelinePlan& p) { p.cluster_hash = "1"; }},
      {"model.hash", [](PipelinePlan& p) { p.model_hash = "1"; }},
      {"model.items", [](PipelinePlan& p) { ++p.items; }},
      {"training.global_batch", [](PipelinePlan& p) { ++p.training.global_batch; }},
      {"training.sequence", [](PipelinePlan& p) { ++p.training.sequence; }},
      {"training.precision", [](PipelinePlan& p) { p.training.precision = "float16"; }},
      {"training.optimizer", [](PipelinePlan& p) { p.training.optimizer = "adam"; }},
      {"ranks", [](PipelinePlan& p) { p.ranks.push_back(p.ranks[0]); }},
      {"host of rank 0", [](PipelinePlan& p) { p.ranks[0].host = "other"; }},
      {"host of rank 1", [](PipelinePlan& p) { p.ranks[1].host = "other"; }},
      {"device", [](PipelinePlan& p) { ++p.ranks[0].device; }},
      {"pipelines", [](PipelinePlan& p) { p.pipelines.push_back(p.pipelines[0]); }},
      {"shared",
       [](PipelinePlan& p) {
         p.shared.push_back({0, {{0, 0}, {0, 1}}});
       }},
      {"item of shared",
       [](PipelinePlan& p) {
         p.shared.push_back({1, {{0, 0}, {0, 1}}});
       }},
      {"pipeline of shared",
       [](PipelinePlan& p) {
         p.shared.push_back({0, {{1, 0}, {0, 1}}});
       }},
      {"stage of shared",
       [](PipelinePlan& p) {
         p.shared.push_back({0, {{0, 1}, {0, 1}}});
       }},
      {"gradients", [](PipelinePlan& p) { p.gradient_weight = GradientWeight::kTokens; }},
      {"micro_batches", [](PipelinePlan& p) { ++p.pipelines[0].micro_batches; }},
      {"micro_batch_size", [](PipelinePlan& p) { ++p.pipelines[0].micro_batch_size; }},
  };
}

std::vector<Change> changes_of_a_stage() {
  return {
      {"stages", [](PipelinePlan& p) { p.pipelines[0].stages.pop_back(); }},
      {"first item", [](PipelinePlan& p) { ++stage(p).items_begin; }},
      {"end of the items", [](PipelinePlan& p) { ++stage(p).items_end; }},
      {"chunk", [](PipelinePlan& p) { ++stage(p).chunk; }},
      {"ranks of a stage", [](PipelinePlan& p) { stage(p).ranks.push_back(1); }},
      {"data degree", [](PipelinePlan& p) { ++stage(p).degrees.data; }},
      {"context degree", [](PipelinePlan& p) { ++stage(p).degrees.context; }},
      {"tensor degree", [](PipelinePlan& p) { ++stage(p).degrees.tensor; }},
      {"expert degree", [](PipelinePlan& p) { ++stage(p).degrees.expert; }},
      {"order", [](PipelinePlan& p) { stage(p).degrees.order = "tcd"; }},
      {"zigzag", [](PipelinePlan& p) { stage(p).degrees.zigzag = true; }},
      {"zero", [](PipelinePlan& p) { ++stage(p).zero; }},
      {"recompute", [](PipelinePlan& p) { stage(p).recompute = true; }},
      {"live_limit", [](PipelinePlan& p) { ++stage(p).live_limit; }},
      {"the same of another stage", [](PipelinePlan& p) { ++p.pipelines[0].stages[1].live_limit; }},
  };
}

std::vector<Change> changes_of_the_schedule() {
  return {
      {"name", [](PipelinePlan& p) { schedule(p).name = "gpipe"; }},
      {"warmups", [](PipelinePlan& p) { schedule(p).parameters.warmups = {1}; }},
      {"slow_boundaries", [](PipelinePlan& p) { schedule(p).parameters.slow_boundaries = {1}; }},
      {"recomputed_stages",
       [](PipelinePlan& p) { schedule(p).parameters.recomputed_stages = {1}; }},
      {"epsilon", [](PipelinePlan& p) { schedule(p).parameters.epsilon_ppm = 1; }},
      {"stage_ns", [](PipelinePlan& p) { schedule(p).parameters.stage_ns = {1}; }},
      {"busy_ns", [](PipelinePlan& p) { schedule(p).parameters.boundaries = {{.busy_ns = 1}}; }},
      {"latency_ns",
       [](PipelinePlan& p) { schedule(p).parameters.boundaries = {{.latency_ns = 1}}; }},
      {"actions",
       [](PipelinePlan& p) {
         schedule(p) = {.actions = {{}, {}}};
       }},
      {"an action",
       [](PipelinePlan& p) {
         schedule(p) = {.actions = {{{.kind = ActionKind::kForward}}, {}}};
       }},
      {"its micro-batch",
       [](PipelinePlan& p) {
         schedule(p) = {.actions = {{{.micro_batch = 1, .kind = ActionKind::kForward}}, {}}};
       }},
      {"its list",
       [](PipelinePlan& p) {
         schedule(p) = {.actions = {{}, {{.kind = ActionKind::kForward}}}};
       }},
  };
}

std::vector<Change> changes_of_a_boundary() {
  return {
      {"boundaries", [](PipelinePlan& p) { p.pipelines[0].boundaries.clear(); }},
      {"from", [](PipelinePlan& p) { ++boundary(p).from; }},
      {"to", [](PipelinePlan& p) { ++boundary(p).to; }},
      {"strategy", [](PipelinePlan& p) { ++boundary(p).strategy; }},
      {"in_flight", [](PipelinePlan& p) { ++boundary(p).in_flight; }},
      {"slice_bytes", [](PipelinePlan& p) { ++boundary(p).slice_bytes; }},
      {"tensors", [](PipelinePlan& p) { boundary(p).tensors.push_back(tensor(p)); }},
      {"name of a tensor", [](PipelinePlan& p) { tensor(p).name = "y"; }},
      {"type", [](PipelinePlan& p) { ++tensor(p).type; }},
      {"shape", [](PipelinePlan& p) { ++tensor(p).shape[2]; }},
      {"dimensions", [](PipelinePlan& p) { tensor(p).shape.push_back(1); }},
      {"cut by data", [](PipelinePlan& p) { tensor(p).data = 2; }},
      {"cut by context", [](PipelinePlan& p) { tensor(p).context = 2; }},
      {"cut by tensor", [](PipelinePlan& p) { tensor(p).tensor = 2; }},
      {"no cut by data", [](PipelinePlan& p) { tensor(p).data.reset(); }},
      {"no cut by context", [](PipelinePlan& p) { tensor(p).context.reset(); }},
      {"no cut by tensor", [](PipelinePlan& p) { tensor(p).tensor.reset(); }},
      {"gradient", [](PipelinePlan& p) { tensor(p).has_gradient = false; }},
  };
}

TEST(Plan, EveryFieldIsWrittenReadAndHashed) {
  const PipelinePlan plan = test::plan_of(test::on_ranks({0, 1}), "1f1b", 2);
  std::map<std::string, std::string> field_of = {{to_text(hash_of(plan)), "none"}};
  for (const auto& changes : {changes_of_the_plan(), changes_of_a_stage(),
                              changes_of_the_schedule(), changes_of_a_boundary()}) {
    for (const Change& change : changes) {
      PipelinePlan changed = plan;
      change.make(changed);
      const auto [found, is_new] = field_of.emplace(to_text(hash_of(changed)), change.field);
      EXPECT_TRUE(is_new) << change.field << " has the hash of " << found->second;
      EXPECT_EQ(read(to_json(changed)), changed) << change.field;
    }
  }
}

TEST(Plan, StagesWithTheSameRanksFormOneGroup) {
  const PipelinePlan plan = test::plan_of(test::on_ranks({0, 1, 1, 0}), "zb-v", 4);
  const PipelineView view = view_of(plan);
  EXPECT_THAT(view.groups, ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_THAT(view.schedule.rank_of, ElementsAre(0, 1, 1, 0));
}

TEST(Plan, GroupsFollowTheOrderOfTheirFirstStages) {
  const PipelinePlan plan = test::plan_of({{.ranks = {3, 1}, .degrees = {.data = 2}},
                                           {.ranks = {0, 2}, .degrees = {.tensor = 2}},
                                           {.ranks = {4}}},
                                          "1f1b", 4);
  const PipelineView view = view_of(plan);
  EXPECT_THAT(view.groups, ElementsAre(ElementsAre(3, 1), ElementsAre(0, 2), ElementsAre(4)));
  EXPECT_THAT(view.schedule.rank_of, ElementsAre(0, 1, 2));
}

TEST(Plan, PeaksEqualTheWarmUpCounts) {
  EXPECT_THAT(view_of(test::plan_of(test::on_ranks({0, 1, 2, 3}), "1f1b", 8)).peaks,
              ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(view_of(test::plan_of(test::on_ranks({0, 1, 2, 3}), "gpipe", 8)).peaks,
              ElementsAre(8, 8, 8, 8));
  // The first transfer takes two thirds of the slowest stage's time, and epsilon hides the second.
  const PipelineView hidden = view_of(read(file("good/hidden_transfers.json")));
  EXPECT_THAT(hidden.peaks, ElementsAre(5, 2, 1));
  EXPECT_THAT(hidden.exposed, IsEmpty());
}

TEST(Plan, BoundaryTooSlowToHideIsExposed) {
  PipelinePlan plan = read(file("good/hidden_transfers.json"));
  schedule(plan).parameters.boundaries[1].busy_ns = 31'000'000;
  EXPECT_THAT(view_of(plan).exposed, ElementsAre(1));
}

TEST(Plan, TransfersAndBubblesAreRemovedFromGivenActions) {
  EXPECT_EQ(write_csv(view_of(read(file("good/explicit_actions.json"))).schedule),
            "0UNSHARD,0F0,0F1,0I0,0W0,(0F2;0B1)OVERLAP_F_B,0B2,0REDUCE_GRAD,0RESHARD\n"
            "1F0,1B0,1F1,1I1,1F2,1W1,1B2,1REDUCE_GRAD\n");
}

TEST(Plan, SlowLinksHaveMoreItemsInFlight) {
  PipelinePlan plan = test::plan_of(test::on_ranks({0, 1, 2}), "h-1f1b", 8);
  ScheduleParameters& parameters = schedule(plan).parameters;
  parameters.stage_ns = {30, 20, 10};
  parameters.boundaries = {{.busy_ns = 1, .latency_ns = 30}, {.busy_ns = 30, .latency_ns = 0}};
  EXPECT_THAT(view_of(plan).in_flight, ElementsAre(5, 3));
  boundary(plan).in_flight = 2;
  EXPECT_THAT(view_of(plan).in_flight, ElementsAre(2, 3));
  // More than all micro-batches are never in flight.
  boundary(plan).in_flight = 0;
  parameters.boundaries[0].latency_ns = 10'000;
  EXPECT_THAT(view_of(plan).in_flight, ElementsAre(8, 3));
}

TEST(Plan, ItemsInFlightAreAsGivenOrOneMoreThanNeeded) {
  PipelinePlan plan = test::plan_of(test::on_ranks({0, 1, 2}), "1f1b", 8);
  EXPECT_THAT(view_of(plan).in_flight, ElementsAre(2, 2));
  boundary(plan).in_flight = 7;
  EXPECT_THAT(view_of(plan).in_flight, ElementsAre(7, 2));
  // Past a stage there may be those of both neighbours, and one in each stage.
  plan.pipelines[0].boundaries.push_back(boundary(plan));
  PlanBoundary& skip = plan.pipelines[0].boundaries.back();
  skip.to = 2;
  skip.in_flight = 0;
  EXPECT_THAT(view_of(plan).in_flight, ElementsAre(7, 2, 8));
  skip.in_flight = 7;
  EXPECT_THAT(std::string(check_plan(plan).status().text()),
              HasSubstr("boundaries[2].in_flight: 8 are needed"));
}

TEST(Plan, LiveLimitOfEachStageIsEnforced) {
  PipelinePlan plan = test::plan_of(test::on_ranks({0, 1, 2}), "1f1b", 8);
  for (size_t i = 0; i < 3; ++i) plan.pipelines[0].stages[i].live_limit = 3 - i;
  view_of(plan);
  for (size_t i = 0; i < 2; ++i) {
    PipelinePlan tight = plan;
    --tight.pipelines[0].stages[i].live_limit;
    EXPECT_EQ(check_plan(tight).status().code(), Code::kOutOfRange) << i;
  }
}

TEST(Plan, TensorsAreShardedByTheDegreesOfTheirStage) {
  PlanTensor tensor = test::activations("x", 8, 48, 5);
  PlanStage stage;
  stage.ranks = {10, 11, 12, 13, 14, 15, 16, 17};
  stage.degrees = {.data = 2, .context = 2, .tensor = 2};
  Result<TensorMesh> held = mesh_of(tensor, stage);
  ASSERT_TRUE(held.ok()) << held.status().text();
  EXPECT_THAT(held->mesh.axes, ElementsAre(2, 2, 2));
  EXPECT_THAT(held->mesh.ranks, ElementsAre(10, 11, 12, 13, 14, 15, 16, 17));
  ASSERT_EQ(held->placements.size(), 3u);
  EXPECT_EQ(held->placements[0].kind, Kind::kShard);
  EXPECT_EQ(held->placements[0].dimension, 0u);
  EXPECT_EQ(held->placements[1].kind, Kind::kShard);
  EXPECT_EQ(held->placements[1].dimension, 1u);
  EXPECT_EQ(held->placements[2].dimension, 1u);
  EXPECT_THAT(local_shape(tensor, stage), ElementsAre(4, 12, 5));

  // The degree that is named last goes with neighbouring ranks.
  stage.degrees.order = "tcd";
  stage.degrees.zigzag = true;
  tensor.tensor.reset();
  held = mesh_of(tensor, stage);
  ASSERT_TRUE(held.ok()) << held.status().text();
  EXPECT_THAT(held->mesh.ranks, ElementsAre(10, 14, 12, 16, 11, 15, 13, 17));
  EXPECT_EQ(held->placements[1].kind, Kind::kZigzag);
  EXPECT_EQ(held->placements[2].kind, Kind::kReplicate);
  EXPECT_THAT(local_shape(tensor, stage), ElementsAre(4, 24, 5));

  stage.degrees.tensor = 3;
  EXPECT_EQ(mesh_of(tensor, stage).status().code(), Code::kInvalidArgument);
}

TEST(Plan, LocalShapesMatchTheLayout) {
  for (const std::string& text : good_documents()) {
    for (const PlanPipeline& pipeline : read(text).pipelines) {
      for (const PlanBoundary& boundary : pipeline.boundaries) {
        for (const PlanTensor& tensor : boundary.tensors) {
          const PlanStage& stage = pipeline.stages[boundary.to];
          const TensorMesh held = mesh_of(tensor, stage).value();
          const Result<reshard::Layout> layout =
              reshard::layout_of(tensor.shape, held.mesh, held.placements);
          ASSERT_TRUE(layout.ok()) << layout.status().text();
          uint64_t elements = 1;
          for (const uint64_t length : local_shape(tensor, stage)) elements *= length;
          for (const uint32_t rank : stage.ranks) {
            EXPECT_EQ(elements_needed(layout.value(), static_cast<int>(rank)), elements)
                << tensor.name;
          }
        }
      }
    }
  }
}

// Returns whether |written| has what |given| says. Numbers of actions may have leading zeros.
bool says(const json& written, const json& given) {
  if (given.is_object()) {
    return std::all_of(given.items().begin(), given.items().end(), [&](const auto& field) {
      return written.contains(field.key()) && says(written[field.key()], field.value());
    });
  }
  if (given.is_array()) {
    if (written.size() != given.size()) return false;
    for (size_t i = 0; i < given.size(); ++i) {
      if (!says(written[i], given[i])) return false;
    }
    return true;
  }
  if (written == given) return true;
  std::vector<Action> one;
  std::vector<Action> other;
  return written.is_string() && given.is_string() && parse_cell(written.get<std::string>(), one) &&
         parse_cell(given.get<std::string>(), other) && one == other;
}

// Returns |text| with up to three bytes or short pieces changed, removed or added.
std::string damaged(std::string text, std::mt19937& random) {
  const std::string bytes = "0123456789,:{}[]\"-.eE \\ntfFBI\x80\xff\x01";
  for (auto count = 1 + random() % 3; count > 0 && !text.empty(); --count) {
    const size_t at = random() % text.size();
    switch (random() % 4) {
      case 0:
        text[at] = bytes[random() % bytes.size()];
        break;
      case 1:
        text.erase(at, 1 + random() % 9);
        break;
      case 2:
        text.insert(at, text.substr(random() % text.size(), 1 + random() % 40));
        break;
      default:
        text.insert(at, 1, bytes[random() % bytes.size()]);
    }
  }
  return text;
}

TEST(Plan, DamagedDocumentsAreRefusedOrReadFaithfully) {
  std::mt19937 random(7);
  int accepted = 0;
  for (const std::string& text : good_documents()) {
    for (int round = 0; round < 500; ++round) {
      const std::string given = damaged(text, random);
      const Result<PipelinePlan> plan = parse_plan(given);
      if (!plan.ok()) continue;
      const std::string written = to_json(plan.value());
      ASSERT_EQ(to_json(read(written)), written) << given;
      if (!check_plan(plan.value()).ok()) continue;
      ASSERT_TRUE(says(json::parse(written), json::parse(given))) << given;
      ++accepted;
    }
  }
  EXPECT_GT(accepted, 0);
}

TEST(Plan, TruncatedDocumentsAreRefused) {
  for (const std::string& text : good_documents()) {
    for (size_t size = 0; size + 1 < text.size(); size += 1 + size % 11) {
      ASSERT_EQ(parse_plan(text.substr(0, size)).status().code(), Code::kInvalidArgument) << size;
    }
  }
}

TEST(Plan, RandomBytesAreRefused) {
  std::mt19937 random(7);
  const std::string bytes = "{}[]:,\"0123456789 formatversionhetcomm\x80";
  for (int round = 0; round < 10'000; ++round) {
    std::string text;
    for (auto size = random() % 64; size > 0; --size) {
      text += round % 2 == 0 ? static_cast<char>(random()) : bytes[random() % bytes.size()];
    }
    ASSERT_FALSE(parse_plan(text).ok()) << text;
  }
}

TEST(Plan, PairedStepsHoldBothActivations) {
  PipelinePlan plan = test::plan_of(test::on_ranks({0}), "", 2);
  PlanPipeline& pipeline = plan.pipelines.front();
  pipeline.schedule.actions = read_csv("0F0,(0B0;0F1)OVERLAP_F_B,0B1\n")->actions;
  pipeline.stages.front().live_limit = 2;
  EXPECT_TRUE(check_plan(plan).ok());
  pipeline.stages.front().live_limit = 1;
  EXPECT_EQ(check_plan(plan).status().code(), Code::kOutOfRange);
}

// Nothing is made of it before.
TEST(Plan, PlanWithTooManyMicroBatchesIsRefused) {
  std::vector<uint32_t> ranks(16);
  for (uint32_t i = 0; i < 16; ++i) ranks[i] = i;
  const PipelinePlan plan = test::plan_of(test::on_ranks(ranks), "1f1b", 1 << 20, 1);
  EXPECT_THAT(std::string(check_plan(plan).status().text()),
              HasSubstr("pipelines[0]: too many stages, boundaries and micro-batches"));
}

// The items in flight of other boundaries follow from what is given for one.
TEST(Plan, GivenNumberOfItemsInFlightIsKept) {
  PipelinePlan plan = test::plan_of(test::on_ranks({0, 1, 0, 1}), "looped-bfs", 8);
  plan.pipelines.front().boundaries.front().in_flight = 1;
  Result<std::vector<PipelineView>> views = check_plan(plan);
  ASSERT_TRUE(views.ok()) << views.status().text();
  EXPECT_EQ(views->front().in_flight.front(), 1u);
}

}  // namespace
}  // namespace hetcomm::pipeline
