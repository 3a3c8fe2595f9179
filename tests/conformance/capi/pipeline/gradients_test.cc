// Gradients that pipelines add up, over every transport:
//
//   * ranks of a data degree, stages of other tensor degrees in several pipelines, and stages that
//     share an item get the sum of all terms, in every run, by every schedule
//   * small gradients that are packed, and large ones in their place; memory of devices
//   * evaluations add nothing; a new list replaces the old one, and an empty one ends the sums
//   * what ranks say differently or leave out is refused on all ranks, and changes nothing
//   * a rank that fails, cancels, comes too late or dies while others add ends the run on all ranks
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "reshard/layout.h"
#include "reshard/mesh.h"
#include "tests/conformance/capi/pipeline/model.h"
#include "tests/conformance/capi/pipeline/own_pipeline.h"
#include "tests/support/pipeline_plans.h"

namespace hetcomm_test {
namespace {

using hetcomm::test::on_ranks;
using hetcomm::test::plan_of;
using hetcomm::test::StageWish;
using pipeline::PipelinePlan;

class PipelineGradients : public CapiTest {};
INSTANTIATE_TEST_SUITE_P(All, PipelineGradients, ::testing::ValuesIn(pipeline_cases()),
                         capi_case_name);

// A gradient of an item, as a stage holds it: the data degree makes terms, the tensor degree cuts
// the first dimension or makes copies.
struct Wish {
  uint32_t item = 0;
  uint32_t index = 0;
  std::vector<uint64_t> shape;
  bool is_cut = true;
};

// This rank's gradients. Their values follow from the rank's term and the element.
class Gradients {
 public:
  // The same wishes on all ranks: each keeps those of items that it holds.
  Gradients(const PipelinePlan& plan, uint32_t rank, const std::vector<Wish>& wishes)
      : plan_(plan), rank_(rank) {
    for (const Wish& wish : wishes) add(wish);
  }
  ~Gradients() {
    for (Own& each : own_) EXPECT_EQ(hetcomm_layout_destroy(each.layout), HETCOMM_OK);
  }
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  std::vector<hetcomm_pipeline_gradient_t> list() {
    std::vector<hetcomm_pipeline_gradient_t> all;
    for (Own& each : own_) {
      hetcomm_pipeline_gradient_t gradient{};
      gradient.struct_size = sizeof(gradient);
      gradient.item = each.wish.item;
      gradient.index = each.wish.index;
      gradient.layout = each.layout;
      gradient.type = HETCOMM_UINT64;
      gradient.buffer = hetcomm_buffer_host(each.data.data(), each.data.size() * sizeof(uint64_t));
      all.push_back(gradient);
    }
    return all;
  }

  void fill(uint64_t seed) {
    for (Own& each : own_) {
      for (const auto& [place, element] : each.places) {
        each.data[place] = value(each.wish, each.holder, each.term, element, seed);
      }
    }
  }
  // Fills those of the items that |stage| of |pipeline| holds.
  void fill_stage(uint32_t p, uint32_t stage, uint64_t seed) {
    for (Own& each : own_) {
      if (!holds(p, stage, each.wish.item)) continue;
      for (const auto& [place, element] : each.places) {
        each.data[place] = value(each.wish, each.holder, each.term, element, seed);
      }
    }
  }
  void expect_sums(uint64_t seed) {
    for (const Own& each : own_) {
      for (const auto& [place, element] : each.places) {
        uint64_t sum = 0;
        for (const auto& [holder, terms] : terms_of(each.wish.item)) {
          for (uint64_t term = 0; term < terms; ++term) {
            sum += value(each.wish, holder, term, element, seed);
          }
        }
        ASSERT_EQ(each.data[place], sum)
            << "rank " << rank_ << ", item " << each.wish.item << ", element " << element;
      }
    }
  }
  // Returns the norm of the sums of all wishes, whoever holds them.
  static double norm_of(const PipelinePlan& plan, const std::vector<Wish>& wishes, uint64_t seed,
                        bool is_greatest) {
    const Gradients all(plan, UINT32_MAX, {});
    double squares = 0;
    double greatest = 0;
    for (const Wish& wish : wishes) {
      uint64_t elements = 1;
      for (const uint64_t length : wish.shape) elements *= length;
      for (uint64_t element = 0; element < elements; ++element) {
        uint64_t sum = 0;
        for (const auto& [holder, terms] : all.terms_of(wish.item)) {
          for (uint64_t term = 0; term < terms; ++term) {
            sum += value(wish, holder, term, element, seed);
          }
        }
        squares += static_cast<double>(sum) * static_cast<double>(sum);
        greatest = std::max(greatest, static_cast<double>(sum));
      }
    }
    return is_greatest ? greatest : std::sqrt(squares);
  }
  void expect_as_filled(uint64_t seed) {
    for (const Own& each : own_) {
      for (const auto& [place, element] : each.places) {
        ASSERT_EQ(each.data[place], value(each.wish, each.holder, each.term, element, seed));
      }
    }
  }

