#include "src/core/collectives/collective.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/base/baton_role.h"
#include "src/base/text.h"
#include "src/core/collectives/collectives.h"
#include "src/core/collectives/team.h"

namespace hetcomm::collectives {

void Collective::reset() {
  for (size_t slot = 0; slot < scratch_.size(); ++slot) give_scratch(slot);
  owner_ = nullptr;
  team_ = nullptr;
  operation_ = nullptr;
  task_.reset();
  in_arena_ = ready_ = false;
  state_ = State::kQueued;
  copies_.reset();
  slow_call_ = {};
  forsaken_ns_ = 0;
  code_ = Code::kOk;
  text_.clear();
}

Code Collective::set_up(Collectives& owner, const Arguments& arguments, std::string* text) {
  owner_ = &owner;
  const JobMember& communicator = owner.communicator();
  return task_.set_up(communicator.rank_of(owner.job().rank()),
                      static_cast<int32_t>(communicator.ranks().size()), arguments, text);
}

void Collective::attach(Operation& operation) {
  operation_ = &operation;
  for (const Side* side : {&task_.send(), &task_.receive()})
    side->append_pieces(&operation.buffers.pieces);
  for (const BufferPiece& piece : operation.buffers.pieces) piece.memory->add_use();
}

// Starts the operation. If memory runs out, notifies the other ranks, which wait for this one.
Status Collective::begin(Operation& operation) {
  try {
    return owner_->start(operation);
  } catch (const std::bad_alloc&) {
    // If the operation has already joined its team, the other ranks are notified when
    // OperationEnder ends it.
    if (operation.phase == OperationPhase::kSubmitted) {
      owner_->fail(Code::kOutOfMemory, "there was no memory to start an operation");
    }
    throw;
  }
}

// --- life -------------------------------------------------------------------

DataServices& Collective::data() const { return owner_->job().data(); }

void Collective::join(Team& team, uint64_t sequence) {
  team_ = &team;
  task_.set_sequence(sequence);
  task_.set_links(owner_->job().peers().link_model_hash());
  operation_->phase = OperationPhase::kCollective;
}

void Collective::start(bool in_arena) {
  // A message from another rank may have ended the operation while it was queued.
  if (state_ != State::kQueued) return;
  in_arena_ = in_arena;
  // The time in the queue does not make this call slow, since it is due to earlier operations.
  slow_call_.start(data().now_ns());
  try {
    load();
  } catch (const std::bad_alloc&) {
    give_up(Code::kOutOfMemory, "out of memory");
  }
}

void Collective::load() {
  state_ = State::kLoading;
  Side& send = task_.send();
  Side& receive = task_.receive();
  // Another rank's devices may cause all ranks to switch to long chunks.
  const bool may_be_long = in_arena_ && team_->arena_serves_devices(task_);
  if (may_be_long) {
    send.go_direct(data().staging);
    receive.go_direct(data().staging);
  }
  bool room = !receive.is_staged() || receive.make_room(data().staging);
  if (send.is_staged()) {
    std::byte* const shared = receive.is_staged() && room ? task_.room_in_result() : nullptr;
    if (shared != nullptr) {
      send.share_room(shared);
    } else {
      room = room && send.make_room(data().staging);
    }
  }
  if (!room) {
    give_up(Code::kOutOfMemory, "out of memory");
    return;
  }
  if (!in_arena_) task_.choose_algorithm(team_->placement());
  if (send.is_staged() || receive.is_staged() || may_be_long) {
    const bool cuts = in_arena_ || (!scales() && count_segments(task_.problem()) > 1);
    copies_.start(task_, data().staging, cuts, *this);
  }
  if (!scales() || copies_.loaded_to() == TaskCopies::kAll) begin_moving();
}

void Collective::on_slice(const Status& status) {
  if (state_ == State::kEnding) {
    try_to_end();
    return;
  }
  if (!status.ok()) {
    give_up(status.code(), status.text());
    return;
  }
  if (state_ == State::kStoring) {
    if (copies_.stored()) finish();
    return;
  }
  note_ready();
}

// Returns whether the data is multiplied before it is sent. A reduction that rounds multiplies
// while it sums instead.
bool Collective::scales() const {
  return task_.call().reduction == HETCOMM_REDUCE_PREMUL_SUM && !task_.problem().rounds;
}

void Collective::begin_moving() {
  state_ = State::kMoving;
  if (!scale()) {
    give_up(Code::kOutOfMemory, "out of memory");
    return;
  }
  if (in_arena_) {
    team_->begin_in_arena();
    return;
  }
  runner_.start(owner_->communicator(), *this, count_segments(task_.problem()),
                team_->tag(task_.sequence(), task_.history()));
  advance();
}

bool Collective::scale() {
  return !scales() || task_.send().scale(data().staging, task_.type(),
                                         task_.problem().element_bytes, task_.call().factor);
}

void Collective::store() {
  state_ = State::kStoring;
  copies_.final_to(TaskCopies::kAll);
  if (copies_.stored()) finish();
}

void Collective::note_ready() {
  ready_ = true;
  team_->note_ready();
}

void Collective::finish() {
  const Problem& problem = task_.problem();
  operation_->outcome.bytes_sent = task_.send().length();
  operation_->outcome.bytes_received = task_.receive().length();
  if (problem.kind == Kind::kBroadcast && problem.rank == problem.root) {
    std::swap(operation_->outcome.bytes_sent, operation_->outcome.bytes_received);
  }
  complete();
}

void Collective::complete() {
  state_ = State::kOver;
  operation_->composite = nullptr;
  data().completer.finish(*operation_);
  operation_ = nullptr;
  if (team_ != nullptr) team_->note_ready();
}

void Collective::fail(Code code, const std::string& text) {
  if (state_ == State::kEnding || state_ == State::kOver) return;
  state_ = State::kEnding;
  code_ = code;
  text_ = text_or_none([&] { return text; });
  runner_.stop();
  copies_.stop();
  try_to_end();
}

void Collective::try_to_end() {
  if (state_ != State::kEnding || !runner_.quiet() || copies_.copying()) return;
  operation_->outcome.code = code_;
  try {
    operation_->outcome.text = std::make_unique<std::string>(std::move(text_));
  } catch (const std::bad_alloc&) {
    operation_->outcome.text.reset();  // the code is reported without a text
  }
  complete();
}

// Fails the communicator's collective operations on all ranks, since other ranks may wait for this
// one.
void Collective::withdraw(Code code, const std::string& text) { owner_->fail(code, text); }

// Returns whether the operation fails without |rank|. It does not fail because of a rank that has
// left, since the data of that rank may already have arrived.
bool Collective::fails_without(int rank, bool has_left) const {
  const JobMember& communicator = owner_->communicator();
  if (has_left || !communicator.contains(rank)) return false;
  return list().empty() ||
         std::find(list().begin(), list().end(), communicator.rank_of(rank)) != list().end();
}

void Collective::end(Code code, const std::string& text) {
  const std::string own = text_or_none([&] { return text; });
  fail(code, own);
  owner_->fail(code, own);
}

uint64_t Collective::next_timer_ns() const {
  return forsaken_ns_ != 0 ? forsaken_ns_ + kReasonNs : kForever;
}

void Collective::tick(uint64_t now_ns) {
  if (state_ == State::kMoving && now_ns >= next_timer_ns()) {
    give_up(Code::kAborted, text_or_none([&]() HETCOMM_UNDER_BATON {
              return fmt::format("another rank has ended it{}",
                                 owner_->communicator().awaited_text(*operation_));
            }));
  }
}

void Collective::give_up(Code code, std::string_view why) {
  end(code,
      text_or_none([&]() HETCOMM_UNDER_BATON { return fmt::format("{}: {}", describe(), why); }));
}

void Collective::refuse_length(int32_t shown_rank, uint64_t sent, uint64_t expected) {
  give_up(Code::kMismatch, text_or_none([&] {
            return fmt::format("rank {} sent {} bytes, and {} are expected", shown_rank, sent,
                               expected);
          }));
}

std::string Collective::describe() const {
  return fmt::format("{} #{} of rank {}", collectives::describe(task_.call()), task_.sequence(),
                     owner_->communicator().rank_of(owner_->job().rank()));
}

std::vector<int> Collective::missing() const {
  std::vector<int> ranks;
  if (team_ == nullptr) return ranks;
  if (in_arena_ && state_ == State::kMoving) {
    ranks = team_->missing_in_arena();
  } else if (state_ == State::kQueued) {
    ranks = team_->missing_in_agreement();
  } else {
    for (const int rank : runner_.awaited()) ranks.push_back(owner_->communicator().rank_of(rank));
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::vector<int> Collective::awaited() const {
  std::vector<int> ranks = missing();
  if (!ranks.empty() && task_.problem().monitored && !task_.waits_for_all()) ranks.resize(1);
  for (int& rank : ranks) rank = owner_->communicator().ranks()[static_cast<size_t>(rank)];
  return ranks;
}

// --- by messages ------------------------------------------------------------

void Collective::advance() {
  ready_ = false;
  if (state_ == State::kLoading) {
    if (copies_.loaded_to() == TaskCopies::kAll) begin_moving();
    return;
  }
  if (state_ != State::kMoving || in_arena_) return;
  try {
    runner_.advance();
  } catch (const std::bad_alloc&) {
    give_up(Code::kOutOfMemory, "out of memory");
    return;
  }
  if (state_ != State::kMoving) return;
  if (runner_.done()) {
    store();
  } else if (const uint64_t oldest = runner_.oldest_segment(); copies_.stores() && oldest > 0) {
    copies_.final_to(end_of_segment(task_.problem(), oldest - 1));
  }
}

bool Collective::may_begin(uint64_t segment) {
  const uint64_t loaded = copies_.loaded_to();
  return loaded == TaskCopies::kAll || loaded >= end_of_segment(task_.problem(), segment);
}

void Collective::make_steps(uint64_t segment, Steps* steps) {
  collectives::make_steps(task_.problem(), segment, steps);
}

// Returns scratch memory. If a device may sum its contents, the memory is pinned if possible, so
// that copy engines access it at full speed.
std::byte* Collective::take_scratch(size_t slot, uint64_t bytes) {
  Scratch& own = scratch_[slot];
  const BufferPiece sent = task_.send_piece(0);
  if (reduces(task_.problem().kind) && sent.memory != nullptr &&
      owner_->job().sums().serves(sent.memory->device_index())) {
    own.pinned = data().staging.stand_in(bytes, {sent});
    if (own.pinned) return own.pinned.get();
  }
  own.pooled = PoolBytes(data().blocks, bytes);
  return own.pooled.get();
}

void Collective::give_scratch(size_t slot) {
  if (owner_ != nullptr) scratch_[slot].pooled.leave_to(data().staging.abandoned());
  scratch_[slot].pooled.reset();
  scratch_[slot].pinned.reset();
}

int Collective::job_rank(uint32_t peer) const { return team_->job_rank(peer); }

std::byte* Collective::user_address(const Range& range) const {
  std::byte* const block = range.buffer == BufferKind::kSend ? task_.send_address(range.block)
                                                             : task_.receive_address(range.block);
  return block + range.offset;
}

void Collective::runner_ready() {
  if (state_ == State::kEnding) {
    try_to_end();
  } else {
    note_ready();
  }
}

void Collective::message_failed(const Operation& message) {
  const Code code = message.outcome.code;
  if (code == Code::kCancelled || code == Code::kAborted) {
    // The other rank has ended the operation, and sends the reason over the control plane.
    if (forsaken_ns_ == 0) forsaken_ns_ = data().now_ns();
  } else if (code == Code::kOk) {
    refuse_length(owner_->communicator().rank_of(message.peer), message.outcome.bytes_sent,
                  message.length);
  } else {
    // A message is truncated if it is longer than this rank's arguments specify.
    give_up(code == Code::kTruncated ? Code::kMismatch : code, message.outcome.why());
  }
}

bool Collective::run_local(size_t slot, const Steps& steps, const Step& step,
                           const Addresses& addresses) {
  return sums_.run(slot, task_, steps, step, addresses, owner_->job().sums(), *this);
}

void Collective::on_step(size_t slot, const Status& status) {
  if (!status.ok() && state_ == State::kMoving) give_up(status.code(), status.text());
  runner_.end_local(slot);
}

void Collective::finish_segment(const Steps& steps, const Addresses& addresses) {
  const Problem& problem = task_.problem();
  if (task_.call().reduction != HETCOMM_REDUCE_AVERAGE || steps.result.length == 0) return;
  std::byte* const at = addresses.of(steps.result);
  reduce::divide(task_.type(), at, at, steps.result.length / problem.element_bytes, problem.ranks);
}

}  // namespace hetcomm::collectives
