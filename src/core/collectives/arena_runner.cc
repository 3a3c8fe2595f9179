#include "src/core/collectives/arena_runner.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "src/base/baton_role.h"
#include "src/reduce/reduce.h"

namespace hetcomm::collectives {
namespace {

// The maximum number of ranks in an operation that sends blocks whose lengths are not known to all
// ranks.
constexpr uint32_t kMaxRanksOfUnknownBlocks = 16;
// The maximum number of steps in one call of advance(). It is limited because the caller also has
// other work.
constexpr int kStepsAtOnce = 24;
constexpr int kLongStepsAtOnce = 1;

}  // namespace

ArenaRunner::ArenaRunner(SharedArena arena, uint32_t index, bool fences)
    : arena_(std::move(arena)),
      ranks_(arena_.ranks()),
      index_(index),
      tickets_(arena_, index),
      sleepers_(arena_, index, fences),
      copier_(arena_, index),
      layout_(ranks_, index),
      on_devices_(arena_, index, tickets_, sleepers_),
      inputs_(ranks_) {}

bool ArenaRunner::carries(const Call& call, uint32_t ranks) {
  // Operations with a requested algorithm, and monitored ones, use messages.
  if (call.algorithm != Algorithm::kChosen || call.monitored != 0) return false;
  // The longest block determines the number of chunks for all ranks. If one pair of ranks has all
  // the data, the operation takes longer with more ranks, since each block gets only a part of a
  // slot.
  return blocks_are_known(call.kind) || !sends_blocks(call.kind) ||
         ranks <= kMaxRanksOfUnknownBlocks;
}

// --- one operation ----------------------------------------------------------

void ArenaRunner::start(Task& task, TaskCopies& copies, bool checks) {
  // A sleep that was announced earlier does not cover this operation. Once the announcement is
  // withdrawn, Team::may_sleep_on() ends that sleep.
  if (sleepers_.announced()) sleepers_.end();
  task_ = &task;
  copies_ = &copies;
  check_.start(task, checks);
  layout_.start(task.problem(), tickets_.turn());
  copier_.start(layout_);
  tickets_.start();
  chunks_ = layout_.chunks_for(layout_.longest());
  published_ = reduced_ = consumed_ = 0;
  some_ask_ = is_long_ = false;
}

ArenaRunner::Outcome ArenaRunner::advance() {
  if (task_ == nullptr) return Outcome::kWaits;
  bool moved = false;
  for (int steps = 0; is_long_ ? !on_devices_.over() : consumed_ < chunks_; ++steps) {
    if (steps >= (is_long_ ? kLongStepsAtOnce : kStepsAtOnce)) return Outcome::kMoved;
    if (!(is_long_ ? on_devices_.step() : step())) {
      if (task_ == nullptr) return Outcome::kMismatch;
      return moved ? Outcome::kMoved : Outcome::kWaits;
    }
    moved = true;
  }
  tickets_.finish(is_long_ ? on_devices_.finish() : chunks_);
  task_ = nullptr;
  return Outcome::kDone;
}

// Returns the offset in each block at which |chunk| ends, or kAll for the last chunk.
uint64_t ArenaRunner::end_of(uint64_t chunk) const {
  return chunk + 1 >= chunks_ ? TaskCopies::kAll : layout_.offset(chunk + 1);
}

// Requests long chunks with a ticket that carries the call but no data.
void ArenaRunner::ask_for_long() {
  check_.write(*task_, tickets_.slot(index_, 0));
  tickets_.ask_for_long();
  published_ = 1;
}

// Switches to long chunks. Every rank does so once it has seen the first tickets of all ranks.
void ArenaRunner::change_to_long() {
  tickets_.skip();
  on_devices_.start(*task_, *copies_);
  is_long_ = true;
}

bool ArenaRunner::step() {
  if (task_->is_direct()) {
    if (published_ == 0) {
      ask_for_long();
      sleepers_.look();
      return true;
    }
  } else if (published_ < chunks_ && published_ < consumed_ + tickets_.window() &&
             copies_->loaded_to() >= end_of(published_)) {
    publish(published_++);
    sleepers_.look();
    return true;
  }
  if (layout_.two_phases()) {
    if (reduced_ < published_ && all_inputs(reduced_)) {
      if (some_ask_) {
        change_to_long();
        return true;
      }
      sum_own_share(reduced_++);
      sleepers_.look();
      return true;
    }
    if (consumed_ == reduced_ || !tickets_.all_sums(consumed_)) return false;
  } else if (!all_inputs(consumed_)) {
    return false;
  }
  if (some_ask_) {
    change_to_long();
    return true;
  }
  copier_.measure([this]() HETCOMM_UNDER_BATON { consume(consumed_); });
  copies_->final_to(end_of(consumed_++));
  return true;
}

bool ArenaRunner::all_inputs(uint64_t chunk) {
  return tickets_.all_inputs(chunk, [this, chunk](uint32_t rank) HETCOMM_UNDER_BATON {
    if (chunk != 0 || agrees(rank)) return true;
    drop();
    return false;
  });
}

// Returns whether the first chunk of another rank matches this rank's call.
bool ArenaRunner::agrees(uint32_t rank) {
  const ChunkSlot& theirs = tickets_.slot(rank, 0);
  if (!check_.is_same_call(rank, theirs)) return false;
  // A request for long chunks is ignored if this rank's call cannot use them. In that case the
  // calls of the ranks differ but are not compared, and the long slots may be too short for this
  // rank's call.
  some_ask_ = some_ask_ || (tickets_.asks_for_long(rank) && on_devices_.carries(*task_));
  if (!layout_.tells_lengths()) return true;
  uint64_t longest;
  std::memcpy(&longest, theirs.inline_bytes, sizeof(longest));
  chunks_ = std::max(chunks_, layout_.chunks_for(longest));
  const Problem& problem = task_->problem();
  const bool gathers = receives_blocks(problem.kind);
  const bool scatters = sends_blocks(problem.kind);
  if (rank == index_ || (!gathers && rank != problem.root) ||
      (!scatters && index_ != problem.root)) {
    return true;
  }
  uint64_t sent;
  std::memcpy(&sent, bytes_of(rank, 0) + layout_.length_word(scatters ? index_ : 0), sizeof(sent));
  return check_.is_same_length(rank, sent, gathers ? problem.receive_block(rank) : problem.bytes);
}

std::vector<uint32_t> ArenaRunner::missing() const {
  std::vector<uint32_t> ranks;
  if (task_ == nullptr) return ranks;
  const bool two_phases = layout_.two_phases();
  const uint64_t input = two_phases && reduced_ < published_ ? reduced_ : consumed_;
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    if (rank == index_) continue;  // from itself, this rank only awaits its own devices
    const bool late_sum = two_phases && consumed_ < reduced_ && !tickets_.has_sum(rank, consumed_);
    const bool misses = late_sum || !tickets_.has_input(rank, input);
    if (is_long_ ? on_devices_.misses(rank) : misses) ranks.push_back(rank);
  }
  return ranks;
}

