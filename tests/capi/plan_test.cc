// libhetcomm_plan answers as libhetcomm does, byte by byte, with nothing but JSON between them.
#include <cstdlib>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <hetcomm/compat.h>
#include <hetcomm/hetcomm.h>

#include "tests/capi/plan_documents.h"
#include "tests/support/local_bootstrap.h"

namespace hetcomm_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Returns the text that |write|, a function of capacity, text and size, gives.
template <typename Write>
std::string text_of(Write&& write) {
  size_t size = 0;
  EXPECT_EQ(write(size_t{0}, nullptr, &size), HETCOMM_OK) << hetcomm_last_error();
  std::string text(size, '#');
  EXPECT_EQ(write(size, text.data(), &size), HETCOMM_OK) << hetcomm_last_error();
  text.pop_back();
  return text;
}

constexpr int32_t kForms[] = {HETCOMM_PLAN_TEXT, HETCOMM_PLAN_JSON, HETCOMM_PLAN_SVG};
constexpr bool are_equal(int32_t one, int32_t other) { return one == other; }
static_assert(are_equal(HETCOMM_PLAN_TEXT, HETCOMM_TOPOLOGY_TEXT));
static_assert(are_equal(HETCOMM_PLAN_JSON, HETCOMM_TOPOLOGY_JSON));
static_assert(are_equal(HETCOMM_PLAN_SVG, HETCOMM_TOPOLOGY_SVG));
static_assert(are_equal(HETCOMM_PLAN_TEXT, HETCOMM_RESHARD_TEXT));
static_assert(are_equal(HETCOMM_PLAN_JSON, HETCOMM_RESHARD_JSON));
static_assert(are_equal(HETCOMM_PLAN_SVG, HETCOMM_RESHARD_SVG));

TEST(Plan, LinkModelsMatchThoseOfLibhetcomm) {
  const std::string model = answer(hetcomm_links_infer, kMeasurements, HETCOMM_PLAN_JSON);
  for (const int32_t form : kForms) {
    const std::string before = text_of([&](size_t capacity, char* text, size_t* size) {
      return hetcomm_link_model_infer(kMeasurements, form, capacity, text, size);
    });
    EXPECT_EQ(answer(hetcomm_links_infer, kMeasurements, form), before);
    EXPECT_EQ(answer(hetcomm_links_draw, model, form), before);
  }
  const hetcomm_link_ends_t transfers[] = {
      {"a", nullptr, "b", nullptr}, {"b", "", "a", ""}, {"a", nullptr, "b", nullptr}};
  uint64_t rates[3] = {};
  uint64_t before[3] = {};
  ASSERT_EQ(hetcomm_links_rates(model.c_str(), 3, transfers, rates), HETCOMM_OK);
  ASSERT_EQ(hetcomm_link_model_rates(model.c_str(), 3, transfers, before), HETCOMM_OK);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(rates[i], before[i]);
  EXPECT_EQ(rates[0], 1500000u);
  EXPECT_EQ(rates[1], 2000000u);
  EXPECT_EQ(hetcomm_links_rates(model.c_str(), 0, nullptr, nullptr), HETCOMM_OK);
}

class PlanOfAJob : public testing::Test {
 protected:
  explicit PlanOfAJob(const char* settings = "") : rank_(store_, 0, 1, settings) {}

  // Has rank 0 as whole owner of a tensor with gaps in its memory, and as owner of two parts.
  void SetUp() override {
    ASSERT_TRUE(rank_.ok());
    const uint64_t shape[] = {4, 6};
    hetcomm_part_t whole{};
    whole.end[0] = 4;
    whole.end[1] = 6;
    whole.offset = 3;
    whole.strides[0] = 8;
    whole.strides[1] = 1;
    ASSERT_EQ(hetcomm_layout_from_parts(2, shape, &whole, 1, nullptr, &layouts_[0]), HETCOMM_OK);
    const uint64_t axes[] = {1};
    const int32_t ranks[] = {0};
    const hetcomm_placement_t placement{HETCOMM_PLACEMENT_STRIDED_SHARD, 1, 2, nullptr};
    ASSERT_EQ(hetcomm_layout_from_mesh(2, shape, 1, axes, ranks, &placement, nullptr, &layouts_[1]),
              HETCOMM_OK);
  }
  void TearDown() override {
    for (hetcomm_layout_t* const layout : layouts_) {
      EXPECT_EQ(hetcomm_layout_destroy(layout), HETCOMM_OK);
    }
  }

  std::string json_of(int layout) const {
    return text_of([&](size_t capacity, char* text, size_t* size) {
      return hetcomm_layout_json(layouts_[layout], capacity, text, size);
    });
  }

  LocalStore store_;
  Rank rank_;
  hetcomm_layout_t* layouts_[2] = {};
};

