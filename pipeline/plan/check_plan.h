// Checks a pipeline plan, and derives from it what it does not say: groups of ranks, schedules,
// layouts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipeline/plan/plan.h"
#include "pipeline/schedule/schedule.h"
#include "reshard/mesh.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

// A pipeline of a checked plan, with what follows from it. The stages of one group are on the same
// ranks. Schedule::rank_of and Schedule::actions count groups.
struct PipelineView {
  std::vector<std::vector<uint32_t>> groups;  // ranks, in the order of the plan
  Schedule schedule;                          // of level 1, without bubbles
  // The forward steps of |schedule|. They need no more items in flight: ranks can perform them as
  // they do between the backward steps.
  Schedule evaluation;
  std::vector<uint32_t> exposed;          // H-1F1B: boundaries that no schedule can hide
  std::vector<uint32_t> in_flight;        // items by boundary of the plan; at least 1
  std::vector<uint32_t> stage_in_flight;  // items by stage but the last, to its next stage
  std::vector<uint64_t> peaks;            // most activations that live at a time, by group
  std::vector<uint64_t> stage_peaks;      // most activations that live at a time, by stage
};

// Checks |plan|. Returns a view of each of its pipelines. Fails with kInvalidArgument, and a text
// that names the entry, or the rank and the action; with kNotFound for an unknown schedule; and
// with kOutOfRange if only a limit of activations is exceeded.
Result<std::vector<PipelineView>> check_plan(const PipelinePlan& plan);

// Returns whether anything comes back over |boundary|.
bool has_gradient(const PlanBoundary& boundary);

// Returns |tensor| as a micro-batch of |length| has it.
PlanTensor at_length(PlanTensor tensor, uint64_t length);

// The mesh of a stage, and its axes' placements of a tensor.
struct TensorMesh {
  reshard::Mesh mesh;  // axes: data, context, tensor
  std::vector<reshard::Placement> placements;
};
Result<TensorMesh> mesh_of(const PlanTensor& tensor, const PlanStage& stage);

// Returns the bytes of a tensor of |type| and |shape|.
uint64_t bytes_of(int32_t type, const std::vector<uint64_t>& shape);

// Returns the shape of what each rank of |stage| holds of |tensor|.
std::vector<uint64_t> local_shape(const PlanTensor& tensor, const PlanStage& stage);

}  // namespace hetcomm::pipeline