// Returns whether all the data of an allreduce fits next to the ticket. The data of an allreduce
// with several chunks never does.
bool ArenaRunner::fits_inline(uint64_t length) const {
  return chunks_ == 1 && length <= ChunkSlot::kInlineBytes;
}

// --- chunks -----------------------------------------------------------------

void ArenaRunner::publish_bytes(uint64_t at, uint32_t block, uint64_t chunk, uint64_t length) {
  if (length == 0) return;
  const bool broadcast = task_->problem().kind == Kind::kBroadcast;
  const std::byte* from = broadcast ? task_->receive_address(block) : task_->send_address(block);
  copier_.write(bytes_of(index_, chunk) + at, from + layout_.offset(chunk), length);
}

void ArenaRunner::publish_block(uint32_t block, uint64_t chunk, uint64_t bytes) {
  if (layout_.tells_lengths() && chunk == 0)
    std::memcpy(bytes_of(index_, 0) + layout_.length_word(block), &bytes, sizeof(bytes));
  publish_bytes(layout_.region(block), block, chunk, layout_.length_of(bytes, chunk));
}

void ArenaRunner::publish_all_but_own_share(uint64_t chunk, uint64_t length) {
  std::byte* const out = bytes_of(index_, chunk);
  const std::byte* from = task_->send_address(0) + layout_.offset(chunk);
  const uint64_t begin = layout_.share_begin(length, index_);
  const uint64_t end = layout_.share_begin(length, index_ + 1);
  if (begin > 0) copier_.write(out, from, begin);
  if (end < length) copier_.write(out + end, from + end, length - end);
}

