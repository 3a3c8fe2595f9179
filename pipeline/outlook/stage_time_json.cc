#include "pipeline/outlook/stage_time_json.h"

namespace hetcomm::pipeline {

StageTime read_stage_time(present::Fields fields) {
  fields.allow_only(
      {"forward_ns", "backward_ns", "input_grad_ns", "weight_grad_ns", "recompute_ns"});
  StageTime time;
  time.forward_ns = fields.number("forward_ns", kMaxNs);
  time.backward_ns = fields.number("backward_ns", kMaxNs);
  time.input_grad_ns = fields.number("input_grad_ns", kMaxNs);
  time.weight_grad_ns = fields.number("weight_grad_ns", kMaxNs);
  time.recompute_ns =
      fields.has("recompute_ns") ? fields.number("recompute_ns", kMaxNs) : time.forward_ns;
  const bool has_whole = fields.has("backward_ns");
  const bool has_input = fields.has("input_grad_ns");
  const bool has_weight = fields.has("weight_grad_ns");
  if (!has_whole) {
    time.backward_ns = time.input_grad_ns + time.weight_grad_ns;
  } else if (time.input_grad_ns > time.backward_ns || time.weight_grad_ns > time.backward_ns) {
    fields.fail("backward_ns", "is shorter than a part of it");
  } else if (!has_input && !has_weight) {
    time.weight_grad_ns = time.backward_ns / 2;
    time.input_grad_ns = time.backward_ns - time.weight_grad_ns;
  } else if (!has_input) {
    time.input_grad_ns = time.backward_ns - time.weight_grad_ns;
  } else if (!has_weight) {
    time.weight_grad_ns = time.backward_ns - time.input_grad_ns;
  }
  return time;
}

}  // namespace hetcomm::pipeline
