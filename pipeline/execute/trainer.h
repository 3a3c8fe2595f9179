// Trainer holds the caller's callbacks and stream, copied from the arguments of
// hetcomm_pipeline_create().
#pragma once

#include <vector>

#include <hetcomm/pipeline.h>

#include "pipeline/schedule/action.h"

namespace hetcomm::pipeline {

struct Trainer {
  std::vector<hetcomm_pipeline_chunk_t> chunks;
  hetcomm_stream_t* stream = nullptr;
  hetcomm_pipeline_pair_t pair = nullptr;
  void* pair_user_data = nullptr;
};

// Returns the callback of |chunk| for steps of |kind|, or nullptr for kinds without a callback.
const hetcomm_pipeline_callback_t* callback_of(const hetcomm_pipeline_chunk_t& chunk,
                                               ActionKind kind);

}  // namespace hetcomm::pipeline
