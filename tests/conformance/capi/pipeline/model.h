// A model whose results are known: stage s turns each element x into (s + 2) * x + s. It checks
// every element that it reads, in the callbacks of a pipeline.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <hetcomm/pipeline.h>

#include "pipeline/plan/check_plan.h"
#include "pipeline/plan/plan.h"
#include "reshard/layout.h"
#include "tests/conformance/capi/job.h"

namespace hetcomm_test {

namespace pipeline = hetcomm::pipeline;

// Returns the index in the whole tensor of each element that |rank| holds of |tensor| in |stage|,
// in the order of its memory.
inline std::vector<uint64_t> elements_of(const pipeline::PlanTensor& tensor,
                                         const pipeline::PlanStage& stage, uint32_t rank) {
  auto mesh = pipeline::mesh_of(tensor, stage);
  EXPECT_TRUE(mesh.ok()) << mesh.status().text();
  auto layout = hetcomm::reshard::layout_of(tensor.shape, mesh->mesh, mesh->placements);
  EXPECT_TRUE(layout.ok()) << layout.status().text();
  std::vector<uint64_t> elements(
      hetcomm::reshard::elements_needed(layout.value(), static_cast<int>(rank)));
  for (const auto& part : layout->parts) {
    if (part.rank != static_cast<int>(rank)) continue;
    std::vector<uint64_t> at(part.box.begin.begin(), part.box.begin.begin() + tensor.shape.size());
    for (bool done = false; !done;) {
      uint64_t whole = 0;
      uint64_t own = part.offset;
      for (size_t d = 0; d < at.size(); ++d) {
        whole = whole * tensor.shape[d] + at[d];
        own += (at[d] - part.box.begin[d]) * part.strides[d];
      }
      elements[own] = whole;
      done = true;
      for (size_t d = at.size(); d > 0 && done; --d) {
        if (++at[d - 1] < part.box.end[d - 1]) {
          done = false;
        } else {
          at[d - 1] = part.box.begin[d - 1];
        }
      }
    }
  }
  return elements;
}

// The values of element |at| of tensor |which| of a micro-batch: the activation that leaves
// |stage|, and the gradient that comes back to it.
inline uint64_t activation(uint32_t stage, uint64_t seed, uint64_t which, uint64_t at) {
  uint64_t value = (seed + 1) * 1'000'003 + which * 7919 + at;
  for (uint32_t s = 0; s <= stage; ++s) value = (s + 2) * value + s;
  return value;
}
inline uint64_t gradient(uint32_t stages, uint32_t stage, uint64_t seed, uint64_t which,
                         uint64_t at) {
  uint64_t value = (seed + 5) * 500'009 + which * 104'729 + 3 * at;
  for (uint32_t s = stages; s > stage + 1; --s) value = (s + 1) * value + 1;
  return value;
}

// One rank's share of the model.
class Model {
 public:
  Model(const pipeline::PipelinePlan& plan, uint32_t rank) : plan_(plan), rank_(rank) {
    for (size_t i = 0; i < plan.pipelines.size(); ++i) {
      const auto& stages = plan.pipelines[i].stages;
      for (uint32_t stage = 0; stage < stages.size(); ++stage) {
        const auto& ranks = stages[stage].ranks;
        if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
        pipeline_ = i;
        stages_.push_back(stage);
      }
    }
    hetcomm_pipeline_chunk_t chunk{};
    chunk.struct_size = sizeof(chunk);
    for (auto* each : {&chunk.forward, &chunk.backward, &chunk.input_grad, &chunk.weight_grad,
                       &chunk.recompute, &chunk.reduce_grad, &chunk.unshard, &chunk.reshard}) {
      *each = {.function = &Model::call, .user_data = this};
    }
    chunks_.assign(stages_.size(), chunk);
    slots_.assign(1024, kFree);
  }

  std::vector<hetcomm_pipeline_chunk_t>& chunks() { return chunks_; }
  uint32_t pipeline() const { return static_cast<uint32_t>(pipeline_); }
  // Called in each step, before it is checked.
  std::function<hetcomm_status_t(const hetcomm_pipeline_action_t&)> before;
  // The lengths of the run, by micro-batch; empty: the plan has none.
  std::vector<uint64_t> lengths;
  bool evaluates = false;
  // The steps that were performed, as "F0", "B2" and so on with their stage before: "1F0".
  std::vector<std::string> done;
  uint32_t most_slots = 0;