 private:
  struct Own {
    Wish wish;
    uint32_t holder = 0;
    uint64_t term = 0;
    hetcomm_layout_t* layout = nullptr;
    std::vector<uint64_t> data;
    std::vector<std::pair<uint64_t, uint64_t>> places;  // in memory, in the whole tensor
  };

  static uint64_t value(const Wish& wish, uint32_t holder, uint64_t term, uint64_t element,
                        uint64_t seed) {
    return (holder * 100 + term + 1) * 1'000'003 + wish.index * 17 + wish.item * 5 +
           element * (seed + 3);
  }

  bool holds(uint32_t p, uint32_t stage, uint32_t item) const {
    const auto& own = plan_.pipelines[p].stages[stage];
    if (own.items_begin <= item && item < own.items_end) return true;
    for (const auto& shared : plan_.shared) {
      for (const auto& each : shared.holders) {
        if (shared.item == item && each.pipeline == p && each.stage == stage) return true;
      }
    }
    return false;
  }
  // The numbers of terms of all stages that hold |item|.
  std::vector<std::pair<uint32_t, uint64_t>> terms_of(uint32_t item) const {
    std::vector<std::pair<uint32_t, uint64_t>> found;
    for (uint32_t p = 0; p < plan_.pipelines.size(); ++p) {
      for (uint32_t stage = 0; stage < plan_.pipelines[p].stages.size(); ++stage) {
        if (!holds(p, stage, item)) continue;
        found.emplace_back(p * 16 + stage, plan_.pipelines[p].stages[stage].degrees.data);
      }
    }
    return found;
  }

  void add(const Wish& wish) {
    for (uint32_t p = 0; p < plan_.pipelines.size(); ++p) {
      for (uint32_t stage = 0; stage < plan_.pipelines[p].stages.size(); ++stage) {
        const auto& ranks = plan_.pipelines[p].stages[stage].ranks;
        const auto found = std::find(ranks.begin(), ranks.end(), rank_);
        if (found == ranks.end() || !holds(p, stage, wish.item)) continue;
        add(wish, plan_.pipelines[p].stages[stage], p * 16 + stage,
            static_cast<size_t>(found - ranks.begin()));
        return;
      }
    }
  }
  void add(const Wish& wish, const pipeline::PlanStage& stage, uint32_t holder, size_t place) {
    Own& own = own_.emplace_back();
    own.wish = wish;
    own.holder = holder;
    own.term = place / stage.degrees.tensor;  // the order is "dct"
    const uint64_t axes[] = {stage.degrees.data, stage.degrees.tensor};
    const std::vector<int32_t> ranks(stage.ranks.begin(), stage.ranks.end());
    hetcomm_placement_t placements[2] = {{.kind = HETCOMM_PLACEMENT_PARTIAL, .split = 1},
                                         {.kind = HETCOMM_PLACEMENT_REPLICATE, .split = 1}};
    if (wish.is_cut) placements[1].kind = HETCOMM_PLACEMENT_SHARD;
    ASSERT_EQ(hetcomm_layout_from_mesh(wish.shape.size(), wish.shape.data(), 2, axes, ranks.data(),
                                       placements, nullptr, &own.layout),
              HETCOMM_OK)
        << hetcomm_last_error();
    uint64_t elements = 1;
    for (const uint64_t length : wish.shape) elements *= length;
    const uint64_t first =
        wish.is_cut ? elements / stage.degrees.tensor * (place % stage.degrees.tensor) : 0;
    const uint64_t count = wish.is_cut ? elements / stage.degrees.tensor : elements;
    own.data.resize(count);
    for (uint64_t i = 0; i < count; ++i) own.places.emplace_back(i, first + i);
  }

