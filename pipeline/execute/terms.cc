#include "pipeline/execute/terms.h"

#include <optional>
#include <utility>

#include <fmt/format.h>

#include "pipeline/execute/api.h"

namespace hetcomm::pipeline {
namespace {

// The words of all ranks are reduced to their maxima. A word and its complement therefore give the
// maximum and the minimum of a value.
constexpr size_t kStep = 0;
constexpr size_t kKind = 2;
// From here on there are two words for each micro-batch of each pipeline with lengths: 1 + the
// index of the micro-batch's length, and the complement of that. Both are 0 on a rank that does not
// have the length.
constexpr size_t kLengths = 4;

size_t words_of(const PlanPipeline& pipeline) {
  return pipeline.lengths.empty() ? 0 : 2 * size_t{pipeline.micro_batches};
}

}  // namespace

Status Terms::tell(hetcomm_communicator_t* communicator, const PipelinePlan& plan,
                   uint32_t pipeline, const RunTerms& own, uint64_t timeout_ns) {
  plan_ = &plan;
  pipeline_ = pipeline;
  lengths_.clear();
  size_t words = kLengths;
  size_t first = 0;
  for (size_t i = 0; i < plan.pipelines.size(); ++i) {
    if (i == pipeline) first = words;
    words += words_of(plan.pipelines[i]);
  }
  own_.assign(words, 0);
  most_.assign(words, 0);
  const auto write = [&](size_t at, uint64_t value) {
    own_[at] = value;
    own_[at + 1] = ~value;
  };
  write(kStep, own.step);
  write(kKind, static_cast<uint64_t>(own.kind));
  for (size_t i = 0; i < own.lengths.size(); ++i)
    write(first + 2 * i, 1 + uint64_t{own.lengths[i]});
  hetcomm_collective_options_t options{};
  options.struct_size = sizeof(options);
  options.timeout_ns = timeout_ns;
  const size_t bytes = words * sizeof(uint64_t);
  return of_call(hetcomm_allreduce(communicator, hetcomm_buffer_host(own_.data(), bytes),
                                   hetcomm_buffer_host(most_.data(), bytes), HETCOMM_UINT64,
                                   HETCOMM_REDUCE_MAX, &options, &request_));
}

Status Terms::look() {
  if (request_ == nullptr) return {};
  const Result<bool> told = test_and_clear(request_);
  if (!told.ok()) return told.status();
  return told.value() ? compare() : Status();
}

Status Terms::settle(const Patience& patience) {
  if (request_ == nullptr) return {};
  HETCOMM_RETURN_IF_ERROR(wait_patiently(patience, request_));
  return compare();
}

Status Terms::wait_for(hetcomm_request_t*& request, const Patience& patience) {
  while (request != nullptr && request_ != nullptr) {
    HETCOMM_RETURN_IF_ERROR(
        wait_patiently(patience, [&](uint64_t ns) { return wait_any(request, ns); }));
  }
  return request == nullptr ? Status() : wait_patiently(patience, request);
}

// Waits for |request| or the terms, and compares the terms if they have arrived. Returns nullopt if
// neither wait ends in time.
std::optional<Status> Terms::wait_any(hetcomm_request_t*& request, uint64_t timeout_ns) {
  hetcomm_request_t* const both[] = {request, request_};
  size_t index = 0;
  hetcomm_completion_t completion;
  Status ended = of_call(hetcomm_request_wait_any(2, both, timeout_ns, &index, &completion));
  if (ended.code() == Code::kTimedOut) return std::nullopt;
  if (!ended.ok()) return ended;
  (index == 0 ? request : request_) = nullptr;
  ended = of_operation(completion);
  return ended.ok() && index == 1 ? compare() : ended;
}

void Terms::drain() { pipeline::drain(request_); }

Status Terms::compare() {
  const uint64_t first_step = ~most_[kStep + 1];
  if (first_step != most_[kStep]) {
    return {Code::kMismatch, fmt::format("ranks run different steps of the training, from {} to {}",
                                         first_step, most_[kStep])};
  }
  if (~most_[kKind + 1] != most_[kKind]) {
    return {Code::kMismatch, "some ranks train, and others evaluate"};
  }
  size_t first = kLengths;
  for (uint32_t i = 0; i < plan_->pipelines.size(); ++i) {
    HETCOMM_RETURN_IF_ERROR(compare_lengths(i, first));
    first += words_of(plan_->pipelines[i]);
  }
  return {};
}

Status Terms::compare_lengths(uint32_t pipeline, size_t first) {
  const PlanPipeline& of = plan_->pipelines[pipeline];
  if (of.lengths.empty()) return {};
  for (uint32_t i = 0; i < of.micro_batches; ++i) {
    const uint64_t most = most_[first + 2 * i];
    const uint64_t least = ~most_[first + 2 * i + 1];
    const auto where = [&] { return fmt::format("micro-batch {} of pipeline {}", i, pipeline); };
    if (most == 0) {
      return {Code::kMismatch, fmt::format("no rank knows the length of {}", where())};
    }
    if (least != most) {
      return {Code::kMismatch, fmt::format("ranks have different lengths for {}: {} and {}",
                                           where(), of.lengths[least - 1], of.lengths[most - 1])};
    }
    if (pipeline == pipeline_) lengths_.push_back(static_cast<uint8_t>(most - 1));
  }
  return {};
}

}  // namespace hetcomm::pipeline
