// One rank's pipeline: made from a plan, and run.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <hetcomm/pipeline.h>

#include "pipeline/plan/plan_json.h"
#include "tests/conformance/capi/pipeline/model.h"

namespace hetcomm_test {

// The transports that pipelines are tried over. Encryption is a matter of the library below, and
// takes the most time; so is the choice among several transports.
inline std::vector<CapiCase> pipeline_cases() {
  std::vector<CapiCase> few;
  for (CapiCase& each : plain_cases()) {
    if (each.alone() || each.name == "tcp_tls" || each.name == "any") continue;
    few.push_back(std::move(each));
  }
  return few;
}

// Data moves while a callback waits.
inline CapiCase moving_by_itself() {
  return {.name = "tcp", .transports = "tcp", .settings = "", .thread_progress = true};
}

// Returns the bytes that this rank has exchanged with |peer|.
inline uint64_t traffic_with(Member& me, int32_t peer) {
  hetcomm_counters_t counters[4]{};
  counters[0].struct_size = sizeof(counters[0]);
  size_t count = 0;
  EXPECT_EQ(hetcomm_communicator_counters(me.communicator(), peer, 4, counters, &count),
            HETCOMM_OK);
  uint64_t bytes = 0;
  for (size_t i = 0; i < std::min<size_t>(count, 4); ++i) {
    bytes += counters[i].bytes_sent + counters[i].bytes_received;
  }
  return bytes;
}

// Waits in a callback until that many bytes have been exchanged.
inline hetcomm_status_t wait_for_traffic(Member& me, int32_t peer, uint64_t bytes) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (traffic_with(me, peer) < bytes) {
    if (std::chrono::steady_clock::now() > deadline) return HETCOMM_TIMED_OUT;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return HETCOMM_OK;
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Made {
  hetcomm_status_t status = HETCOMM_INTERNAL;
  std::string text;
  hetcomm_pipeline_t* handle = nullptr;
};

inline Made create(Member& me, const std::string& json, Model& model) {
  Made made;
  made.status = hetcomm_pipeline_create(me.communicator(), json.c_str(), model.chunks().data(),
                                        model.chunks().size(), nullptr, &made.handle);
  if (made.status != HETCOMM_OK) made.text = hetcomm_pipeline_last_error();
  return made;
}

// Creates a pipeline, and waits until all ranks have theirs: one whose first run fails at once
// could end the creation of another.
inline Made create_together(Member& me, const std::string& json, Model& model) {
  Made made = create(me, json, model);
  EXPECT_EQ(made.status, HETCOMM_OK) << made.text;
  EXPECT_TRUE(me.meet());
  return made;
}

struct Ran {
  hetcomm_status_t status = HETCOMM_INTERNAL;
  std::string text;
};

inline Ran run_with(hetcomm_pipeline_t* handle, const hetcomm_pipeline_run_options_t& options) {
  Ran ran;
  ran.status = hetcomm_pipeline_run(handle, &options);
  if (ran.status != HETCOMM_OK) ran.text = hetcomm_pipeline_last_error();
  return ran;
}

inline hetcomm_pipeline_run_options_t options_of(uint64_t step, uint64_t timeout_ns = 0) {
  hetcomm_pipeline_run_options_t options{};
  options.struct_size = sizeof(options);
  options.step = step;
  options.timeout_ns = timeout_ns;
  return options;
}

inline Ran run_once(hetcomm_pipeline_t* handle, uint64_t step = 0, uint64_t timeout_ns = 0) {
  return run_with(handle, options_of(step, timeout_ns));
}

// A pipeline that is there, with the model that checks it.
class Trained {
 public:
  Trained(Member& me, const pipeline::PipelinePlan& plan)
      : model(plan, static_cast<uint32_t>(me.rank())) {
    handle = create_together(me, pipeline::to_json(plan), model).handle;
  }
  ~Trained() { EXPECT_EQ(hetcomm_pipeline_destroy(handle), HETCOMM_OK); }
  Trained(const Trained&) = delete;
  Trained& operator=(const Trained&) = delete;

  Ran run(uint64_t step) { return run(options_of(step)); }
  Ran run(const hetcomm_pipeline_run_options_t& options) {
    model.done.clear();
    model.evaluates = options.flags == HETCOMM_PIPELINE_EVALUATE;
    return handle == nullptr ? Ran() : run_with(handle, options);
  }

  Model model;
  hetcomm_pipeline_t* handle = nullptr;
};

// Returns the steps of |rank| as the model tells them.
inline std::vector<std::string> steps_of(const pipeline::PipelinePlan& plan, uint32_t rank,
                                         bool evaluates = false) {
  static constexpr const char* kNames[] = {"F", "B", "I", "W", "R"};
  auto views = pipeline::check_plan(plan);
  EXPECT_TRUE(views.ok()) << views.status().text();
  std::vector<std::string> steps;
  for (const pipeline::PipelineView& view : views.value()) {
    for (size_t group = 0; group < view.groups.size(); ++group) {
      const auto& ranks = view.groups[group];
      if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
      for (const pipeline::Action& each : view.schedule.actions[group]) {
        const bool computes = pipeline::is_computation(each.kind);
        if (evaluates && each.kind != pipeline::ActionKind::kForward) continue;
        steps.push_back(std::to_string(each.stage) +
                        (computes ? kNames[static_cast<int>(each.kind)] : "X") +
                        std::to_string(each.micro_batch));
      }
    }
  }
  return steps;
}

}  // namespace hetcomm_test
