#include "src/core/collectives/device_runner.h"

#include "src/base/copy.h"
#include "src/reduce/reduce.h"
#include "src/system/clock.h"

namespace hetcomm::collectives {
namespace {

// These limits were measured with two OpenCL runtimes, in which each copy takes about 10 to 40 us
// in addition to the time for its bytes. With shorter copies, or data that fits in the caches,
// direct copies are no faster than stand-in memory.
constexpr uint64_t kMinCopyBytes = 256u << 10;
constexpr uint64_t kMinMovedBytes = 12u << 20;

// Returns whether other ranks read this rank's inputs.
bool others_read_inputs(const Problem& problem) {
  const bool at_root = problem.rank == problem.root;
  switch (problem.kind) {
    case Kind::kBroadcast:
    case Kind::kScatter:
      return at_root;
    case Kind::kReduce:
    case Kind::kGather:
      return !at_root;
    default:
      return true;
  }
}

bool is_same_piece(const BufferPiece& one, const BufferPiece& other) {
  return one.memory == other.memory && one.offset == other.offset;
}

}  // namespace

DeviceRunner::DeviceRunner(const SharedArena& arena, uint32_t index, ChunkTickets& tickets,
                           ArenaSleepers& sleepers)
    : arena_(arena),
      index_(index),
      tickets_(tickets),
      sleepers_(sleepers),
      layout_(arena.ranks(), index),
      inputs_(arena.ranks()) {
  static_assert(kWindow <= SlotCopies::kAtOnce);
  // Each long slot has its ticket in an ordinary slot.
  static_assert(SharedArena::kLongSlots <= SharedArena::kFewestSlots);
}

bool DeviceRunner::carries(const Task& task) const {
  const Problem& problem = task.problem();
  // In a scan, other ranks may still read a rank's input after that rank has overwritten it with
  // its sum. Factors are applied on the host before the operation.
  if (problem.kind == Kind::kBarrier || problem.kind == Kind::kScan ||
      !blocks_are_known(problem.kind) || task.call().reduction == HETCOMM_REDUCE_PREMUL_SUM) {
    return false;
  }
  const uint64_t sent = sends_blocks(problem.kind) ? problem.ranks : 1;
  const uint64_t received = receives_blocks(problem.kind) ? problem.ranks : 1;
  const uint64_t moved = problem.kind == Kind::kBroadcast ? 1 : sent + received;
  const uint64_t parts = problem.kind == Kind::kAllreduce ? problem.ranks : sent;
  return longest_block(problem) >= kMinMovedBytes / moved &&
         arena_.long_slot_bytes() / parts >= kMinCopyBytes;
}

void DeviceRunner::start(Task& task, TaskCopies& copies) {
  const Problem& problem = task.problem();
  task_ = &task;
  copies_ = &copies;
  layout_.start_long(problem, arena_.long_slot_bytes());
  sums_ = reduces(problem.kind);
  const uint32_t sent = sends_blocks(problem.kind) ? index_ : 0;
  const uint32_t received = receives_blocks(problem.kind) ? index_ : 0;
  // If the result has a stand-in, this rank's block must be copied into it, since the whole
  // stand-in is later copied to the device.
  own_block_stays_ = !task.receive().is_staged() &&
                     is_same_piece(task.send().piece_of(sent), task.receive().piece_of(received));
  chunks_ = layout_.chunks_for(layout_.longest());
  filled_ = published_ = summed_ = drained_ = consumed_ = 0;
  memory_ = nullptr;
  if (ways_.next(sums_, layout_.longest()) == WriteWay::kStreamed && others_read_inputs(problem)) {
    memory_ = copies.slots().take_memory(kWindow * arena_.long_slot_bytes());
  }
  started_ns_ = now_ns();
}

uint64_t DeviceRunner::finish() {
  ways_.note(memory_ != nullptr ? WriteWay::kStreamed : WriteWay::kCached, now_ns() - started_ns_);
  return chunks_;
}

uint64_t DeviceRunner::end_of(uint64_t chunk) const {
  return chunk + 1 == chunks_ ? TaskCopies::kAll : layout_.offset(chunk + 1);
}

bool DeviceRunner::all_inputs(uint64_t chunk) {
  return tickets_.all_inputs(chunk, [](uint32_t) { return true; });
}

bool DeviceRunner::step() {
  SlotCopies& copies = copies_->slots();
  if (consumed_ < drained_ && copies.ended(StreamDirection::kFromHost, consumed_)) {
    copies_->final_to(end_of(consumed_++));
    return true;
  }
  if (published_ < filled_ && copies.ended(StreamDirection::kToHost, published_)) {
    if (memory_ != nullptr) show_inputs(published_);
    tickets_.give_input(published_++, WriteWay::kCached);
    sleepers_.look();
    return true;
  }
  if (filled_ < chunks_ && filled_ < consumed_ + kWindow &&
      copies_->loaded_to() >= end_of(filled_)) {
    fill(filled_++);
    return true;
  }
  if (summed_ < published_ && all_inputs(summed_)) {
    if (sums_) sum(summed_);
    if (layout_.two_phases()) {
      tickets_.give_sum(summed_);
      sleepers_.look();
    }
    ++summed_;
    return true;
  }
  if (drained_ < summed_ && (!layout_.two_phases() || tickets_.all_sums(drained_))) {
    drain(drained_++);
    return true;
  }
  return false;
}

bool DeviceRunner::misses(uint32_t rank) const {
  const bool late_sum =
      layout_.two_phases() && drained_ < summed_ && !tickets_.has_sum(rank, drained_);
  return late_sum || (summed_ < chunks_ && !tickets_.has_input(rank, summed_));
}

// --- chunks -----------------------------------------------------------------

void DeviceRunner::fill_block(const Side& side, uint32_t block, uint64_t bytes, uint64_t chunk,
                              uint64_t at) {
  const uint64_t length = layout_.length_of(bytes, chunk);
  if (length == 0) return;
  side.append_range(block, layout_.offset(chunk), length, own_bytes(chunk) + at,
                    StreamDirection::kToHost, &copies_->slots().rows());
}

void DeviceRunner::drain_block(uint32_t block, uint64_t bytes, uint64_t chunk, uint32_t writer,
                               uint64_t at) {
  const uint64_t length = layout_.length_of(bytes, chunk);
  if (length == 0) return;
  task_->receive().append_range(block, layout_.offset(chunk), length, input_of(writer, chunk) + at,
                                StreamDirection::kFromHost, &copies_->slots().rows());
}

void DeviceRunner::fill(uint64_t chunk) {
  const Problem& problem = task_->problem();
  const bool at_root = problem.rank == problem.root;
  if (problem.kind == Kind::kBroadcast) {
    if (at_root) fill_block(task_->receive(), 0, problem.bytes, chunk, 0);
  } else if (!sends_blocks(problem.kind)) {
    fill_block(task_->send(), 0, problem.bytes, chunk, 0);
  } else if (problem.kind != Kind::kScatter || at_root) {
    for (uint32_t block = 0; block < problem.ranks; ++block) {
      fill_block(task_->send(), block, problem.send_block(block), chunk, layout_.region(block));
    }
  }
  copies_->slots().begin(StreamDirection::kToHost, chunk);
}

// Writes the bytes [from, to) of a chunk to this rank's slot, where other ranks read them.
void DeviceRunner::show(uint64_t chunk, uint64_t from, uint64_t to) {
  if (from < to) copy_streaming(bytes_of(index_, chunk) + from, own_bytes(chunk) + from, to - from);
}

// Calls show() for all data that this rank sends to other ranks.
void DeviceRunner::show_inputs(uint64_t chunk) {
  const Problem& problem = task_->problem();
  const uint64_t length = layout_.length_of(problem.bytes, chunk);
  if (problem.kind == Kind::kAllreduce) {
    show(chunk, 0, layout_.share_begin(length, index_));
    show(chunk, layout_.share_begin(length, index_ + 1), length);
    return;
  }
  if (!sends_blocks(problem.kind)) return show(chunk, 0, length);
  for (uint32_t block = 0; block < problem.ranks; ++block) {
    const uint64_t at = layout_.region(block);
    if (block != index_) show(chunk, at, at + layout_.length_of(problem.send_block(block), chunk));
  }
}

// Computes this rank's part of the sum, and overwrites this rank's own input to it, which no other
// rank reads.
void DeviceRunner::sum(uint64_t chunk) {
  const Problem& problem = task_->problem();
  uint64_t at = 0;
  uint64_t bytes = layout_.length_of(problem.bytes, chunk);
  if (problem.kind == Kind::kAllreduce) {
    at = layout_.share_begin(bytes, index_);
    bytes = layout_.share_begin(bytes, index_ + 1) - at;
  } else if (sends_blocks(problem.kind)) {
    at = layout_.region(index_);
  } else if (problem.rank != problem.root) {
    return;
  }
  if (bytes == 0) return;
  for (uint32_t rank = 0; rank < problem.ranks; ++rank) inputs_[rank] = input_of(rank, chunk) + at;
  reduce::reduce(task_->reduction(), own_bytes(chunk) + at, inputs_.data(), problem.ranks,
                 bytes / problem.element_bytes);
  if (memory_ != nullptr && layout_.two_phases()) show(chunk, at, at + bytes);
}

void DeviceRunner::drain(uint64_t chunk) {
  const Problem& problem = task_->problem();
  const bool at_root = problem.rank == problem.root;
  const uint64_t length = layout_.length_of(problem.bytes, chunk);
  switch (problem.kind) {
    case Kind::kBroadcast:
      if (!at_root) drain_block(0, problem.bytes, chunk, problem.root, 0);
      break;
    case Kind::kAllreduce:
      for (uint32_t rank = 0; rank < problem.ranks; ++rank) {
        const uint64_t begin = layout_.share_begin(length, rank);
        const uint64_t end = layout_.share_begin(length, rank + 1);
        if (begin == end) continue;
        task_->receive().append_range(0, layout_.offset(chunk) + begin, end - begin,
                                      input_of(rank, chunk) + begin, StreamDirection::kFromHost,
                                      &copies_->slots().rows());
      }
      break;
    case Kind::kReduce:
      if (at_root) drain_block(0, problem.bytes, chunk, index_, 0);
      break;
    case Kind::kReduceScatter:
    case Kind::kReduceScatterv:
      drain_block(0, problem.bytes, chunk, index_, layout_.region(index_));
      break;
    case Kind::kGather:
      if (at_root) drain_blocks(chunk);
      break;
    default:
      drain_blocks(chunk);
  }
  copies_->slots().begin(StreamDirection::kFromHost, chunk);
}

// Copies a block from each rank, or this rank's block from the root.
void DeviceRunner::drain_blocks(uint64_t chunk) {
  const Problem& problem = task_->problem();
  const bool gathers = receives_blocks(problem.kind);
  const uint64_t at = sends_blocks(problem.kind) ? layout_.region(index_) : 0;
  for (uint32_t rank = 0; rank < problem.ranks; ++rank) {
    if (!gathers && rank != problem.root) continue;
    if (rank == index_ && own_block_stays_) continue;
    const uint32_t block = gathers ? rank : 0;
    drain_block(block, gathers ? problem.receive_block(rank) : problem.bytes, chunk, rank, at);
  }
}

}  // namespace hetcomm::collectives