  const PipelinePlan& plan_;
  const uint32_t rank_;
  std::vector<Own> own_;
};

Ran give(hetcomm_pipeline_t* handle, const std::vector<hetcomm_pipeline_gradient_t>& list,
         uint64_t timeout_ns = 0) {
  Ran ran;
  ran.status = hetcomm_pipeline_set_gradients(handle, list.empty() ? nullptr : list.data(),
                                              list.size(), timeout_ns);
  if (ran.status != HETCOMM_OK) ran.text = hetcomm_pipeline_last_error();
  return ran;
}

// A small one and a large one of each item.
std::vector<Wish> wishes_of(uint32_t items) {
  std::vector<Wish> wishes;
  for (uint32_t item = 0; item < items; ++item) {
    wishes.push_back({.item = item, .index = 0, .shape = {4, 6}});
    wishes.push_back({.item = item, .index = 1, .shape = {64}, .is_cut = false});
  }
  return wishes;
}

void train_and_check(Member& me, const PipelinePlan& plan, const std::vector<Wish>& wishes,
                     int runs = 3) {
  Gradients gradients(plan, static_cast<uint32_t>(me.rank()), wishes);
  Trained own(me, plan);
  const Ran given = give(own.handle, gradients.list());
  ASSERT_EQ(given.status, HETCOMM_OK) << given.text;
  // Until the last backward step of their stage, in odd steps until the callback after it, they
  // have other values.
  std::map<uint32_t, uint32_t> steps;      // by stage
  std::map<uint32_t, uint32_t> announced;  // likewise
  const uint32_t p = own.model.pipeline();
  own.model.before = [&](const hetcomm_pipeline_action_t& action) {
    const bool ends =
        action.kind == HETCOMM_PIPELINE_BACKWARD || action.kind == HETCOMM_PIPELINE_WEIGHT_GRAD;
    if (ends && ++steps[action.stage] == plan.pipelines[p].micro_batches) {
      if (action.step % 2 == 0) gradients.fill_stage(p, action.stage, action.step);
      steps[action.stage] = 0;
    }
    if (action.kind == HETCOMM_PIPELINE_REDUCE_GRAD) {
      EXPECT_EQ(steps[action.stage], 0u);
      ++announced[action.stage];
      if (action.step % 2 == 1) gradients.fill_stage(p, action.stage, action.step);
    }
    return HETCOMM_OK;
  };
  for (uint64_t step = 0; step < static_cast<uint64_t>(runs); ++step) {
    gradients.fill(step + 77);
    announced.clear();
    const Ran ran = own.run(step);
    ASSERT_EQ(ran.status, HETCOMM_OK) << ran.text;
    for (const auto& [stage, times] : announced) EXPECT_EQ(times, 1u) << stage;
    gradients.expect_sums(step);
  }
}

TEST_P(PipelineGradients, DataParallelRanksSumTheirGradients) {
  for (const char* schedule : {"1f1b", "zb-h1", "gpipe"}) {
    const std::vector<StageWish> stages = {
        {.ranks = {0, 1, 2, 3}, .degrees = {.data = 2, .tensor = 2}},
        {.ranks = {4, 5}, .degrees = {.data = 2}}};
    const PipelinePlan plan = plan_of(stages, schedule, 4);
    run(6, [&](Member& me) { train_and_check(me, plan, wishes_of(2)); });
  }
}

// The whole model in one stage, in two stages with another tensor degree, and in chunks.
TEST_P(PipelineGradients, PipelinesOfDifferentDepthAndDegreesSumTheirGradients) {
  PipelinePlan plan =
      plan_of({{.ranks = {0, 1}, .degrees = {.tensor = 2}}, {.ranks = {2}}}, "1f1b", 3);
  PipelinePlan chunks = plan_of(on_ranks({3, 4, 4, 3}), "zb-v", 5);
  PipelinePlan whole = plan_of({{.ranks = {5, 6}, .degrees = {.data = 2}}}, "1f1b", 2);
  plan.items = 4;
  plan.pipelines[0].stages[0].items_end = 1;
  plan.pipelines[0].stages[1].items_begin = 1;
  plan.pipelines[0].stages[1].items_end = 4;
  whole.pipelines[0].stages[0].items_end = 4;
  for (const PipelinePlan& each : {chunks, whole}) {
    plan.pipelines.push_back(each.pipelines.front());
    plan.training.global_batch += each.training.global_batch;
  }
  plan.ranks.resize(7, plan.ranks.front());
  std::vector<Wish> wishes = wishes_of(4);
  // Added in its place.
  wishes.push_back({.item = 2, .index = 2, .shape = {128, 512}});
  run(7, [&](Member& me) { train_and_check(me, plan, wishes); });
}

// One rank is in a set with each of two copies: it must not form one sum where the other set still
// reads.
TEST_P(PipelineGradients, LargeGradientsAreSummedInPlaceUnlessAnotherSetReadsThem) {
  PipelinePlan plan = plan_of({{.ranks = {0, 1}, .degrees = {.tensor = 2}}}, "1f1b", 3);
  const PipelinePlan more = plan_of(on_ranks({2}), "1f1b", 3);
  plan.pipelines.push_back(more.pipelines.front());
  plan.training.global_batch += more.training.global_batch;
  plan.ranks.resize(3, plan.ranks.front());
  const std::vector<Wish> wishes = {{.item = 0, .index = 0, .shape = {1 << 16}, .is_cut = false},
                                    {.item = 0, .index = 1, .shape = {1 << 16}}};
  run(3, [&](Member& me) {
    train_and_check(me, plan, wishes);
    // Nothing of the pieces that are cut is packed.
    Gradients cut(plan, static_cast<uint32_t>(me.rank()), {wishes[1]});
    Trained own(me, plan);
    hetcomm_pipeline_facts_t before{};
    before.struct_size = sizeof(before);
    ASSERT_EQ(hetcomm_pipeline_facts(own.handle, &before), HETCOMM_OK);
    ASSERT_EQ(give(own.handle, cut.list()).status, HETCOMM_OK);
    hetcomm_pipeline_facts_t after = before;
    ASSERT_EQ(hetcomm_pipeline_facts(own.handle, &after), HETCOMM_OK);
    EXPECT_EQ(after.buffer_bytes, before.buffer_bytes);
  });
}

TEST_P(PipelineGradients, GradientListsCanBeReplacedWithoutLeaking) {
  const PipelinePlan plan = plan_of({{.ranks = {0, 1}, .degrees = {.data = 2}}}, "1f1b", 2);
  run(2, [&](Member& me) {
    Gradients gradients(plan, static_cast<uint32_t>(me.rank()), wishes_of(1));
    Trained own(me, plan);
    uint64_t before = 0;
    constexpr uint64_t kTimes = kSanitized ? 20 : 120;
    for (uint64_t i = 0; i < kTimes; ++i) {
      ASSERT_EQ(give(own.handle, gradients.list()).status, HETCOMM_OK);
      gradients.fill(i);
      ASSERT_EQ(own.run(i).status, HETCOMM_OK);
      gradients.expect_sums(i);
      if (i == kTimes / 4) before = resident_bytes();
    }
    // Sanitizers keep a part of each handle.
    if (!kSanitized) {
      EXPECT_LT(resident_bytes(), before + (uint64_t{512} << 10));
    }
  });
}

TEST_P(PipelineGradients, SetGradientsWithoutOneRankEndsThePipeline) {
  const PipelinePlan plan = plan_of(on_ranks({0, 1}), "1f1b", 2);
  run(2, [&](Member& me) {
    Trained own(me, plan);
    if (me.rank() == 0) {
      EXPECT_EQ(give(own.handle, {}, 100 * kMs).status, HETCOMM_TIMED_OUT);
      EXPECT_EQ(own.run(0).status, HETCOMM_TIMED_OUT);
    }
    EXPECT_TRUE(me.meet());
    if (me.rank() == 1) {
      EXPECT_NE(own.run(0).status, HETCOMM_OK);
    }
    EXPECT_TRUE(me.meet());
  });
}

TEST_P(PipelineGradients, StagesSharingAnItemSumTheirGradients) {
  PipelinePlan plan = plan_of(on_ranks({0, 1, 2}), "1f1b", 3);
  plan.shared.push_back({.item = 0, .holders = {{0, 0}, {0, 2}}});
  run(3, [&](Member& me) { train_and_check(me, plan, wishes_of(3)); });
}

TEST_P(PipelineGradients, EvaluationSumsNoGradientsAndANewListReplacesTheOld) {
  const PipelinePlan plan =
      plan_of({{.ranks = {0, 1}, .degrees = {.data = 2}}, {.ranks = {2}}}, "1f1b", 4);
  run(3, [&](Member& me) {
    const auto rank = static_cast<uint32_t>(me.rank());
    Gradients first(plan, rank, wishes_of(2));
    Gradients second(plan, rank, {{.item = 0, .index = 7, .shape = {8, 8}}});
    Trained own(me, plan);
    ASSERT_EQ(give(own.handle, first.list()).status, HETCOMM_OK);
    first.fill(1);
    hetcomm_pipeline_run_options_t evaluation = options_of(0);
    evaluation.flags = HETCOMM_PIPELINE_EVALUATE;
    ASSERT_EQ(own.run(evaluation).status, HETCOMM_OK);
    first.expect_as_filled(1);
    ASSERT_EQ(own.run(1).status, HETCOMM_OK);
    first.expect_sums(1);
    ASSERT_EQ(give(own.handle, second.list()).status, HETCOMM_OK);
    first.fill(2);
    second.fill(2);
    ASSERT_EQ(own.run(2).status, HETCOMM_OK);
    first.expect_as_filled(2);
    second.expect_sums(2);
    // The sums stay when the schedule changes.
    PipelinePlan next = plan;
    next.pipelines.front().schedule.name = "zb-h1";
    ASSERT_EQ(hetcomm_pipeline_set_schedule(own.handle, pipeline::to_json(next).c_str(), 0),
              HETCOMM_OK);
    second.fill(3);
    ASSERT_EQ(own.run(3).status, HETCOMM_OK);
    second.expect_sums(3);
    ASSERT_EQ(give(own.handle, {}).status, HETCOMM_OK);
    second.fill(4);
    ASSERT_EQ(own.run(4).status, HETCOMM_OK);
    second.expect_as_filled(4);
  });
}

TEST_P(PipelineGradients, InvalidListsAreRefusedOnAllRanks) {
  const PipelinePlan plan =
      plan_of({{.ranks = {0, 1}, .degrees = {.data = 2}}, {.ranks = {2}}}, "1f1b", 3);
  run(3, [&](Member& me) {
    const auto rank = static_cast<uint32_t>(me.rank());
    Gradients good(plan, rank, wishes_of(2));
    Gradients other_shape(plan, rank,
                          {{.item = 0, .index = 0, .shape = {me.rank() == 1 ? 6u : 4u}}});
    Trained own(me, plan);
    ASSERT_EQ(give(own.handle, good.list()).status, HETCOMM_OK);
    const auto refuse = [&](const std::vector<hetcomm_pipeline_gradient_t>& list,
                            const std::string& text) {
      const Ran refused = give(own.handle, list);
      EXPECT_TRUE(refused.status == HETCOMM_INVALID_ARGUMENT || refused.status == HETCOMM_ABORTED)
          << refused.text;
      EXPECT_TRUE(has(refused.text, text)) << refused.text;
      good.fill(1);
      const Ran ran = own.run(1);
      EXPECT_EQ(ran.status, HETCOMM_OK) << ran.text;
      good.expect_sums(1);
    };
    refuse(other_shape.list(), "rank 1 has another shape or type");
    std::vector<hetcomm_pipeline_gradient_t> list = good.list();
    if (me.rank() == 1) list.pop_back();
    refuse(list, "rank 1 holds item 0, and does not give gradient 1 of it");
    list = good.list();
    if (me.rank() == 2) list[0].item = 0;
    refuse(list, "rank 2 does not hold item 0");
    list = good.list();
    if (me.rank() == 0) list[1].buffer.length = 8;
    refuse(list, "the buffer has 8 bytes, and the layout needs 512");
    list = good.list();
    if (me.rank() == 0) list[1].layout = nullptr;
    refuse(list, "layout is null");
    list = good.list();
    if (me.rank() == 0) list[1].type = 99;
    refuse(list, "there is no such type of gradients");
    list = good.list();
    if (me.rank() == 0) list[1].buffer.offset = 0;
    refuse(list, "null pointer");
    list = good.list();
    if (me.rank() == 0) list.push_back(list[0]);
    refuse(list, "is there twice");
    list = good.list();
    if (me.rank() == 2) list[0].struct_size = 1;
    refuse(list, "gradients[0].struct_size");
  });
}

hetcomm_pipeline_totals_t totals_of(double type) {
  hetcomm_pipeline_totals_t totals{};
  totals.struct_size = sizeof(totals);
  totals.norm_type = type;
  return totals;
}

// A tensor degree with copies and with cuts, data degrees, and two pipelines of different depth.
TEST_P(PipelineGradients, NormCountsEachElementOnce) {
  PipelinePlan plan =
      plan_of({{.ranks = {0, 1}, .degrees = {.data = 1, .tensor = 2}}, {.ranks = {2}}}, "1f1b", 3);
  const PipelinePlan other = plan_of({{.ranks = {3}}, {.ranks = {3}}}, "looped-bfs", 2);
  plan.pipelines.push_back(other.pipelines.front());
  plan.training.global_batch += other.training.global_batch;
  plan.ranks.resize(4, plan.ranks.front());
  std::vector<Wish> wishes = wishes_of(2);
  wishes.push_back({.item = 1, .index = 2, .shape = {300, 1024}, .is_cut = false});
  run(4, [&](Member& me) {
    Gradients gradients(plan, static_cast<uint32_t>(me.rank()), wishes);
    Trained own(me, plan);
    ASSERT_EQ(give(own.handle, gradients.list()).status, HETCOMM_OK);
    gradients.fill(5);
    ASSERT_EQ(own.run(5).status, HETCOMM_OK);
    for (const double type : {2.0, HUGE_VAL}) {
      hetcomm_pipeline_totals_t totals = totals_of(type);
      double values[] = {1.5, static_cast<double>(me.rank())};
      ASSERT_EQ(hetcomm_pipeline_total(own.handle, values, 2, &totals, 0), HETCOMM_OK)
          << hetcomm_pipeline_last_error();
      const double expected = Gradients::norm_of(plan, wishes, 5, std::isinf(type));
      EXPECT_NEAR(totals.norm / expected, 1, 1e-12);
      EXPECT_EQ(totals.has_nonfinite, 0);
      EXPECT_EQ(values[0], 6);
      EXPECT_EQ(values[1], 6);
    }
    hetcomm_pipeline_totals_t none = totals_of(0);
    none.norm = 7;
    ASSERT_EQ(hetcomm_pipeline_total(own.handle, nullptr, 0, &none, 0), HETCOMM_OK);
    EXPECT_EQ(none.norm, 0);
  });
}

TEST_P(PipelineGradients, DifferingTotalCallsAreRefusedWithoutEffect) {
  run(2, [](Member& me) {
    const PipelinePlan plan = plan_of(on_ranks({0, 1}), "1f1b", 2);
    Trained own(me, plan);
    double values[] = {1, 2, 3};
    const auto expect = [&](size_t count, double type, hetcomm_status_t first,
                            hetcomm_status_t second, const char* text) {
      hetcomm_pipeline_totals_t totals = totals_of(type);
      EXPECT_EQ(hetcomm_pipeline_total(own.handle, values, count, &totals, 0),
                me.rank() == 0 ? first : second);
      EXPECT_TRUE(has(hetcomm_pipeline_last_error(), text)) << hetcomm_pipeline_last_error();
      EXPECT_EQ(values[0], 1);
    };
    const bool is_first = me.rank() == 0;
    expect(is_first ? 1 : 2, 2, HETCOMM_MISMATCH, HETCOMM_MISMATCH, "asks for the sums of");
    expect(1, is_first ? 1 : 2, HETCOMM_MISMATCH, HETCOMM_MISMATCH, "the norm of type");
    expect(1, is_first ? -1 : 2, HETCOMM_INVALID_ARGUMENT, HETCOMM_ABORTED, "norm_type is below 0");
    expect(1, is_first ? std::nan("") : 2, HETCOMM_INVALID_ARGUMENT, HETCOMM_ABORTED, "no number");
    expect(is_first ? 5000 : 1, 2, HETCOMM_INVALID_ARGUMENT, HETCOMM_ABORTED,
           "count is above 4096");
    // Nor do other calls that all ranks have to make.
    const hetcomm_status_t other = is_first
                                       ? hetcomm_pipeline_total(own.handle, values, 3, nullptr, 0)
                                       : hetcomm_pipeline_set_gradients(own.handle, nullptr, 0, 0);
    EXPECT_EQ(other, HETCOMM_MISMATCH);
    EXPECT_TRUE(has(hetcomm_pipeline_last_error(),
                    "rank 1 calls hetcomm_pipeline_set_gradients(), and rank 0 "
                    "hetcomm_pipeline_total()"))
        << hetcomm_pipeline_last_error();
    EXPECT_EQ(own.run(0).status, HETCOMM_OK);
    EXPECT_EQ(hetcomm_pipeline_total(own.handle, values, 3, nullptr, 0), HETCOMM_OK);
    EXPECT_EQ(values[2], 6);
    EXPECT_TRUE(me.meet());
    // A rank that does not come ends the pipeline.
    if (me.rank() == 0) {
      EXPECT_EQ(hetcomm_pipeline_total(own.handle, values, 3, nullptr, 100 * kMs),
                HETCOMM_TIMED_OUT);
      EXPECT_EQ(own.run(1).status, HETCOMM_TIMED_OUT);
    }
    EXPECT_TRUE(me.meet());
  });
}

class PipelineEarlySums : public CapiTest {};
INSTANTIATE_TEST_SUITE_P(
    All, PipelineEarlySums,
    ::testing::Values(CapiCase{
        .name = "tcp", .transports = "tcp", .settings = "", .thread_progress = true}),
    capi_case_name);

// Both ranks hold both stages. The first stage goes on only when the gradients of the second one
// have been added up.
TEST_P(PipelineEarlySums, GradientsAreSummedWhileOtherStagesCompute) {
  const StageWish both{.ranks = {0, 1}, .degrees = {.data = 2}};
  const PipelinePlan plan = plan_of({both, both}, "looped-bfs", 4);
  constexpr uint64_t kElements = 1 << 15;
  run(2, [&](Member& me) {
    Gradients gradients(plan, static_cast<uint32_t>(me.rank()),
                        {{.item = 0, .index = 0, .shape = {64}, .is_cut = false},
                         {.item = 1, .index = 0, .shape = {kElements}, .is_cut = false}});
    Trained own(me, plan);
    ASSERT_EQ(give(own.handle, gradients.list()).status, HETCOMM_OK);
    const uint64_t before = traffic_with(me, 1 - me.rank());
    EXPECT_TRUE(me.meet());
    bool has_waited = false;
    own.model.before = [&](const hetcomm_pipeline_action_t& action) -> hetcomm_status_t {
      if (action.stage != 0 || action.kind != HETCOMM_PIPELINE_BACKWARD || has_waited) {
        return HETCOMM_OK;
      }
      has_waited = true;
      return wait_for_traffic(me, 1 - me.rank(), before + kElements * sizeof(uint64_t));
    };
    gradients.fill(0);
    const Ran ran = own.run(0);
    ASSERT_EQ(ran.status, HETCOMM_OK) << ran.text;
    EXPECT_TRUE(has_waited);
    gradients.expect_sums(0);
  });
}

// Three pipelines of one stage, one on each rank.
PipelinePlan plan_of_three() {
  PipelinePlan plan = plan_of(on_ranks({0}), "1f1b", 3);
  for (const uint32_t rank : {1u, 2u}) {
    const PipelinePlan more = plan_of(on_ranks({rank}), "1f1b", 3);
    plan.pipelines.push_back(more.pipelines.front());
    plan.training.global_batch += more.training.global_batch;
  }
  plan.ranks.resize(3, plan.ranks.front());
  return plan;
}

// A run whose sums end well, and then one in which rank 2 does |act| before its last step, when the
// others have started their sums, or wait for it. Calls check(rank, run) with the second one.
void end_sums(Member& me, uint64_t timeout_ns, const std::function<hetcomm_status_t(Trained&)>& act,
              const std::function<void(int rank, const Ran& ran)>& check) {
  const PipelinePlan plan = plan_of_three();
  Gradients gradients(plan, static_cast<uint32_t>(me.rank()), wishes_of(1));
  Trained own(me, plan);
  ASSERT_EQ(give(own.handle, gradients.list()).status, HETCOMM_OK);
  ASSERT_EQ(own.run(0).status, HETCOMM_OK);
  // A rank that fails early in the next run may end the last moment of this one.
  EXPECT_TRUE(me.meet());
  if (me.rank() == 2) {
    own.model.before = [&](const hetcomm_pipeline_action_t& action) {
      return action.micro_batch == 2 && action.kind == HETCOMM_PIPELINE_BACKWARD ? act(own)
                                                                                 : HETCOMM_OK;
    };
  }
  check(me.rank(), own.run(options_of(1, me.rank() == 2 ? 0 : timeout_ns)));
}

TEST_P(PipelineGradients, FailedRankEndsTheSumsOnOtherRanks) {
  run(3, [](Member& me) {
    end_sums(
        me, 0, [](Trained&) { return HETCOMM_DEVICE_LOST; },
        [](int rank, const Ran& ran) {
          EXPECT_EQ(ran.status, rank == 2 ? HETCOMM_DEVICE_LOST : HETCOMM_ABORTED) << ran.text;
          EXPECT_TRUE(has(ran.text, "micro-batch 2 in stage 0")) << ran.text;
        });
  });
}

TEST_P(PipelineGradients, CancelEndsTheSumsOnOtherRanks) {
  run(3, [](Member& me) {
    end_sums(
        me, 0, [](Trained& own) { return hetcomm_pipeline_cancel(own.handle, "seen enough"); },
        [](int, const Ran& ran) {
          EXPECT_NE(ran.status, HETCOMM_OK);
          EXPECT_TRUE(has(ran.text, "seen enough")) << ran.text;
        });
  });
}

// Rank 2 goes on when the others have given up.
TEST_P(PipelineGradients, TimeLimitEndsSumsThatWaitForARank) {
  run(3, [](Member& me) {
    bool has_met = false;
    end_sums(
        me, 100 * kMs,
        [&](Trained&) {
          has_met = true;
          EXPECT_TRUE(me.meet());
          return HETCOMM_OK;
        },
        [&](int rank, const Ran& ran) {
          // On a busy machine the run may end before rank 2 comes to its last step.
          if (rank != 2 || !has_met) {
            EXPECT_TRUE(me.meet());
          }
          EXPECT_NE(ran.status, HETCOMM_OK);
          EXPECT_TRUE(has(ran.text, "TIMED_OUT") || ran.status == HETCOMM_TIMED_OUT) << ran.text;
        });
  });
}

class PipelineGradientLosses : public CapiTest {};
INSTANTIATE_TEST_SUITE_P(All, PipelineGradientLosses, ::testing::ValuesIn(process_cases()),
                         capi_case_name);

TEST_P(PipelineGradientLosses, LostRankEndsTheSumsOnOtherRanks) {
  HETCOMM_NEEDS_RANKS();
  run(3, [](Member& me) {
    end_sums(
        me, 0,
        [&](Trained&) {
          me.die();
          return HETCOMM_OK;
        },
        [](int, const Ran& ran) {
          EXPECT_TRUE(ran.status == HETCOMM_PEER_LOST || ran.status == HETCOMM_ABORTED) << ran.text;
          EXPECT_TRUE(has(ran.text, "rank 2")) << ran.text;
        });
    me.expect_ruin();
  });
}

class PipelineGradientsOnDevices : public CapiTest {};
INSTANTIATE_TEST_SUITE_P(All, PipelineGradientsOnDevices,
                         ::testing::Values(CapiCase{
                             .name = "shm",
                             .transports = "shm",
                             .settings = "DEVICES=sim-handle:memory=4M,sim-address:memory=4M;",
                             .thread_progress = true}),
                         capi_case_name);

// The gradients of rank 0 are in the host, those of rank 1 in memory of |device|, named by plain
// pointers if |is_plain|.
void add_up_on_devices(const CapiCase& test_case, int32_t device, bool is_plain) {
  const PipelinePlan plan = plan_of({{.ranks = {0, 1}, .degrees = {.data = 2}}}, "1f1b", 2);
  run_job(test_case, 2, [&](Member& me) {
    constexpr uint64_t kShape[] = {64, 1024};
    constexpr uint64_t kElements = 64 * 1024;
    const uint64_t axes[] = {2};
    const int32_t ranks[] = {0, 1};
    const hetcomm_placement_t placement = {.kind = HETCOMM_PLACEMENT_PARTIAL, .split = 1};
    std::vector<hetcomm_pipeline_gradient_t> list;
    std::vector<hetcomm_layout_t*> layouts;
    std::vector<hetcomm_memory_t*> memories;
    // One that is added in its place, and a small one.
    for (const uint64_t rows : {64u, 2u}) {
      const uint64_t shape[] = {rows, kShape[1]};
      hetcomm_layout_t* layout = nullptr;
      ASSERT_EQ(hetcomm_layout_from_mesh(2, shape, 1, axes, ranks, &placement, nullptr, &layout),
                HETCOMM_OK);
      hetcomm_memory_t* memory = nullptr;
      ASSERT_EQ(hetcomm_memory_allocate(me.context(), me.rank() == 1 ? device : 0, kElements * 8,
                                        &memory),
                HETCOMM_OK)
          << hetcomm_last_error();
      void* address = nullptr;
      ASSERT_EQ(hetcomm_memory_address(memory, &address), HETCOMM_OK);
      hetcomm_pipeline_gradient_t gradient{};
      gradient.struct_size = sizeof(gradient);
      gradient.index = static_cast<uint32_t>(list.size());
      gradient.layout = layout;
      gradient.type = HETCOMM_UINT64;
      const uint64_t bytes = rows * kShape[1] * 8;
      gradient.buffer =
          is_plain ? hetcomm_buffer_host(address, bytes) : hetcomm_buffer_memory(memory, 0, bytes);
      list.push_back(gradient);
      layouts.push_back(layout);
      memories.push_back(memory);
    }
    {
      Trained own(me, plan);
      const Ran given = give(own.handle, list);
      ASSERT_EQ(given.status, HETCOMM_OK) << given.text;
      for (uint64_t step = 0; step < 2; ++step) {
        std::vector<uint64_t> data(kElements);
        for (uint64_t i = 0; i < kElements; ++i) {
          data[i] = (static_cast<uint64_t>(me.rank()) + 1) * i + step;
        }
        for (hetcomm_memory_t* each : memories) {
          ASSERT_EQ(hetcomm_memory_write(each, 0, data.data(), kElements * 8), HETCOMM_OK);
        }
        const Ran ran = own.run(step);
        ASSERT_EQ(ran.status, HETCOMM_OK) << ran.text;
        for (size_t at = 0; at < list.size(); ++at) {
          const uint64_t count = list[at].buffer.length / 8;
          ASSERT_EQ(hetcomm_memory_read(memories[at], 0, data.data(), count * 8), HETCOMM_OK);
          for (uint64_t i = 0; i < count; ++i)
            ASSERT_EQ(data[i], 3 * i + 2 * step) << at << ' ' << i;
        }
      }
    }
    for (hetcomm_layout_t* each : layouts) EXPECT_EQ(hetcomm_layout_destroy(each), HETCOMM_OK);
    for (hetcomm_memory_t* each : memories) EXPECT_EQ(hetcomm_memory_destroy(each), HETCOMM_OK);
  });
}

// One device's memory is known by a handle, and the other one's by an address.
TEST_P(PipelineGradientsOnDevices, GradientsInDeviceMemoryAreSummed) {
  for (const int32_t device : {1, 2}) add_up_on_devices(GetParam(), device, false);
}

TEST_P(PipelineGradientsOnDevices, GradientsAtPlainDevicePointersAreSummed) {
  add_up_on_devices(GetParam(), 2, true);
}

}  // namespace
}  // namespace hetcomm_test
