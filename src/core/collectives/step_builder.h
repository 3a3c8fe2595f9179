// StepBuilder builds a list of steps, round by round.
#pragma once

#include <cstdint>
#include <span>

#include "src/core/collectives/problem.h"
#include "src/core/collectives/steps.h"

namespace hetcomm::collectives {

class StepBuilder {
 public:
  // Empties |steps| and reuses its memory.
  StepBuilder(const Problem& problem, Steps& steps) : problem_(problem), steps_(steps) {
    steps_.list.clear();
    steps_.inputs.clear();
    steps_.scratch_bytes = 0;
    steps_.result = {};
  }

  // Sets the range in which the steps leave this rank's sum if it is not final yet. The sum of an
  // average must still be divided.
  void set_result(const Range& result) { steps_.result = result; }
  void send(uint32_t peer, const Range& what) { add(StepKind::kSend, peer, what); }
  void receive(uint32_t peer, const Range& where) { add(StepKind::kReceive, peer, where); }
  void copy(const Range& to, const Range& from) { add(StepKind::kCopy, problem_.rank, to, from); }
  void combine(const Range& to, const Range& first, const Range& second) {
    add(StepKind::kCombine, problem_.rank, to, first, second);
  }
  // Combines |before|, unless it is empty, with |inputs|, and rounds the result. |to| may be one of
  // the inputs, because it is written after all of them have been read.
  void reduce(const Range& to, std::span<const Range> inputs, const Range& before = {}) {
    add_reduction(StepKind::kReduce, to, inputs, before);
  }
  // Like reduce(), but does not round. |to| has wide elements.
  void reduce_wide(const Range& to, std::span<const Range> inputs, const Range& before) {
    add_reduction(StepKind::kReduceWide, to, inputs, before);
  }
  // Marks the steps that are added during its lifetime as steps that other ranks also compute.
  class Repeated {
   public:
    explicit Repeated(StepBuilder& steps) : steps_(steps) { steps_.is_repeated_ = true; }
    ~Repeated() { steps_.is_repeated_ = false; }
    Repeated(const Repeated&) = delete;
    Repeated& operator=(const Repeated&) = delete;

   private:
    StepBuilder& steps_;
  };
  // Starts a new round. Later steps begin when all earlier ones have ended.
  void next_round() { ++round_; }

  Range scratch(uint64_t length) {
    constexpr uint64_t kAlign = 64;
    const uint64_t at = steps_.scratch_bytes;
    steps_.scratch_bytes += (length + kAlign - 1) / kAlign * kAlign;
    return {BufferKind::kScratch, 0, at, length};
  }
  // Returns scratch memory for the elements of |range| before they are rounded.
  Range wide_scratch(const Range& range) {
    return scratch(range.length / problem_.element_bytes * problem_.wide_bytes);
  }

 private:
  void add(StepKind kind, uint32_t peer, const Range& to, const Range& first = {},
           const Range& second = {}) {
    // If both ranks know that a message is empty, both omit it, except in a barrier, which consists
    // of empty messages.
    if (to.length == 0 && problem_.kind != Kind::kBarrier && blocks_are_known(problem_.kind)) {
      return;
    }
    steps_.list.push_back({kind, round_, peer, to, first, second, 0, 0, is_repeated_});
  }
  void add_reduction(StepKind kind, const Range& to, std::span<const Range> inputs,
                     const Range& before) {
    if (to.length == 0) return;
    Step step{kind, round_, problem_.rank, to, before, {}};
    step.inputs_at = static_cast<uint32_t>(steps_.inputs.size());
    step.inputs = static_cast<uint32_t>(inputs.size());
    step.is_repeated = is_repeated_;
    steps_.inputs.insert(steps_.inputs.end(), inputs.begin(), inputs.end());
    steps_.list.push_back(step);
  }

  const Problem& problem_;
  Steps& steps_;
  uint32_t round_ = 0;
  bool is_repeated_ = false;
};

}  // namespace hetcomm::collectives