void ArenaRunner::publish(uint64_t chunk) {
  const Problem& problem = task_->problem();
  ChunkSlot& own = tickets_.slot(index_, chunk);
  const bool at_root = problem.rank == problem.root;
  const uint64_t length = layout_.length_of(problem.bytes, chunk);
  const WriteWay way = copier_.choose_way();
  switch (problem.kind) {
    case Kind::kBarrier:
      break;
    case Kind::kBroadcast:
      if (at_root) publish_bytes(0, 0, chunk, length);
      break;
    case Kind::kAllreduce:
      if (!layout_.two_phases()) {
        if (fits_inline(length)) {
          if (length > 0) std::memcpy(own.inline_bytes, task_->send_address(0), length);
        } else {
          publish_bytes(0, 0, chunk, length);
        }
      } else {
        publish_all_but_own_share(chunk, length);
      }
      break;
    case Kind::kReduce:
      if (!at_root) publish_bytes(0, 0, chunk, length);
      break;
    case Kind::kAllgather:
    case Kind::kAllgatherv:
    case Kind::kScan:
      publish_bytes(0, 0, chunk, length);
      break;
    case Kind::kGather:
    case Kind::kGatherv:
      if (!at_root) publish_block(0, chunk, problem.bytes);
      break;
    case Kind::kScatter:
    case Kind::kScatterv:
      if (!at_root) break;
      [[fallthrough]];
    default:
      for (uint32_t block = 0; block < ranks_; ++block) {
        if (block != index_) publish_block(block, chunk, problem.send_block(block));
      }
  }
  if (chunk == 0) {
    check_.write(*task_, own);
    if (layout_.tells_lengths()) {
      const uint64_t longest = layout_.longest();
      std::memcpy(own.inline_bytes, &longest, sizeof(longest));
    }
  }
  tickets_.give_input(chunk, way);
}

// Sums |bytes| at offset |at| in the slots of the first |ranks| ranks, in rank order. For this
// rank, the input at |own| is used instead of its slot.
void ArenaRunner::sum(std::byte* out, uint64_t bytes, uint32_t ranks, const std::byte* own,
                      uint64_t at, uint64_t chunk) {
  if (bytes == 0) return;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    inputs_[rank] = rank == index_ ? own : bytes_of(rank, chunk) + at;
    note_read(rank, chunk, bytes);
  }
  reduce::reduce(task_->reduction(), out, inputs_.data(), ranks,
                 bytes / task_->problem().element_bytes);
}

void ArenaRunner::sum_own_share(uint64_t chunk) {
  const uint64_t length = layout_.length_of(task_->problem().bytes, chunk);
  const uint64_t begin = layout_.share_begin(length, index_);
  const uint64_t end = layout_.share_begin(length, index_ + 1);
  const std::byte* from = task_->send_address(0) + layout_.offset(chunk) + begin;
  std::byte* to = task_->receive_address(0) + layout_.offset(chunk) + begin;
  if (end > begin) {
    copier_.measure([&]()
                        HETCOMM_UNDER_BATON { sum(to, end - begin, ranks_, from, begin, chunk); });
    copier_.set_way(tickets_.way_of(index_, chunk));
    copier_.write(bytes_of(index_, chunk) + begin, to, end - begin);
  }
  tickets_.give_sum(chunk);
}

// Copies the part of a block of the result that is in |chunk| from the slot of |writer|.
void ArenaRunner::copy_out(uint32_t block, uint64_t chunk, uint32_t writer) {
  const Problem& problem = task_->problem();
  const uint64_t bytes =
      receives_blocks(problem.kind) ? problem.receive_block(block) : problem.bytes;
  const uint64_t length = layout_.length_of(bytes, chunk);
  if (length == 0) return;
  const std::byte* from =
      bytes_of(writer, chunk) + layout_.region(sends_blocks(problem.kind) ? index_ : 0);
  copier_.deliver(task_->receive_address(block) + layout_.offset(chunk), from, length);
  note_read(writer, chunk, length);
}

