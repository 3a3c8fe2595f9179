#include "pipeline/schedule/generate.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace hetcomm::pipeline {
namespace {

using Kind = ActionKind;

Status check_counts(uint64_t ranks, uint64_t chunks, uint64_t micro_batches) {
  if (ranks == 0) return Status(Code::kInvalidArgument, "a schedule needs a rank");
  if (chunks == 0) return Status(Code::kInvalidArgument, "a schedule needs a stage on each rank");
  if (ranks * chunks > kMaxStages) {
    return Status(Code::kInvalidArgument, fmt::format("a schedule has at most {} stages, not {}",
                                                      kMaxStages, ranks * chunks));
  }
  if (micro_batches == 0 || micro_batches > kMaxMicroBatches) {
    return Status(Code::kInvalidArgument,
                  fmt::format("a schedule has 1 to {} micro-batches, not {}", kMaxMicroBatches,
                              micro_batches));
  }
  if (ranks * chunks * micro_batches > kMaxSteps) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{} stages and {} micro-batches have more than {} steps",
                              ranks * chunks, micro_batches, kMaxSteps));
  }
  return {};
}

// A Writer appends actions of one rank.
class Writer {
 public:
  Writer(Schedule& schedule, uint32_t rank) : actions_(schedule.actions[rank]) {}
  void add(Kind kind, uint32_t stage, uint32_t micro_batch) {
    actions_.push_back(
        {.micro_batch = micro_batch, .stage = static_cast<uint16_t>(stage), .kind = kind});
  }
  void overlap_next() { actions_.back().overlaps_next = true; }

 private:
  std::vector<Action>& actions_;
};

Schedule empty_schedule(uint32_t ranks, uint32_t chunks, uint32_t micro_batches,
                        StageOrder order = StageOrder::kLoop) {
  return {.micro_batches = micro_batches,
          .rank_of = deal_stages(ranks, ranks * chunks, order),
          .actions = std::vector<std::vector<Action>>(ranks)};
}

Status check_entries(size_t given, size_t stages, const char* what) {
  if (given == stages) return {};
  return Status(Code::kInvalidArgument, fmt::format("{} {} for {} stages", given, what, stages));
}

// Backward writes the backward steps of one stage: B, or R, I and a delayed W.
class Backward {
 public:
  Backward(Writer& writer, uint32_t stage) : writer_(writer), stage_(stage) {}
  void split(uint32_t delay, bool recomputes) {
    splits_ = true;
    delay_ = delay;
    recomputes_ = recomputes;
  }
  void step() {
    const uint32_t at = done_++;
    if (!splits_) return writer_.add(Kind::kBackward, stage_, at);
    if (recomputes_) writer_.add(Kind::kRecompute, stage_, at);
    writer_.add(Kind::kInputGrad, stage_, at);
    if (at >= delay_) writer_.add(Kind::kWeightGrad, stage_, weights_++);
  }
  void finish() {
    while (splits_ && weights_ < done_) writer_.add(Kind::kWeightGrad, stage_, weights_++);
  }

 private:
  Writer& writer_;
  const uint32_t stage_;
  bool splits_ = false;
  bool recomputes_ = false;
  uint32_t delay_ = 0;
  uint32_t done_ = 0;
  uint32_t weights_ = 0;
};

Result<Schedule> flat_schedule(const std::vector<uint32_t>& warmups, const SplitOrder* split,
                               uint32_t micro_batches) {
  HETCOMM_RETURN_IF_ERROR(check_counts(warmups.size(), 1, micro_batches));
  if (split != nullptr) {
    HETCOMM_RETURN_IF_ERROR(check_entries(split->delays.size(), warmups.size(), "delays"));
    HETCOMM_RETURN_IF_ERROR(
        check_entries(split->recomputes.size(), warmups.size(), "choices of recomputation"));
  }
  const auto stages = static_cast<uint32_t>(warmups.size());
  Schedule schedule = empty_schedule(stages, 1, micro_batches);
  for (uint32_t stage = 0; stage < stages; ++stage) {
    if (warmups[stage] == 0) {
      return Status(Code::kInvalidArgument,
                    fmt::format("stage {} needs one warm-up step at least", stage));
    }
    schedule.actions[stage].reserve(size_t{micro_batches} * (split != nullptr ? 4 : 2));
    Writer writer(schedule, stage);
    Backward backward(writer, stage);
    if (split != nullptr) backward.split(split->delays[stage], split->recomputes[stage]);
    const uint32_t ahead = std::min(warmups[stage], micro_batches);
    for (uint32_t i = 0; i < ahead; ++i) writer.add(Kind::kForward, stage, i);
    for (uint32_t i = 0; i < micro_batches; ++i) {
      backward.step();
      if (i + ahead < micro_batches) writer.add(Kind::kForward, stage, i + ahead);
    }
    backward.finish();
  }
  return schedule;
}

