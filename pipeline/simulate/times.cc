#include "pipeline/simulate/times.h"

#include <fmt/format.h>

#include "pipeline/schedule/faults.h"

namespace hetcomm::pipeline {
namespace {

constexpr uint64_t kMaxNs = uint64_t{1} << 62;

// Adds times, and records whether the sum exceeds a limit.
class Sum {
 public:
  explicit Sum(uint64_t micro_batches) : most_ns_(kMaxNs / (micro_batches + 1)) {}
  void add(uint64_t ns) {
    is_too_long_ = is_too_long_ || ns > most_ns_ || (sum_ns_ += ns) > most_ns_;
  }
  Status status() const {
    return is_too_long_ ? invalid("the times of all steps are more than 2^62 ns together")
                        : Status();
  }

 private:
  const uint64_t most_ns_;
  uint64_t sum_ns_ = 0;
  bool is_too_long_ = false;
};

void add_stages(const std::vector<StageTime>& stages, Sum& sum) {
  for (const StageTime& each : stages) {
    sum.add(each.forward_ns);
    sum.add(each.backward_ns);
    sum.add(each.input_grad_ns);
    sum.add(each.weight_grad_ns);
    sum.add(each.recompute_ns);
  }
}

}  // namespace

Status check_lengths(const StepLengths& lengths, const Schedule& schedule) {
  if (lengths.size() != schedule.ranks()) {
    return invalid(fmt::format("lengths of the steps of {} ranks for a schedule of {}",
                               lengths.size(), schedule.ranks()));
  }
  Sum sum(0);
  for (uint32_t rank = 0; rank < schedule.ranks(); ++rank) {
    if (lengths[rank].size() != schedule.actions[rank].size()) {
      return invalid(fmt::format("lengths of {} steps of rank {}, which has {}",
                                 lengths[rank].size(), rank, schedule.actions[rank].size()));
    }
    for (const uint64_t each : lengths[rank]) sum.add(each);
  }
  return sum.status();
}

Status check_length(const std::vector<StageTime>& stages, uint64_t micro_batches) {
  Sum sum(micro_batches);
  add_stages(stages, sum);
  return sum.status();
}

Status check_length(const PipelineTimes& times, uint64_t micro_batches) {
  Sum sum(micro_batches);
  add_stages(times.stages, sum);
  for (const auto* boundaries : {&times.forward, &times.backward}) {
    for (const BoundaryTime& each : *boundaries) {
      sum.add(each.busy_ns);
      sum.add(each.latency_ns);
    }
  }
  return sum.status();
}

}  // namespace hetcomm::pipeline