TEST_F(PlanOfAJob, LayoutsAreUnchangedByARoundTripThroughJson) {
  for (int i = 0; i < 2; ++i) {
    const std::string json = json_of(i);
    EXPECT_EQ(answer(hetcomm_draft_layout, json, HETCOMM_PLAN_JSON), json);
    EXPECT_EQ(answer(hetcomm_draft_layout, json, HETCOMM_PLAN_TEXT),
              text_of([&](size_t capacity, char* text, size_t* size) {
                return hetcomm_layout_describe(layouts_[i], capacity, text, size);
              }));
  }
}

TEST_F(PlanOfAJob, ReshardPlansMatchThoseOfLibhetcomm) {
  const std::string question = R"({"format": "hetcomm reshard question", "version": 1,
      "layouts": {"before": )" +
                               json_of(0) + R"(, "after": )" + json_of(1) + R"(},
      "tensors": [{"source": "before", "destination": "after", "type": "bfloat16"}]})";
  const hetcomm_reshard_tensor_t tensor{layouts_[0], layouts_[1], HETCOMM_BFLOAT16,
                                        HETCOMM_BFLOAT16};
  hetcomm_reshard_t* reshard = nullptr;
  ASSERT_EQ(hetcomm_reshard_create(rank_.communicator(), &tensor, 1, nullptr, &reshard),
            HETCOMM_OK);
  const std::string json = text_of([&](size_t capacity, char* text, size_t* size) {
    return hetcomm_reshard_describe(reshard, HETCOMM_RESHARD_JSON, capacity, text, size);
  });
  for (const int32_t form : kForms) {
    const std::string before = text_of([&](size_t capacity, char* text, size_t* size) {
      return hetcomm_reshard_draft(&tensor, 1, nullptr, nullptr, form, capacity, text, size);
    });
    EXPECT_EQ(answer(hetcomm_draft_reshard, question, form), before);
    const std::string described = text_of([&](size_t capacity, char* text, size_t* size) {
      return hetcomm_reshard_describe(reshard, form, capacity, text, size);
    });
    if (form == HETCOMM_PLAN_JSON) continue;
    EXPECT_EQ(answer(hetcomm_draft_draw, json, form), described);
  }
  EXPECT_EQ(hetcomm_reshard_destroy(reshard), HETCOMM_OK);
}

TEST_F(PlanOfAJob, DrawnTopologyMatchesThatOfLibhetcomm) {
  const auto before = [&](int32_t form) {
    return text_of([&](size_t capacity, char* text, size_t* size) {
      return hetcomm_context_topology(rank_.context(), form, capacity, text, size);
    });
  };
  const std::string json = before(HETCOMM_TOPOLOGY_JSON);
  for (const int32_t form : kForms) {
    EXPECT_EQ(answer(hetcomm_machine_draw, json, form), before(form));
  }
}

// With several hops, a picture has columns in between.
TEST(Plan, DrawingFromJsonEqualsTheDraftForEachStrategy) {
  for (const char* const strategy :
       {"direct", "leader", "gather_p2p_scatter", "sendrecv_allgather", "bsr"}) {
    std::string question = kQuestion;
    question.replace(question.find("direct"), 6, strategy);
    const std::string json = answer(hetcomm_draft_reshard, question, HETCOMM_PLAN_JSON);
    for (const int32_t form : {HETCOMM_PLAN_TEXT, HETCOMM_PLAN_SVG}) {
      EXPECT_EQ(answer(hetcomm_draft_draw, json, form),
                answer(hetcomm_draft_reshard, question, form))
          << strategy;
    }
  }
}

TEST(Plan, EachTensorIsDrawnUnderItsOwnHeading) {
  std::string question = kQuestion;
  const std::string tensor = R"({"source": "rows", "destination": "columns", "type": "float32"})";
  question.replace(question.find(tensor), tensor.size(), tensor + ", " + tensor);
  const std::string json = answer(hetcomm_draft_reshard, question, HETCOMM_PLAN_JSON);
  const std::string text = answer(hetcomm_draft_draw, json, HETCOMM_PLAN_TEXT);
  EXPECT_EQ(text, answer(hetcomm_draft_reshard, question, HETCOMM_PLAN_TEXT));
  EXPECT_THAT(text, StartsWith("tensor 0\n"));
  EXPECT_THAT(text, HasSubstr("tensor 1\n"));
}

TEST(Plan, LinkModelAddsAForecast) {
  const std::string model = answer(hetcomm_links_infer, kMeasurements, HETCOMM_PLAN_JSON);
  std::string question = kQuestion;
  question.replace(
      question.find("\"direct\""), 8,
      R"("auto", "links": {"model": )" + model + R"(, "hosts": ["a", "a", "b", "b"]})");
  const std::string json = answer(hetcomm_draft_reshard, question, HETCOMM_PLAN_JSON);
  EXPECT_THAT(json, HasSubstr("\"forecast_ns\""));
  EXPECT_THAT(json, HasSubstr("\"considered\""));
  EXPECT_THAT(answer(hetcomm_draft_draw, json, HETCOMM_PLAN_SVG), StartsWith("<svg"));
}