// Micro-batches pass through the chunks of a rank in rounds. Step number n of one kind belongs to
// chunk n / round % chunks.
struct Rounds {
  uint32_t chunks;
  uint32_t round;  // number of micro-batches in a round
  uint32_t chunk(uint32_t n) const { return n / round % chunks; }
  uint32_t micro_batch(uint32_t n) const { return n / (round * chunks) * round + n % round; }
};

Result<Rounds> rounds_of(uint32_t ranks, uint32_t chunks, uint32_t micro_batches) {
  const uint32_t count = std::max(1u, micro_batches / ranks);
  if (micro_batches % count != 0) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("{} micro-batches on {} ranks go in {} rounds: their number must be a "
                    "multiple of that",
                    micro_batches, ranks, count));
  }
  return Rounds{chunks, micro_batches / count};
}

// Writes the steps of one rank of an interleaved schedule, which begins with |warmup| forward
// steps. With |splits|, W follows |delay| steps after I.
void write_interleaved(Writer writer, uint32_t rank, uint32_t ranks, const Rounds& rounds,
                       uint32_t steps, uint32_t warmup, bool splits, uint32_t delay) {
  const auto forward = [&](uint32_t n) {
    writer.add(Kind::kForward, rounds.chunk(n) * ranks + rank, rounds.micro_batch(n));
  };
  const auto backward = [&](Kind kind, uint32_t n) {
    const uint32_t chunk = rounds.chunks - 1 - rounds.chunk(n);
    writer.add(kind, chunk * ranks + rank, rounds.micro_batch(n));
  };
  for (uint32_t n = 0; n < warmup; ++n) forward(n);
  uint32_t weights = 0;
  for (uint32_t n = 0; n < steps; ++n) {
    if (n + warmup < steps) forward(n + warmup);
    backward(splits ? Kind::kInputGrad : Kind::kBackward, n);
    if (splits && n >= delay) backward(Kind::kWeightGrad, weights++);
  }
  while (splits && weights < steps) backward(Kind::kWeightGrad, weights++);
}

Result<Schedule> interleaved_schedule(uint32_t ranks, uint32_t chunks, uint32_t micro_batches,
                                      bool splits) {
  HETCOMM_RETURN_IF_ERROR(check_counts(ranks, chunks, micro_batches));
  Result<Rounds> rounds = rounds_of(ranks, chunks, micro_batches);
  if (!rounds.ok()) return rounds.status();
  Schedule schedule = empty_schedule(ranks, chunks, micro_batches);
  const uint32_t steps = chunks * micro_batches;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    schedule.actions[rank].reserve(size_t{steps} * (splits ? 3 : 2));
    const uint32_t warmup = (chunks - 1) * rounds->round + (splits ? 1 : 2) * (ranks - 1 - rank);
    write_interleaved(Writer(schedule, rank), rank, ranks, *rounds, steps, std::min(warmup, steps),
                      splits, rank);
  }
  return schedule;
}

// Writes the steps of a rank with two stages. For each kind of step, a stage processes the
// micro-batches in order. Steps for micro-batches that do not exist are omitted.
class VWriter {
 public:
  VWriter(Schedule& schedule, uint32_t rank)
      : writer_(schedule, rank),
        micro_batches_(schedule.micro_batches),
        stages_{rank, schedule.stages() - 1 - rank} {}

  void forward(int chunk) { add(Kind::kForward, chunk, forwards_[chunk]++); }
  void input_grad(int chunk) { add(Kind::kInputGrad, chunk, inputs_[chunk]++); }
  void weight_grad(int chunk) { add(Kind::kWeightGrad, chunk, weights_[chunk]++); }
  void both_grads(int chunk) {
    input_grad(chunk);
    weight_grad(chunk);
  }
  void backward(int chunk) {
    add(Kind::kBackward, chunk, inputs_[chunk]++);
    ++weights_[chunk];
  }
  void overlapped(int forward_chunk, int backward_chunk) {
    forward(forward_chunk);
    writer_.overlap_next();
    backward(backward_chunk);
  }
  uint32_t forwards(int chunk) const { return forwards_[chunk]; }
  bool owes_weight_grad(int chunk) const { return weights_[chunk] < inputs_[chunk]; }

