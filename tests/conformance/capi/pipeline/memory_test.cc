// Pipelines of which one rank has no memory left in the thread that calls:
//
//   * if an allocation of a run fails, the run ends on all ranks well before its time limit
//   * so does one in which the next ones after a step fail, few or many, and its rank tells the
//     status of the step; if none succeeds any more, it ends at its time limit
//   * if an allocation of a creation or of a change of schedule fails, the call ends on all ranks,
//     and either all have what they asked for or none
//   * the pipeline can be destroyed
//
// The first allocations are tried one by one, those after them at growing distances.
#include <algorithm>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/plan/plan_json.h"
#include "tests/conformance/capi/pipeline/model.h"
#include "tests/conformance/capi/pipeline/own_pipeline.h"
#include "tests/support/counting_allocator.h"
#include "tests/support/pipeline_plans.h"

namespace hetcomm_test {
namespace {

using hetcomm::test::allocation_has_failed;
using hetcomm::test::AllocationsSucceed;
using hetcomm::test::fail_all_allocations;
using hetcomm::test::fail_allocation_after;
using hetcomm::test::fail_next_allocations;
using hetcomm::test::on_ranks;
using hetcomm::test::plan_of;
using hetcomm::test::with_lengths;
using pipeline::PipelinePlan;

constexpr int kPoorRank = 1;
constexpr uint64_t kLimitNs = 20 * kSec;
constexpr uint64_t kShortLimitNs = 5 * kSec;

class PipelineMemory : public CapiTest {};

std::vector<CapiCase> cases_in_threads() {
  std::vector<CapiCase> few;
  for (CapiCase& each : pipeline_cases()) {
    if (each.processes || each.transports != "shm") continue;
    each.settings += "TIMEOUT=60s;STALL_TIME=100ms;";  // reports of stalls need memory too
    few.push_back(std::move(each));
  }
  return few;
}
INSTANTIATE_TEST_SUITE_P(All, PipelineMemory, ::testing::ValuesIn(cases_in_threads()),
                         capi_case_name);

const PipelinePlan& three_stages() {
  static const PipelinePlan plan = plan_of(on_ranks({0, 1, 2}), "1f1b", 6);
  return plan;
}
const PipelinePlan& three_stages_otherwise() {
  static const PipelinePlan plan = plan_of(on_ranks({0, 1, 2}), "gpipe", 6);
  return plan;
}

// The runs of a plan with lengths have options that need memory.
const PipelinePlan& three_stages_with_lengths() {
  static const PipelinePlan plan = with_lengths(three_stages(), {4, 8});
  return plan;
}
const std::vector<uint64_t>& own_lengths() {
  static const std::vector<uint64_t> lengths = {8, 4, 8, 8, 4, 4};
  return lengths;
}

// The end of a call on each rank.
struct Ends {
  std::vector<Ran> ran = std::vector<Ran>(3);
  bool has_failed = false;  // an allocation of the poor rank
  double seconds = 0;       // the longest of all ranks

  bool agree() const {
    return std::all_of(ran.begin(), ran.end(), [&](const Ran& each) {
      return (each.status == HETCOMM_OK) == (ran[0].status == HETCOMM_OK);
    });
  }
  std::string text() const {
    std::string all;
    for (const Ran& each : ran) all += std::to_string(each.status) + " " + each.text + "\n";
    return all;
  }
};

// Runs |call| on this rank, on the poor one with an allocation that fails, and keeps how it ended.
class Poverty {
 public:
  explicit Poverty(int64_t allocation) : allocation_(allocation) {}

  Ran call(Member& me, const std::function<Ran()>& body) {
    const auto began = std::chrono::steady_clock::now();
    if (me.rank() == kPoorRank) fail_allocation_after(allocation_);
    Ran ran = body();
    const bool has_failed = me.rank() == kPoorRank && allocation_has_failed();
    fail_allocation_after(-1);
    fail_next_allocations(0);
    fail_all_allocations(false);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_.ran[static_cast<size_t>(me.rank())] = ran;
    ends_.has_failed = ends_.has_failed || has_failed;
    ends_.seconds = std::max(ends_.seconds, took.count());
    return ran;
  }
  const Ends& ends() const { return ends_; }