TEST(Plan, ActivationsAreLaidOutByParallelDegrees) {
  const std::string text = answer(hetcomm_draft_layout, R"({
      "format": "hetcomm layout", "version": 1,
      "activations": {"batch": 2, "sequence": 4, "hidden": 3, "data": 2, "tensor": 2,
                      "ranks": [4, 5, 6, 7]}})",
                                  HETCOMM_PLAN_TEXT);
  EXPECT_THAT(text, HasSubstr("[1:2, 2:4, 0:3]"));
}

// An affinity belongs to addresses, in whatever order the document has them.
TEST(Plan, DocumentAffinityIsMatchedByAddress) {
  const nlohmann::json read =
      nlohmann::json::parse(answer(hetcomm_machine_draw, kMachine, HETCOMM_PLAN_JSON));
  std::map<std::string, std::string> first;
  for (const auto& each : read["affinity"]["accelerators"]) {
    first[each["address"]] = each["nics"][0]["name"];
  }
  EXPECT_EQ(first, (std::map<std::string, std::string>{{"0000:02:00.0", "far0"},
                                                       {"0000:82:00.0", "near0"}}));
  nlohmann::json without = nlohmann::json::parse(kMachine);
  without.erase("affinity");
  const nlohmann::json chosen =
      nlohmann::json::parse(answer(hetcomm_machine_draw, without.dump(), HETCOMM_PLAN_JSON));
  EXPECT_EQ(chosen["affinity"]["accelerators"][0]["nics"][0]["name"], "near0");
}

TEST(Plan, ForecastIsGivenInEveryFormatButCsv) {
  const std::string question =
      forecast_question(answer(hetcomm_links_infer, kMeasurements, HETCOMM_PLAN_JSON));
  EXPECT_THAT(answer(hetcomm_draft_forecast, question, HETCOMM_PLAN_TEXT),
              HasSubstr("reduction of stages 0 1"));
  const nlohmann::json told =
      nlohmann::json::parse(answer(hetcomm_draft_forecast, question, HETCOMM_PLAN_JSON));
  EXPECT_GT(told["forecast"]["total_ns"], 4 * 3000);
  EXPECT_EQ(answer(hetcomm_draft_forecast, question, HETCOMM_PLAN_SVG).substr(0, 4), "<svg");
  EXPECT_TRUE(nlohmann::json::accept(answer(hetcomm_draft_forecast, question, HETCOMM_PLAN_TRACE)));
  size_t size = 0;
  EXPECT_EQ(hetcomm_draft_forecast(question.c_str(), HETCOMM_PLAN_CSV, 0, nullptr, &size),
            HETCOMM_UNSUPPORTED);
}

TEST(Plan, PipelinePlanIsDescribedAsTextJsonAndSvg) {
  const std::string text = answer(hetcomm_draft_pipeline, kPipelinePlan, HETCOMM_PLAN_TEXT);
  EXPECT_NE(text.find("pipeline plan "), std::string::npos) << text;
  EXPECT_NE(text.find("4 micro-batches of 2 samples, 1f1b"), std::string::npos) << text;
  EXPECT_NE(text.find("0 -> 1  32 bytes, back 32 bytes, 3 in flight, direct"), std::string::npos)
      << text;
  const std::string json = answer(hetcomm_draft_pipeline, kPipelinePlan, HETCOMM_PLAN_JSON);
  EXPECT_NE(json.find("\"0F1\""), std::string::npos) << json;
  const std::string picture = answer(hetcomm_draft_pipeline, kPipelinePlan, HETCOMM_PLAN_SVG);
  EXPECT_EQ(picture.substr(0, 4), "<svg");
}

// The environment decides nothing.
TEST(Plan, EnvironmentVariablesDoNotAffectAnswers) {
  const std::string before = answer(hetcomm_draft_reshard, kQuestion, HETCOMM_PLAN_JSON);
  const std::string machine = answer(hetcomm_machine_draw, kMachine, HETCOMM_PLAN_JSON);
  for (const char* const name : {"HETCOMM_LINK_MODEL", "HETCOMM_TOPOLOGY", "HETCOMM_NIC"}) {
    ASSERT_EQ(setenv(name, "nowhere", 1), 0);
  }
  EXPECT_EQ(answer(hetcomm_draft_reshard, kQuestion, HETCOMM_PLAN_JSON), before);
  EXPECT_EQ(answer(hetcomm_machine_draw, kMachine, HETCOMM_PLAN_JSON), machine);
  for (const char* const name : {"HETCOMM_LINK_MODEL", "HETCOMM_TOPOLOGY", "HETCOMM_NIC"}) {
    unsetenv(name);
  }
}

}  // namespace
}  // namespace hetcomm_test