 private:
  void add(Kind kind, int chunk, uint32_t micro_batch) {
    if (micro_batch < micro_batches_) writer_.add(kind, stages_[chunk], micro_batch);
  }

  Writer writer_;
  const uint32_t micro_batches_;
  const uint32_t stages_[2];
  uint32_t forwards_[2] = {};
  uint32_t inputs_[2] = {};
  uint32_t weights_[2] = {};
};

void write_zero_bubble_v(VWriter& writer, uint32_t rank, uint32_t ranks, uint32_t micro_batches) {
  // Writes the order for at least as many micro-batches as fill the pipeline. If there are fewer,
  // |writer| omits the steps of those that do not exist.
  const uint32_t full = std::max(2 * ranks - 1, micro_batches);
  for (uint32_t i = 0; i < 2 * (ranks - rank) - 1; ++i) writer.forward(0);
  for (uint32_t i = 0; i < rank; ++i) {
    writer.forward(1);
    writer.forward(0);
  }
  for (uint32_t i = rank; i < ranks; ++i) {
    writer.forward(1);
    writer.both_grads(1);
  }
  while (writer.forwards(1) < writer.forwards(0) || writer.forwards(0) < full) {
    if (writer.forwards(0) < full) writer.forward(0);
    writer.both_grads(0);
    writer.forward(1);
    writer.both_grads(1);
  }
  for (uint32_t i = 0; i < rank; ++i) {
    writer.input_grad(0);
    writer.input_grad(1);
  }
  for (uint32_t i = rank; i < ranks; ++i) writer.both_grads(0);
  while (writer.owes_weight_grad(1)) writer.weight_grad(1);
  while (writer.owes_weight_grad(0)) writer.weight_grad(0);
}

// Writes the last backward steps of a rank of DualPipe-V. From the middle on they are split, and W
// fills the gaps before I.
void write_dual_pipe_v_end(VWriter& writer, uint32_t rank, uint32_t ranks) {
  std::vector<int> owed;  // the chunk of each W that is still to be written, oldest first
  size_t paid = 0;
  const auto step = [&](int chunk, bool splits) {
    if (!splits) return writer.backward(chunk);
    writer.input_grad(chunk);
    owed.push_back(chunk);
  };
  const auto pay = [&] {
    if (paid < owed.size()) writer.weight_grad(owed[paid++]);
  };
  const uint32_t pairs = rank + 1;
  const uint32_t first_split = pairs / 2 * 2 + (rank % 2 == 0 ? 1 : 0);  // in steps, not pairs
  for (uint32_t i = 0; i < 2 * pairs; ++i) step(i % 2 == 0 ? 1 : 0, i >= first_split);
  for (uint32_t i = pairs; i < ranks; ++i) {
    pay();
    step(0, true);
  }
  for (uint32_t i = 0; i < pairs; ++i) pay();
}

void write_dual_pipe_v(VWriter& writer, uint32_t rank, uint32_t ranks, uint32_t micro_batches) {
  const uint32_t after = ranks - rank - 1;  // number of ranks after this one
  for (uint32_t i = 0; i < 2 * after; ++i) writer.forward(0);
  for (uint32_t i = 0; i <= rank; ++i) {
    writer.forward(0);
    writer.forward(1);
  }
  for (uint32_t i = 0; i < after; ++i) {
    writer.both_grads(1);
    writer.forward(1);
  }
  for (uint32_t i = 0; i < micro_batches - 2 * ranks + rank + 1; ++i) {
    if (i == 0 && after == 0) {
      // The last rank has just produced the output of this micro-batch, so overlapping would only
      // make it wait.
      writer.forward(0);
      writer.backward(1);
    } else {
      writer.overlapped(0, 1);
    }
    writer.overlapped(1, 0);
  }
  for (uint32_t i = 0; i < after; ++i) {
    writer.backward(1);
    writer.overlapped(1, 0);
  }
  write_dual_pipe_v_end(writer, rank, ranks);
}

}  // namespace

Result<Schedule> gpipe(uint32_t ranks, uint32_t micro_batches) {
  HETCOMM_RETURN_IF_ERROR(check_counts(ranks, 1, micro_batches));
  return one_f_one_b(std::vector<uint32_t>(ranks, micro_batches), micro_batches);
}