 private:
  static constexpr uint64_t kFree = UINT64_MAX;

  const pipeline::PlanPipeline& of() const { return plan_.pipelines[pipeline_]; }
  uint32_t stage_count() const { return static_cast<uint32_t>(of().stages.size()); }

  static hetcomm_status_t call(void* self, const hetcomm_pipeline_action_t* action) {
    return static_cast<Model*>(self)->perform(*action);
  }

  hetcomm_status_t perform(const hetcomm_pipeline_action_t& action) {
    static constexpr const char* kNames[] = {"F", "B", "I", "W", "R"};
    const bool computes = action.kind <= HETCOMM_PIPELINE_RECOMPUTE;
    done.push_back(std::to_string(action.stage) + (computes ? kNames[action.kind] : "X") +
                   std::to_string(action.micro_batch));
    if (before) {
      const hetcomm_status_t status = before(action);
      if (status != HETCOMM_OK) return status;
    }
    if (!computes) return HETCOMM_OK;
    EXPECT_EQ(action.stage, stages_[action.chunk]);
    EXPECT_EQ(action.flags, evaluates ? uint32_t{HETCOMM_PIPELINE_EVALUATE} : 0u);
    EXPECT_EQ(action.length, lengths.empty() ? 0 : lengths[action.micro_batch]);
    length_ = action.length;
    check_slot(action);
    const uint64_t seed = action.step * 1000 + action.micro_batch;
    check(action.inputs, action.input_count, false, action.stage, seed);
    const bool is_backward =
        action.kind != HETCOMM_PIPELINE_FORWARD && action.kind != HETCOMM_PIPELINE_RECOMPUTE;
    if (is_backward) {
      check(action.output_grads, action.output_grad_count, true, action.stage, seed);
    } else {
      EXPECT_EQ(action.output_grad_count, 0u);
    }
    if (action.kind == HETCOMM_PIPELINE_FORWARD) {
      EXPECT_EQ(action.output_count, tensors(false, true, action.stage).size());
      write(action.outputs, false, action.stage, seed);
    } else {
      EXPECT_EQ(action.output_count, 0u);
    }
    if (action.kind == HETCOMM_PIPELINE_BACKWARD || action.kind == HETCOMM_PIPELINE_INPUT_GRAD) {
      EXPECT_EQ(action.input_grad_count, tensors(true, true, action.stage).size());
      write(action.input_grads, true, action.stage, seed);
    } else {
      EXPECT_EQ(action.input_grad_count, 0u);
    }
    return ::testing::Test::HasFailure() ? HETCOMM_INTERNAL : HETCOMM_OK;
  }

  // An activation's slot belongs to it from F to the last step.
  void check_slot(const hetcomm_pipeline_action_t& action) {
    const uint64_t key = uint64_t{action.stage} << 32 | action.micro_batch;
    uint64_t& slot = slots_[action.slot];
    most_slots = std::max(most_slots, action.slot + 1);
    if (action.kind == HETCOMM_PIPELINE_FORWARD) {
      EXPECT_EQ(slot, kFree) << "slot " << action.slot;
      slot = key;
    } else {
      EXPECT_EQ(slot, key) << "slot " << action.slot;
    }
    const bool is_last = action.kind == HETCOMM_PIPELINE_BACKWARD ||
                         action.kind == HETCOMM_PIPELINE_WEIGHT_GRAD ||
                         of().schedule.name == "forward-only" || evaluates;
    if (is_last) slot = kFree;
  }

