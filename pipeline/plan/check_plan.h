// Checks a pipeline plan, and derives groups of ranks, schedules and layouts from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipeline/plan/plan.h"
#include "pipeline/schedule/schedule.h"
#include "reshard/mesh.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

// A pipeline of a checked plan, with everything that is derived from it. The stages of one group
// are on the same ranks. In Schedule::rank_of and Schedule::actions, a rank is the index of a
// group.
struct PipelineView {
  std::vector<std::vector<uint32_t>> groups;  // the ranks of each group, in the order of the plan
  Schedule schedule;                          // of level 1, without bubbles
  // The forward steps of |schedule|. They need no more items in flight than |schedule|, since ranks
  // can run them in the same order as there.
  Schedule evaluation;
  std::vector<uint32_t> exposed;          // H-1F1B: boundaries that no schedule can hide
  std::vector<uint32_t> in_flight;        // items, indexed by boundary of the plan; at least 1
  std::vector<uint32_t> stage_in_flight;  // items from each stage to the next one, indexed by stage
  std::vector<uint64_t> peaks;            // maximum number of live activations, indexed by group
  std::vector<uint64_t> stage_peaks;      // maximum number of live activations, indexed by stage
};

// Checks |plan|. Returns a view of each of its pipelines. Fails with kInvalidArgument and an error
// text that names the entry, or the rank and the action. Fails with kNotFound for an unknown
// schedule, and with kOutOfRange if only a limit of activations is exceeded.
Result<std::vector<PipelineView>> check_plan(const PipelinePlan& plan);

// Returns whether any gradient is sent back over |boundary|.
bool has_gradient(const PlanBoundary& boundary);

// Returns |tensor| with the shape that it has in a micro-batch of |length|.
PlanTensor at_length(PlanTensor tensor, uint64_t length);

// The mesh of a stage, and the placement of a tensor for each of its axes.
struct TensorMesh {
  reshard::Mesh mesh;  // axes: data, context, tensor
  std::vector<reshard::Placement> placements;
};
Result<TensorMesh> mesh_of(const PlanTensor& tensor, const PlanStage& stage);

// Returns the size in bytes of a tensor of |type| and |shape|.
uint64_t bytes_of(int32_t type, const std::vector<uint64_t>& shape);

// Returns the shape of the part of |tensor| that each rank of |stage| holds.
std::vector<uint64_t> local_shape(const PlanTensor& tensor, const PlanStage& stage);

}  // namespace hetcomm::pipeline