Result<Schedule> forward_only(uint32_t ranks, uint32_t chunks, uint32_t micro_batches) {
  HETCOMM_RETURN_IF_ERROR(check_counts(ranks, chunks, micro_batches));
  Schedule schedule = empty_schedule(ranks, chunks, micro_batches);
  const Rounds rounds{chunks, std::min(ranks, micro_batches)};
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    Writer writer(schedule, rank);
    const uint32_t whole = micro_batches / rounds.round * rounds.round;
    for (uint32_t n = 0; n < whole * chunks; ++n) {
      writer.add(Kind::kForward, rounds.chunk(n) * ranks + rank, rounds.micro_batch(n));
    }
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      for (uint32_t i = whole; i < micro_batches; ++i) {
        writer.add(Kind::kForward, chunk * ranks + rank, i);
      }
    }
  }
  return schedule;
}

Result<Schedule> one_f_one_b(const std::vector<uint32_t>& warmups, uint32_t micro_batches) {
  return flat_schedule(warmups, nullptr, micro_batches);
}

Result<Schedule> split_one_f_one_b(const std::vector<uint32_t>& warmups, const SplitOrder& order,
                                   uint32_t micro_batches) {
  return flat_schedule(warmups, &order, micro_batches);
}

Result<Schedule> zero_bubble_h1(uint32_t ranks, uint32_t micro_batches) {
  HETCOMM_RETURN_IF_ERROR(check_counts(ranks, 1, micro_batches));
  SplitOrder order{.delays = {}, .recomputes = std::vector<bool>(ranks)};
  std::vector<uint32_t> warmups;
  for (uint32_t stage = 0; stage < ranks; ++stage) {
    warmups.push_back(ranks - stage);
    order.delays.push_back(stage);
  }
  return split_one_f_one_b(warmups, order, micro_batches);
}

Result<Schedule> zero_bubble_h2(uint32_t ranks, uint32_t micro_batches) {
  HETCOMM_RETURN_IF_ERROR(check_counts(ranks, 1, micro_batches));
  SplitOrder order{.delays = {}, .recomputes = std::vector<bool>(ranks)};
  std::vector<uint32_t> warmups;
  for (uint32_t stage = 0; stage < ranks; ++stage) {
    warmups.push_back(2 * (ranks - stage) - 1);
    order.delays.push_back(2 * stage);
  }
  return split_one_f_one_b(warmups, order, micro_batches);
}

Result<Schedule> four_phase(const std::vector<uint32_t>& warmups,
                            const std::vector<bool>& recomputes, uint32_t micro_batches) {
  const SplitOrder order{.delays = std::vector<uint32_t>(warmups.size()), .recomputes = recomputes};
  return split_one_f_one_b(warmups, order, micro_batches);
}

Result<Schedule> looped_breadth_first(uint32_t ranks, uint32_t chunks, uint32_t micro_batches) {
  HETCOMM_RETURN_IF_ERROR(check_counts(ranks, chunks, micro_batches));
  Schedule schedule = empty_schedule(ranks, chunks, micro_batches);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    Writer writer(schedule, rank);
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      for (uint32_t i = 0; i < micro_batches; ++i) {
        writer.add(Kind::kForward, chunk * ranks + rank, i);
      }
    }
    for (uint32_t chunk = chunks; chunk-- > 0;) {
      for (uint32_t i = micro_batches; i-- > 0;) {
        writer.add(Kind::kBackward, chunk * ranks + rank, i);
      }
    }
  }
  return schedule;
}

Result<Schedule> interleaved(uint32_t ranks, uint32_t chunks, uint32_t micro_batches) {
  return interleaved_schedule(ranks, chunks, micro_batches, false);
}

Result<Schedule> interleaved_zero_bubble(uint32_t ranks, uint32_t chunks, uint32_t micro_batches) {
  return interleaved_schedule(ranks, chunks, micro_batches, true);
}

Result<Schedule> zero_bubble_v(uint32_t ranks, uint32_t micro_batches) {
  HETCOMM_RETURN_IF_ERROR(check_counts(ranks, 2, micro_batches));
  Schedule schedule = empty_schedule(ranks, 2, micro_batches, StageOrder::kV);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    VWriter writer(schedule, rank);
    write_zero_bubble_v(writer, rank, ranks, micro_batches);
  }
  return schedule;
}

Result<Schedule> dual_pipe_v(uint32_t ranks, uint32_t micro_batches) {
  HETCOMM_RETURN_IF_ERROR(check_counts(ranks, 2, micro_batches));
  if (micro_batches < 2 * ranks) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("DualPipe-V on {} ranks has {} stages and needs as many micro-batches, "
                    "not {}",
                    ranks, 2 * ranks, micro_batches));
  }
  Schedule schedule = empty_schedule(ranks, 2, micro_batches, StageOrder::kV);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    VWriter writer(schedule, rank);
    write_dual_pipe_v(writer, rank, ranks, micro_batches);
  }
  return schedule;
}

}  // namespace hetcomm::pipeline