 private:
  const int64_t allocation_;
  std::mutex mutex_;
  Ends ends_;
};

using Step = std::function<hetcomm_status_t(const hetcomm_pipeline_action_t&)>;

// A run after another one. The poor rank calls |step| in each step.
Ends run_in_poverty(const CapiCase& test_case, int64_t allocation, const Step& step = nullptr,
                    uint64_t limit_ns = kLimitNs) {
  Poverty poverty(allocation);
  run_job(test_case, 3, [&](Member& me) {
    Trained trained(me, three_stages_with_lengths());
    trained.model.lengths = own_lengths();
    hetcomm_pipeline_run_options_t options = options_of(0, limit_ns);
    options.lengths = own_lengths().data();
    options.length_count = own_lengths().size();
    ASSERT_EQ(trained.run(options).status, HETCOMM_OK);
    EXPECT_TRUE(me.meet());  // a rank whose run has ended could still end those of others
    if (me.rank() == kPoorRank) trained.model.before = step;
    options.step = 1;
    poverty.call(me, [&] {
      Ran ran;
      trained.model.done.clear();
      ran.status = hetcomm_pipeline_run(trained.handle, &options);
      const AllocationsSucceed here;
      if (ran.status != HETCOMM_OK) ran.text = hetcomm_pipeline_last_error();
      return ran;
    });
    EXPECT_TRUE(me.meet());
    me.expect_ruin();  // a rank that has no memory for messages loses their sender
  });
  return poverty.ends();
}

// Takes memory away in a step that fails.
Step fail_and(const std::function<void()>& take_memory) {
  return [take_memory](const hetcomm_pipeline_action_t& action) {
    if (action.kind != HETCOMM_PIPELINE_BACKWARD || action.micro_batch != 1) return HETCOMM_OK;
    take_memory();
    return HETCOMM_DEVICE_LOST;
  };
}

TEST_P(PipelineMemory, RunEndsOnAllRanksWhicheverAllocationFails) {
  int failures = 0;
  for (int64_t allocation = 0;; allocation += 1 + allocation / 8) {
    const Ends ends = run_in_poverty(GetParam(), allocation);
    // A rank that fails at the very end may find that the others have ended their run.
    const bool at_the_end = has(ends.ran[kPoorRank].text, "to end the step");
    EXPECT_TRUE(ends.agree() || at_the_end) << "allocation " << allocation << ":\n" << ends.text();
    EXPECT_LT(ends.seconds, kLimitNs / 1e9 / 2) << "allocation " << allocation << "\n"
                                                << ends.text();
    failures += ends.ran[kPoorRank].status != HETCOMM_OK;
    if (!ends.has_failed) break;
    ASSERT_LT(allocation, 100'000);
  }
  EXPECT_GT(failures, 0);
}

TEST_P(PipelineMemory, FailedRunEndsOnAllRanksOnceMemoryReturns) {
  for (const int64_t count : {1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100}) {
    const Ends ends =
        run_in_poverty(GetParam(), -1, fail_and([&] { fail_next_allocations(count); }));
    for (const Ran& each : ends.ran) EXPECT_NE(each.status, HETCOMM_OK);
    EXPECT_EQ(ends.ran[kPoorRank].status, HETCOMM_DEVICE_LOST) << ends.text();
    EXPECT_TRUE(ends.has_failed);
    EXPECT_LT(ends.seconds, kLimitNs / 1e9 / 2) << count << " allocations:\n" << ends.text();
  }
}

TEST_P(PipelineMemory, RunWithoutMemoryEndsAtItsTimeLimit) {
  const Ends ends =
      run_in_poverty(GetParam(), -1, fail_and([] { fail_all_allocations(true); }), kShortLimitNs);
  for (const Ran& each : ends.ran) EXPECT_NE(each.status, HETCOMM_OK);
  EXPECT_EQ(ends.ran[kPoorRank].status, HETCOMM_DEVICE_LOST) << ends.text();
  EXPECT_LT(ends.seconds, 5 * kShortLimitNs / 1e9) << ends.text();
}

Ends create_in_poverty(const CapiCase& test_case, int64_t allocation) {
  Poverty poverty(allocation);
  run_job(test_case, 3, [&](Member& me) {
    Model model(three_stages(), static_cast<uint32_t>(me.rank()));
    const std::string json = pipeline::to_json(three_stages());
    hetcomm_pipeline_t* handle = nullptr;
    hetcomm_pipeline_options_t options{};
    options.struct_size = sizeof(options);
    options.timeout_ns = kSec;
    const Ran ran = poverty.call(me, [&] {
      Ran made;
      made.status = hetcomm_pipeline_create(me.communicator(), json.c_str(), model.chunks().data(),
                                            model.chunks().size(), &options, &handle);
      const AllocationsSucceed here;
      if (made.status != HETCOMM_OK) made.text = hetcomm_pipeline_last_error();
      return made;
    });
    EXPECT_EQ(handle != nullptr, ran.status == HETCOMM_OK);
    EXPECT_TRUE(me.meet());
    if (handle != nullptr && poverty.ends().agree()) {
      const Ran next = run_once(handle, 0, kLimitNs);
      EXPECT_EQ(next.status, HETCOMM_OK) << next.text;
    }
    EXPECT_EQ(hetcomm_pipeline_destroy(handle), HETCOMM_OK);
    me.expect_ruin();
  });
  return poverty.ends();
}

TEST_P(PipelineMemory, CreationEndsOnAllRanksWhicheverAllocationFails) {
  int failures = 0;
  for (int64_t allocation = 0;; allocation += 1 + allocation / 4) {
    const Ends ends = create_in_poverty(GetParam(), allocation);
    EXPECT_TRUE(ends.agree()) << "allocation " << allocation << ":\n" << ends.text();
    EXPECT_LT(ends.seconds, kLimitNs / 1e9) << "allocation " << allocation;
    failures += ends.ran[kPoorRank].status != HETCOMM_OK;
    if (!ends.has_failed) break;
    ASSERT_LT(allocation, 100'000);
  }
  EXPECT_GT(failures, 10);
}

// After a change that fails, all ranks go on with one plan, or none goes on.
Ends change_in_poverty(const CapiCase& test_case, int64_t allocation) {
  Poverty poverty(allocation);
  Poverty none(-1);
  run_job(test_case, 3, [&](Member& me) {
    Trained trained(me, three_stages());
    trained.model.done.reserve(1000);
    const std::string json = pipeline::to_json(three_stages_otherwise());
    poverty.call(me, [&] {
      Ran changed;
      changed.status = hetcomm_pipeline_set_schedule(trained.handle, json.c_str(), kSec);
      const AllocationsSucceed here;
      if (changed.status != HETCOMM_OK) changed.text = hetcomm_pipeline_last_error();
      return changed;
    });
    EXPECT_TRUE(me.meet());
    none.call(me, [&] { return trained.run(options_of(0, kLimitNs)); });
    me.expect_ruin();
  });
  EXPECT_TRUE(none.ends().agree()) << "allocation " << allocation << ":\n"
                                   << poverty.ends().text() << none.ends().text();
  EXPECT_LT(none.ends().seconds, kLimitNs / 1e9 / 2) << none.ends().text();
  return poverty.ends();
}

TEST_P(PipelineMemory, ScheduleChangeEndsOnAllRanksWhicheverAllocationFails) {
  int failures = 0;
  for (int64_t allocation = 0;; allocation += 1 + allocation / 4) {
    const Ends ends = change_in_poverty(GetParam(), allocation);
    EXPECT_LT(ends.seconds, kLimitNs / 1e9) << "allocation " << allocation;
    failures += ends.ran[kPoorRank].status != HETCOMM_OK;
    if (!ends.has_failed) break;
    ASSERT_LT(allocation, 100'000);
  }
  EXPECT_GT(failures, 10);
}

}  // namespace
}  // namespace hetcomm_test