  struct Crossing {
    pipeline::PlanTensor tensor;  // of the micro-batch's length
    uint32_t boundary;
    uint32_t from;  // the stage that the activation leaves
    uint64_t which;
  };
  // The tensors that |stage| reads or makes, in the order in which a callback gets them.
  std::vector<Crossing> tensors(bool is_grad, bool makes, uint32_t stage) const {
    std::vector<Crossing> found;
    for (uint32_t i = 0; i < of().boundaries.size(); ++i) {
      const pipeline::PlanBoundary& boundary = of().boundaries[i];
      if ((is_grad == makes ? boundary.to : boundary.from) != stage) continue;
      for (uint64_t t = 0; t < boundary.tensors.size(); ++t) {
        if (is_grad && !boundary.tensors[t].has_gradient) continue;
        found.push_back(
            {pipeline::at_length(boundary.tensors[t], length_), i, boundary.from, i * 16 + t});
      }
    }
    return found;
  }
  uint64_t value(bool is_grad, const Crossing& crossing, uint64_t seed, uint64_t at) const {
    return is_grad ? gradient(stage_count(), crossing.from, seed, crossing.which, at)
                   : activation(crossing.from, seed, crossing.which, at);
  }

  void check(const hetcomm_pipeline_tensor_t* given, size_t count, bool is_grad, uint32_t stage,
             uint64_t seed) {
    const std::vector<Crossing> expected = tensors(is_grad, false, stage);
    ASSERT_EQ(count, expected.size());
    for (size_t i = 0; i < count; ++i) {
      const std::vector<uint64_t> elements =
          elements_of(expected[i].tensor, of().stages[stage], rank_);
      check_shape(given[i], expected[i], elements.size());
      const std::vector<uint64_t> data = contents(given[i]);
      for (size_t at = 0; at < elements.size(); ++at) {
        ASSERT_EQ(data[at], value(is_grad, expected[i], seed, elements[at]))
            << (is_grad ? "gradient" : "activation") << " of boundary " << expected[i].boundary
            << ", element " << at << ", rank " << rank_ << ", step " << done.back();
      }
    }
  }

  void write(const hetcomm_pipeline_tensor_t* given, bool is_grad, uint32_t stage, uint64_t seed) {
    const std::vector<Crossing> made = tensors(is_grad, true, stage);
    for (size_t i = 0; i < made.size(); ++i) {
      const std::vector<uint64_t> elements = elements_of(made[i].tensor, of().stages[stage], rank_);
      check_shape(given[i], made[i], elements.size());
      std::vector<uint64_t> data;
      for (const uint64_t element : elements) {
        data.push_back(value(is_grad, made[i], seed, element));
      }
      fill(given[i], data);
    }
  }

  // The CPU may touch the memory of some devices only.
  static std::vector<uint64_t> contents(const hetcomm_pipeline_tensor_t& tensor) {
    const hetcomm_buffer_t& buffer = tensor.buffer;
    std::vector<uint64_t> data(buffer.length / sizeof(uint64_t));
    if (tensor.address != nullptr) {
      std::memcpy(data.data(), tensor.address, buffer.length);
    } else {
      EXPECT_EQ(hetcomm_memory_read(buffer.memory, buffer.offset, data.data(), buffer.length),
                HETCOMM_OK)
          << hetcomm_last_error();
    }
    return data;
  }
  static void fill(const hetcomm_pipeline_tensor_t& tensor, const std::vector<uint64_t>& data) {
    const hetcomm_buffer_t& buffer = tensor.buffer;
    if (tensor.address != nullptr) {
      std::memcpy(tensor.address, data.data(), buffer.length);
    } else {
      EXPECT_EQ(hetcomm_memory_write(buffer.memory, buffer.offset, data.data(), buffer.length),
                HETCOMM_OK)
          << hetcomm_last_error();
    }
  }

  static void check_shape(const hetcomm_pipeline_tensor_t& given, const Crossing& expected,
                          size_t elements) {
    EXPECT_EQ(given.name, expected.tensor.name);
    EXPECT_EQ(given.type, expected.tensor.type);
    EXPECT_EQ(given.dimensions, expected.tensor.shape.size());
    uint64_t product = 1;
    for (uint32_t d = 0; d < given.dimensions; ++d) product *= given.shape[d];
    ASSERT_EQ(product, elements);
    ASSERT_EQ(given.buffer.length, elements * sizeof(uint64_t));
  }

  const pipeline::PipelinePlan& plan_;
  const uint32_t rank_;
  size_t pipeline_ = 0;
  uint64_t length_ = 0;  // of the step's micro-batch
  std::vector<uint32_t> stages_;
  std::vector<hetcomm_pipeline_chunk_t> chunks_;
  std::vector<uint64_t> slots_;
};

}  // namespace hetcomm_test