// Copies this rank's own block. This block does not go through a slot and may be longer than the
// blocks that do. Therefore the whole rest of the block is copied with the last chunk.
void ArenaRunner::keep_own_block(uint64_t chunk) {
  const Problem& problem = task_->problem();
  const bool scatters = sends_blocks(problem.kind);
  const uint64_t bytes = scatters ? problem.send_block(index_) : problem.bytes;
  const uint64_t offset = std::min(layout_.offset(chunk), bytes);
  const uint64_t length = chunk + 1 == chunks_ ? bytes - offset : layout_.length_of(bytes, chunk);
  if (length == 0) return;
  const std::byte* from = task_->send_address(scatters ? index_ : 0) + offset;
  std::byte* to = task_->receive_address(receives_blocks(problem.kind) ? index_ : 0) + offset;
  if (to != from) copier_.deliver(to, from, length);
}

// Copies a block from each rank, or this rank's block from the root.
void ArenaRunner::consume_blocks(uint64_t chunk) {
  const Problem& problem = task_->problem();
  const bool gathers = receives_blocks(problem.kind);
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    if (!gathers && rank != problem.root) continue;
    if (rank == index_) {
      keep_own_block(chunk);
    } else {
      copy_out(gathers ? rank : 0, chunk, rank);
    }
  }
}

// Copies the shares that the other ranks have summed. This rank's own share is already in place.
void ArenaRunner::consume_shares(uint64_t chunk) {
  const uint64_t length = layout_.length_of(task_->problem().bytes, chunk);
  std::byte* to = task_->receive_address(0) + layout_.offset(chunk);
  for (uint32_t distance = 1; distance < ranks_; ++distance) {
    const uint32_t rank = (index_ + distance) % ranks_;
    const uint64_t begin = layout_.share_begin(length, rank);
    const uint64_t bytes = layout_.share_begin(length, rank + 1) - begin;
    if (bytes == 0) continue;
    copier_.deliver(to + begin, bytes_of(rank, chunk) + begin, bytes);
    note_read(rank, chunk, bytes);
  }
}

void ArenaRunner::sum_inline(std::byte* to, uint64_t length, uint64_t chunk) {
  std::array<std::byte, ChunkSlot::kInlineBytes> total;
  for (uint32_t rank = 0; rank < ranks_; ++rank)
    inputs_[rank] = tickets_.slot(rank, chunk).inline_bytes;
  reduce::reduce(task_->reduction(), total.data(), inputs_.data(), ranks_,
                 length / task_->problem().element_bytes);
  std::memcpy(to, total.data(), length);
}

void ArenaRunner::consume_sum(uint64_t chunk) {
  const Problem& problem = task_->problem();
  const uint64_t offset = layout_.offset(chunk);
  const uint64_t length = layout_.length_of(problem.bytes, chunk);
  if (length == 0) return;
  std::byte* to = task_->receive_address(0) + offset;
  const bool blocks = sends_blocks(problem.kind);
  const std::byte* own = task_->send_address(blocks ? index_ : 0) + offset;
  if (problem.kind == Kind::kAllreduce && fits_inline(length)) {
    sum_inline(to, length, chunk);
    return;
  }
  if (problem.kind == Kind::kScan) {
    const bool exclusive = problem.exclusive;
    if (exclusive && index_ == 0) return;
    sum(to, length, exclusive ? index_ : index_ + 1, own, 0, chunk);
    return;
  }
  sum(to, length, ranks_, own, blocks ? layout_.region(index_) : 0, chunk);
}

void ArenaRunner::consume(uint64_t chunk) {
  const Problem& problem = task_->problem();
  const bool at_root = problem.rank == problem.root;
  switch (problem.kind) {
    case Kind::kBarrier:
      return;
    case Kind::kBroadcast:
      if (!at_root) copy_out(0, chunk, problem.root);
      return;
    case Kind::kAllreduce:
      return layout_.two_phases() ? consume_shares(chunk) : consume_sum(chunk);
    case Kind::kReduce:
      if (at_root) consume_sum(chunk);
      return;
    case Kind::kReduceScatter:
    case Kind::kReduceScatterv:
    case Kind::kScan:
      return consume_sum(chunk);
    case Kind::kGather:
    case Kind::kGatherv:
      if (at_root) consume_blocks(chunk);
      return;
    default:
      return consume_blocks(chunk);
  }
}

}  // namespace hetcomm::collectives
