#include "src/reshard/execution.h"

#include <algorithm>
#include <new>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/base/text.h"
#include "src/core/peer/transfer/track.h"
#include "src/core/peer/transfer/transfer.h"
#include "src/core/peer/transfer/transfers.h"
#include "src/core/peer/wire/reason.h"
#include "src/reduce/reduce.h"

namespace hetcomm::reshard {
namespace {

// The fields of the cookie that identifies a message in flight.
constexpr unsigned kPhaseShift = 32;
constexpr uint64_t kSends = uint64_t{1} << 31;

uint64_t message_id(size_t phase, size_t index, bool sends) {
  return uint64_t{phase} << kPhaseShift | (sends ? kSends : 0) | index;
}

// Returns a region of |bytes| contiguous bytes.
Region flat(uint64_t offset, uint64_t bytes) {
  Region region;
  region.offset = offset;
  region.row_bytes = bytes;
  return region;
}

}  // namespace

Execution::Execution(ExecutionOwner& owner, ExecutionCommons& shared)
    : owner_(owner),
      shared_(shared),
      memory_(shared.program),
      claim_(shared.program),
      device_copies_(shared.data.staging, *this),
      phases_(shared.program.phases.size()) {
  size_t messages = 0;
  for (const ProgramPhase& phase : shared.program.phases) {
    messages += phase.sends.size() + phase.receives.size();
  }
  messages_.resize(messages);
}

Execution::~Execution() {
  shared_.claims.leave(claim_);
  if (is_lined_up_) owner_.leave_line(*this);
  if (operation_ != nullptr) owner_.note_over();
  if (has_permit_) owner_.give_permit();
}

// --- start and end ----------------------------------------------------------

Code Execution::claim(const hetcomm_buffer_t* sources, const hetcomm_buffer_t* destinations,
                      const UserStream* stream, std::string* text) {
  const Code code = claim_.locate(sources, destinations, stream, text);
  return code == Code::kOk ? shared_.claims.enter(claim_, text) : code;
}

void Execution::bind(const hetcomm_buffer_t* sources, const hetcomm_buffer_t* destinations,
                     const Label& label, Operation& operation) {
  memory_.bind(sources, destinations, operation.buffers.pieces);
  for (const BufferPiece& piece : operation.buffers.pieces) piece.memory->add_use();
  label_ = label;
  operation_ = &operation;
}

void Execution::start() {
  operation_->phase = OperationPhase::kCollective;
  uint32_t next = 0;
  for (size_t i = 0; i < phases_.size(); ++i) {
    const ProgramPhase& phase = shared_.program.phases[i];
    phases_[i] = {.first_message = next,
                  .sends_left = static_cast<uint32_t>(phase.sends.size()),
                  .receives_left = static_cast<uint32_t>(phase.receives.size())};
    next += phases_[i].sends_left + phases_[i].receives_left;
  }
  for (size_t i = 0; i < phases_.size(); ++i) {
    MessageState* state = messages_.data() + phases_[i].first_message;
    for (const auto* messages :
         {&shared_.program.phases[i].sends, &shared_.program.phases[i].receives}) {
      for (const ProgramMessage& message : *messages) {
        *state = {.way = way_of(message), .lists = std::move(state->lists)};
        ++state;
      }
    }
  }
  device_copies_.clear();
  first_ = receive_phase_ = receive_index_ = 0;
  state_ = State::kLoading;
  try {
    memory_.take_scratch(shared_.host_blocks);
    for (SideMemory& source : memory_.sources()) {
      if (!source.has_shadow()) continue;
      source.load(shared_.data.staging, *this);
      ++copies_;
    }
  } catch (const std::bad_alloc&) {
    fail(Code::kOutOfMemory, "out of memory");
  }
  compare_labels();
}

void Execution::reset() {
  state_ = State::kFresh;
  has_number_ = false;
  code_ = Code::kOk;
  text_.clear();
  has_permit_ = false;
  owner_.give_permit();
}

bool Execution::advance(bool oldest) {
  budget_ = kMaxBytesAtOnce;
  try {
    if (state_ == State::kLoading && copies_ == 0) state_ = State::kMoving;
    if (state_ == State::kMoving) move(oldest);
  } catch (const std::bad_alloc&) {
    fail(Code::kOutOfMemory, "out of memory");
  }
  return state_ == State::kMoving && budget_ == 0;
}

void Execution::move(bool oldest) {
  const size_t end = std::min(first_ + kWindow, phases_.size());
  no_room_ = false;
  post_receives(end, oldest);
  for (size_t i = first_; i < end && state_ == State::kMoving; ++i) {
    PhaseState& state = phases_[i];
    const int32_t after = shared_.program.phases[i].after;
    state.may_begin =
        state.may_begin || after < 0 || phases_[static_cast<size_t>(after)].has_arrived;
    if (!state.may_begin) continue;
    if (state.receives_left == 0 && !state.has_arrived) arrive(i, oldest && i == first_);
    post_sends(i, oldest);
    if (budget_ == 0) break;
  }
  if (state_ != State::kMoving) return;
  const size_t before = first_;
  while (first_ < phases_.size() && phases_[first_].has_arrived &&
         phases_[first_].sends_left == 0) {
    ++first_;
  }
  if (first_ == phases_.size()) {
    store();
  } else if (first_ != before) {
    owner_.note_ready();  // the window has advanced
  }
}

// Starts copying the results to devices. Completes at once if there is nothing to copy.
void Execution::store() {
  state_ = State::kStoring;
  std::vector<SideMemory>& destinations = memory_.destinations();
  if (std::any_of(destinations.begin(), destinations.end(),
                  [](const SideMemory& memory) { return memory.has_shadow(); })) {
    std::vector<std::vector<const Region*>> regions(destinations.size());
    for (const ProgramPhase& phase : shared_.program.phases) {
      for (const ProgramArrival& arrival : phase.arrivals) {
        const Region& to = arrival.to;
        if (to.memory != Space::kDestination || arrival.adds) continue;
        if (destinations[to.tensor].has_shadow()) regions[to.tensor].push_back(&to);
      }
    }
    for (size_t i = 0; i < destinations.size(); ++i) {
      if (!destinations[i].has_shadow()) continue;
      destinations[i].store(shared_.data.staging, regions[i], *this);
      ++copies_;
    }
  }
  if (copies_ == 0) complete();
}

void Execution::complete() {
  state_ = State::kOver;
  Operation& operation = *std::exchange(operation_, nullptr);
  owner_.note_over();
  shared_.talk.forget_labels(number_);
  if (code_ == Code::kOk) {
    operation.outcome.bytes_sent = shared_.program.sent_bytes;
    operation.outcome.bytes_received = shared_.program.received_bytes;
  } else {
    drop_landings();
    memory_.leave_to(shared_.data.staging.abandoned());
    operation.outcome.code = code_;
    try {
      operation.outcome.text = std::make_unique<std::string>(std::move(text_));
    } catch (const std::bad_alloc&) {
      operation.outcome.text.reset();  // the code alone suffices
    }
  }
  operation.composite = nullptr;
  shared_.claims.leave(claim_);
  memory_.give_scratch(shared_.host_blocks);
  shared_.data.completer.finish(operation);
  owner_.note_ready();
}

// Releases the memory of unprocessed received messages, of unsent messages, and of sums.
void Execution::drop_landings() {
  for (size_t i = 0; i < phases_.size(); ++i) {
    const ProgramPhase& phase = shared_.program.phases[i];
    for (size_t m = 0; m < phase.sends.size() + phase.receives.size(); ++m) {
      let_go(messages_[phases_[i].first_message + m], m < phase.sends.size());
    }
    let_go_of_sums(phases_[i]);
  }
}

void Execution::fail(Code code, std::string_view text) {
  if (state_ == State::kEnding || state_ == State::kOver) return;
  const Status why = status_or_code(code, [&] { return std::string(text); });
  stop(why,
       text_or_none([&]() HETCOMM_UNDER_BATON { return fmt::format("{}: {}", name(), text); }));
  owner_.break_off(why);
  try_to_end();
}

void Execution::end_alone(const Status& why) {
  if (state_ == State::kEnding || state_ == State::kOver) return;
  stop(why, text_or_none([&] { return std::string(why.text()); }));
  try_to_end();
}

// Cancels all messages. The execution is over when nothing accesses their memory any more.
void Execution::stop(const Status& why, std::string text) {
  state_ = State::kEnding;
  code_ = why.code();
  text_ = std::move(text);
  // The first failure is reported as the reason for all others, here and on other ranks.
  const Status told = reason_for_others(shared_.own_rank, why);
  for (MessageState& state : messages_) {
    // Only a message in flight has an operation.
    if (state.operation == nullptr) continue;
    const Status own = owner_.told_to(track_of(*state.operation).peer(), told);
    shared_.communicator.end(*state.operation, own.code(), own.text());
  }
}

void Execution::try_to_end() {
  if (state_ == State::kEnding && under_way_ == 0 && copies_ == 0) complete();
}

// Ends the execution because it is cancelled, its deadline has passed, or its communicator is
// ending. |text| begins with the description of the execution.
void Execution::end(Code code, const std::string& text) {
  if (state_ == State::kEnding || state_ == State::kOver) return;
  const std::string head = text_or_none([&]() HETCOMM_UNDER_BATON { return describe() + ": "; });
  const std::string_view whole = text;
  const std::string_view reason = whole.starts_with(head) ? whole.substr(head.size()) : whole;
  const auto with = [&](Code own) {
    return status_or_code(own, [&] { return std::string(reason); });
  };
  const bool is_alone = (code == Code::kCancelled || code == Code::kTimedOut) && !has_moved() &&
                        owner_.give_up(*this, with(code));
  if (code == Code::kTimedOut) code = code_at_deadline();
  if (state_ == State::kEnding || state_ == State::kOver) return;
  const Status why = with(code);
  stop(why, text_or_none([&] { return text; }));
  if (!is_alone) owner_.break_off(why);
  try_to_end();
}

void Execution::track_closed() {
  for (size_t i = 0; i < shared_.turns.size(); ++i) {
    const Status& why = shared_.turns.track(i).closed();
    if (why.ok() || !shared_.turns.has_yet_to_start(i, number_)) continue;
    fail(why.code(), why.text());
    return;
  }
}

bool Execution::has_moved() const {
  for (size_t i = 0; i < phases_.size(); ++i) {
    const ProgramPhase& phase = shared_.program.phases[i];
    if (phases_[i].sends_left < phase.sends.size()) return true;
    if (phases_[i].receives_left < phase.receives.size()) return true;
  }
  return std::any_of(messages_.begin(), messages_.end(),
                     [](const MessageState& state) HETCOMM_UNDER_BATON {
                       const Operation* const message = state.operation;
                       return message != nullptr && message->kind == OperationKind::kSend &&
                              message->phase == OperationPhase::kTransfer &&
                              transfers_of(*message).send->has_moved();
                     });
}

void Execution::compare_labels() {
  if (state_ == State::kEnding || state_ == State::kOver) return;
  const auto* const other = shared_.talk.find_other(number_, label_);
  if (other == nullptr) return;
  // If this rank has no label, it has not reported that to the others yet.
  if (!label_.is_set()) shared_.talk.tell(number_, label_);
  const Label theirs = other->second;
  const int32_t rank = shared_.communicator.rank_of(other->first.second);
  fail(Code::kMismatch, text_or_none([&]() HETCOMM_UNDER_BATON {
         return fmt::format(
             "rank {} has the label step {}, micro-batch {}, and rank {} step {}, micro-batch {}",
             rank, theirs.step, theirs.micro_batch, shared_.communicator.rank_of(shared_.own_rank),
             label_.step, label_.micro_batch);
       }));
}

// Returns whether an outgoing message may start. If this rank has a label, messages wait for the
// receiver's label. If that label can no longer arrive, track_closed() ends the execution.
bool Execution::may_send_to(const Track& track) const {
  return !label_.is_set() || shared_.talk.told(track.peer(), number_) != nullptr;
}

std::string Execution::name() const {
  return fmt::format("redistribution #{} of {} tensor{}", number_, shared_.program.tensors.size(),
                     shared_.program.tensors.size() == 1 ? "" : "s");
}

std::string Execution::describe() const {
  return has_number_ ? name() : "redistribution that has not started";
}

std::vector<int> Execution::awaited() const {
  if (state_ != State::kLoading && state_ != State::kMoving && state_ != State::kEnding) return {};
  std::set<int> peers;
  for (size_t i = first_; i < std::min(first_ + kWindow, phases_.size()); ++i) {
    const ProgramPhase& phase = shared_.program.phases[i];
    const size_t all = phase.sends.size() + phase.receives.size();
    for (size_t m = 0; m < all; ++m) {
      if (messages_[phases_[i].first_message + m].operation == nullptr) continue;
      const ProgramMessage& message =
          m < phase.sends.size() ? phase.sends[m] : phase.receives[m - phase.sends.size()];
      peers.insert(shared_.program.tracks[message.track].peer);
    }
  }
  std::vector<int> ranks;
  for (const int peer : peers) {
    ranks.push_back(shared_.communicator.ranks()[static_cast<size_t>(peer)]);
  }
  return ranks;
}

// --- messages ----------------------------------------------------------------

// Posts receives in phase order, so that the earliest phases get memory first.
void Execution::post_receives(size_t end, bool oldest) {
  while (receive_phase_ < end && state_ == State::kMoving) {
    const ProgramPhase& phase = shared_.program.phases[receive_phase_];
    if (receive_index_ == phase.receives.size()) {
      ++receive_phase_;
      receive_index_ = 0;
      continue;
    }
    const bool must = oldest && receive_phase_ == first_;
    if (!post(receive_phase_, receive_index_, false, must)) return;
    ++receive_index_;
  }
}

void Execution::post_sends(size_t index, bool oldest) {
  const ProgramPhase& phase = shared_.program.phases[index];
  PhaseState& state = phases_[index];
  if (state.sends_left == 0) return;
  for (size_t i = 0; i < phase.sends.size(); ++i) {
    if (state_ != State::kMoving || budget_ == 0) return;
    if (messages_[state.first_message + i].started) continue;
    post(index, i, true, oldest && index == first_);
  }
}

// Posts a message. Returns false if its turn has not come, no memory is available, its data is
// still being copied from a device, or the execution has ended. |must| is explained at
// Landing::take().
bool Execution::post(size_t phase_index, size_t index, bool sends, bool must) {
  const ProgramPhase& phase = shared_.program.phases[phase_index];
  const ProgramMessage& message = sends ? phase.sends[index] : phase.receives[index];
  MessageState& state =
      messages_[phases_[phase_index].first_message + (sends ? index : phase.sends.size() + index)];
  Track& track = shared_.turns.track(message.track);
  const bool fetches = sends && state.way == Way::kStaged;
  // Device data can be fetched before the message's turn.
  const bool has_turn = shared_.turns.has_turn(message.track, number_, message.position) &&
                        (!sends || may_send_to(track));
  if (state_ != State::kMoving) return false;  // has_turn() may run out of memory
  if (!has_turn && (!fetches || no_room_)) return false;
  if (state.way != Way::kAsTheyLie && state.landing == nullptr) {
    if (!take_memory(message, state, sends, must)) {
      no_room_ = no_room_ || sends;
      return false;
    }
    if (fetches) {
      fetch(message, state,
            {.kind = DeviceCopyUse::Kind::kPack,
             .phase = static_cast<uint32_t>(phase_index),
             .index = static_cast<uint32_t>(index)});
    }
  }
  if (!has_turn || state.copying) return false;
  if (!track.take_permit()) {
    if (!fetches) let_go(state, sends);
    return false;
  }
  buffers_.clear();
  Operation* operation = nullptr;
  try {
    if (state.way == Way::kAsTheyLie) {
      list_buffers(message);
    } else {
      if (sends) pack(message, state);
      if (state.raw != nullptr) {
        shared_.packed.give(std::exchange(state.raw, nullptr));
        owner_.note_ready();
      }
      buffers_.push_back(hetcomm_buffer_host(state.landing, message.bytes));
    }
    operation = shared_.communicator.starter().make_internal(
        {.kind = sends ? OperationKind::kSend : OperationKind::kReceive,
         .peer = track.peer(),
         .tag = 0,
         .bytes = {},
         .handler = this,
         .high_priority = operation_->options.high_priority,
         .track = &track,
         .buffers = buffers_,
         .lists = &state.lists});
    if (operation == nullptr) throw std::bad_alloc();
  } catch (const std::bad_alloc&) {
    track.give_permit();
    let_go(state, sends);
    throw;
  }
  shared_.turns.started(message.track);
  operation->internal.cookie = message_id(phase_index, index, sends);
  state.operation = operation;
  state.started = true;
  ++under_way_;
  TrackTurns& turns = shared_.turns;
  const size_t index_of_track = message.track;
  // start_internal() may end this execution.
  shared_.communicator.starter().start_internal(*operation);
  turns.settle(index_of_track);
  return true;
}

// Lists the memory pieces of a message that is sent or received in place.
void Execution::list_buffers(const ProgramMessage& message) {
  for (const Region& region : message.regions) {
    const SideMemory* const side = memory_.side_of(region);
    for (RowCursor row(region); row.left() > 0; row.advance(row.left())) {
      buffers_.push_back(side == nullptr
                             ? hetcomm_buffer_host(memory_.scratch() + row.offset(), row.left())
                             : side->part(row.offset(), row.left()));
    }
  }
}

// Allocates the memory for |message|. Returns false if the bound of the Landing does not allow it.
// |must| is explained at Landing::take().
bool Execution::take_memory(const ProgramMessage& message, MessageState& state, bool sends,
                            bool must) {
  Landing& landing = sends ? shared_.packed : shared_.landed;
  state.landing = landing.take(message.bytes, must);
  if (state.landing == nullptr) return false;
  if (!sends || state.way != Way::kStaged) return true;
  uint64_t raw_bytes = 0;
  for (const Region& region : message.regions) {
    if (memory_.staged_side_of(region) == nullptr || !memory_.converts(region)) continue;
    raw_bytes += region.bytes();
  }
  if (raw_bytes == 0) return true;
  state.raw = landing.take(raw_bytes, must);
  if (state.raw == nullptr) let_go(state, sends);
  return state.raw != nullptr;
}

// Starts copying the device data of |message| to host memory.
void Execution::fetch(const ProgramMessage& message, MessageState& state,
                      const DeviceCopyUse& use) {
  std::byte* packed = state.landing;
  std::byte* raw = state.raw;
  for (const Region& region : message.regions) {
    const bool converted = memory_.converts(region);
    if (const SideMemory* const side = memory_.staged_side_of(region); side != nullptr) {
      device_copies_.add(StreamDirection::kToHost, *side, region, converted ? raw : packed);
      if (converted) raw += region.bytes();
      budget_ -= std::min(budget_, DeviceCopies::count(*side, region) * kBytesOfACopy);
    }
    packed += memory_.packed_bytes(region);
  }
  start_copies(StreamDirection::kToHost, use);
  state.copying = true;
}

void Execution::let_go(MessageState& state, bool sends) {
  Landing& landing = sends ? shared_.packed : shared_.landed;
  for (std::byte** memory : {&state.landing, &state.raw}) {
    if (*memory != nullptr) landing.give(std::exchange(*memory, nullptr));
  }
}

void Execution::on_end(Operation& message) {
  const auto phase_index = static_cast<size_t>(message.internal.cookie >> kPhaseShift);
  const bool sends = (message.internal.cookie & kSends) != 0;
  const size_t index = message.internal.cookie & (kSends - 1);
  const ProgramPhase& phase = shared_.program.phases[phase_index];
  PhaseState& state = phases_[phase_index];
  MessageState& own = messages_[state.first_message + (sends ? index : phase.sends.size() + index)];
  own.operation = nullptr;
  message.swap_lists(own.lists);
  --under_way_;
  const Code code = message.outcome.code;
  const bool whole = sends || message.outcome.bytes_received == message.length;
  // The memory of a received message is kept until the message is processed.
  if (sends || code != Code::kOk || state_ != State::kMoving) let_go(own, sends);
  if (state_ == State::kEnding) {
    owner_.note_ready();  // the track may accept another message now
    try_to_end();
    return;
  }
  if (code == Code::kOk && whole) {
    --(sends ? state.sends_left : state.receives_left);
    owner_.note_ready();
    return;
  }
  const int peer = shared_.program.tracks[(sends ? phase.sends : phase.receives)[index].track].peer;
  if (code == Code::kOk || code == Code::kCancelled) {
    fail(code == Code::kOk ? Code::kMismatch : Code::kAborted, text_or_none([&] {
           return code == Code::kOk ? fmt::format("rank {} has sent another length", peer)
                                    : fmt::format("rank {} has ended it", peer);
         }));
    return;
  }
  fail(code, message.outcome.why());
}

// --- copies -------------------------------------------------------------------

Execution::Way Execution::way_of(const ProgramMessage& message) const {
  bool staged = false;
  bool as_it_lies = message.is_direct;
  for (const Region& region : message.regions) {
    if (memory_.staged_side_of(region) == nullptr) continue;
    staged = true;
    as_it_lies = as_it_lies && (SideMemory::has_long_rows(region) ||
                                (message.regions.size() == 1 && region.rows == 1));
  }
  return as_it_lies ? Way::kAsTheyLie : staged ? Way::kStaged : Way::kPacked;
}

void Execution::pack(const ProgramMessage& message, const MessageState& state) {
  uint64_t at = 0;
  uint64_t raw = 0;
  for (const Region& region : message.regions) {
    const bool staged = memory_.staged_side_of(region) != nullptr;
    const Region packed = flat(at, memory_.packed_bytes(region));
    at += packed.row_bytes;
    if (staged && !memory_.converts(region)) continue;  // the device has already copied it there
    const Conversion& conversion = shared_.program.tensors[region.tensor];
    const CopySide to{state.landing, &packed, conversion.sent_type(region.memory)};
    if (!staged) {
      copy(memory_.copy_side_of(region), to, conversion.types.overflow);
      continue;
    }
    const Region fetched = flat(raw, region.bytes());
    raw += region.bytes();
    copy({state.raw, &fetched, conversion.types.source}, to, conversion.types.overflow);
  }
  budget_ -= std::min(budget_, message.bytes);
}

// Returns the cost of an arrival, in the unit of |budget_|.
uint64_t Execution::cost_of(const ProgramArrival& arrival) const {
  uint64_t copies = 0;
  if (CommonRows rows; memory_.stays_on_device(arrival, &rows)) {
    return rows.planes() * kBytesOfACopy;
  }
  if (const SideMemory* const to = memory_.staged_side_of(arrival.to); to != nullptr) {
    copies += DeviceCopies::count(*to, arrival.to);
  }
  const SideMemory* const from =
      arrival.receive < 0 ? memory_.staged_side_of(arrival.from) : nullptr;
  if (from != nullptr) copies += DeviceCopies::count(*from, arrival.from);
  return copies * kBytesOfACopy + arrival.to.bytes();
}

// Processes the arrivals of phase |index| in order, as far as |budget_| allows. |must| is explained
// at Landing::take().
void Execution::arrive(size_t index, bool must) {
  const ProgramPhase& phase = shared_.program.phases[index];
  PhaseState& state = phases_[index];
  uint64_t cost = 0;
  size_t end = state.next_arrival;
  while (end < phase.arrivals.size() && cost < budget_) cost += cost_of(phase.arrivals[end++]);
  if (phase.sum_bytes > 0 && state.sums == nullptr) {
    state.sums = shared_.landed.take(phase.sum_bytes, must);
    if (state.sums == nullptr) return;
  }
  if (end > state.next_arrival) {
    if (!take_arrivals(index, end, must)) return;
    budget_ -= std::min(budget_, cost);
    state.next_arrival = static_cast<uint32_t>(end);
  }
  if (state.next_arrival < phase.arrivals.size() || state.copies > 0) return;
  state.has_arrived = true;
  for (size_t i = 0; i < phase.receives.size(); ++i) {
    let_go(messages_[state.first_message + phase.sends.size() + i], false);
  }
  let_go_of_sums(state);
  // Other phases may be waiting for this phase, or for its memory.
  owner_.note_ready();
}

// Processes the arrivals before |end|. Data that moves between devices of this rank passes through
// the host unless the devices can copy it directly. Returns false if there is not enough host
// memory for that data.
bool Execution::take_arrivals(size_t phase_index, size_t end, bool must) {
  const std::vector<ProgramArrival>& arrivals = shared_.program.phases[phase_index].arrivals;
  const size_t begin = phases_[phase_index].next_arrival;
  uint64_t fetched_bytes = 0;
  uint64_t stored_bytes = 0;
  for (size_t i = begin; i < end; ++i) {
    const bool is_fetched = memory_.staged_side_of(arrivals[i].from) != nullptr;
    (is_fetched ? fetched_bytes : stored_bytes) += memory_.room_of(arrivals[i]);
  }
  DeviceCopyUse use{.kind = DeviceCopyUse::Kind::kFetchOwn,
                    .phase = static_cast<uint32_t>(phase_index),
                    .index = static_cast<uint32_t>(begin),
                    .end = static_cast<uint32_t>(end)};
  std::byte* fetched = nullptr;
  std::byte* stored = nullptr;
  if (fetched_bytes > 0) fetched = shared_.landed.take(fetched_bytes, must);
  if (fetched_bytes > 0 && fetched == nullptr) return false;
  if (stored_bytes > 0) stored = shared_.landed.take(stored_bytes, must);
  if (stored_bytes > 0 && stored == nullptr) {
    if (fetched != nullptr) shared_.landed.give(fetched);
    return false;
  }
  std::byte* const sums = phases_[phase_index].sums;
  std::byte* next_fetched = fetched;
  std::byte* next_stored = stored;
  for (size_t i = begin; i < end; ++i) {
    const ProgramArrival& arrival = arrivals[i];
    if (arrival.receive >= 0) {
      take_received(phase_index, arrival);
      continue;
    }
    const SideMemory* const from = memory_.staged_side_of(arrival.from);
    const SideMemory* const to = memory_.staged_side_of(arrival.to);
    const uint64_t room = memory_.room_of(arrival);
    if (from == nullptr && to == nullptr) {
      put(arrival, memory_.copy_side_of(arrival.to, sums), sums);
    } else if (from == nullptr) {
      const Region packed = flat(0, room);
      put(arrival,
          {next_stored, &packed, shared_.program.tensors[arrival.to.tensor].types.destination},
          sums);
      device_copies_.add(StreamDirection::kFromHost, *to, arrival.to, next_stored);
      next_stored += room;
    } else if (room > 0) {
      // The data is placed at the end of the memory for the arrival, so that it can be converted in
      // place.
      device_copies_.add(StreamDirection::kToHost, *from, arrival.from,
                         next_fetched + room - arrival.from.bytes());
      next_fetched += room;
    } else if (CommonRows rows; to != nullptr &&
                                !is_same_memory(*from, arrival.from, *to, arrival.to) &&
                                memory_.stays_on_device(arrival, &rows)) {
      device_copies_.add(*from, arrival.from, *to, arrival.to, rows);
    }
  }
  use.memory = fetched;
  start_copies(StreamDirection::kToHost, use);
  use.kind = DeviceCopyUse::Kind::kUnpack;
  use.memory = stored;
  start_copies(StreamDirection::kFromHost, use);
  if (device_copies_.has_rows_between()) {
    use.memory = nullptr;
    device_copies_.start_between(use);
    ++copies_;
    ++phases_[phase_index].copies;
  }
  return true;
}

void Execution::take_received(size_t phase_index, const ProgramArrival& arrival) {
  const size_t receive =
      shared_.program.phases[phase_index].sends.size() + static_cast<size_t>(arrival.receive);
  const MessageState& message = messages_[phases_[phase_index].first_message + receive];
  if (message.way == Way::kAsTheyLie) return;
  if (const SideMemory* const side = memory_.staged_side_of(arrival.to); side != nullptr) {
    device_copies_.add(StreamDirection::kFromHost, *side, arrival.to,
                       message.landing + arrival.position);
    return;
  }
  const Conversion& conversion = shared_.program.tensors[arrival.to.tensor];
  const CopySide to = memory_.copy_side_of(arrival.to, phases_[phase_index].sums);
  const ElementType type = arrival.is_term ? conversion.types.source : conversion.types.destination;
  const uint64_t elements = arrival.to.bytes() / reduce::size_of(to.type);
  const Region packed = flat(arrival.position, elements * reduce::size_of(type));
  const CopySide from{message.landing, &packed, type};
  arrival.adds ? add(from, to) : copy(from, to);
}

// Stores an arrival from this rank's own memory, which the processor can access. If the source is a
// sum, the sum is complete by now, and is divided before it is rounded.
void Execution::put(const ProgramArrival& arrival, const CopySide& to, std::byte* sums) {
  const Conversion& conversion = shared_.program.tensors[arrival.to.tensor];
  const CopySide from = memory_.copy_side_of(arrival.from, sums);
  if (arrival.adds) return add(from, to);
  if (arrival.from.memory == Space::kSum && conversion.divisor > 1) {
    std::byte* const sum = sums + arrival.from.offset;
    reduce::divide(from.type, sum, sum, arrival.from.bytes() / reduce::size_of(from.type),
                   conversion.divisor);
  }
  copy(from, to, conversion.types.overflow);
}

void Execution::let_go_of_sums(PhaseState& state) {
  if (state.sums != nullptr) shared_.landed.give(std::exchange(state.sums, nullptr));
}

// Stores data that was fetched from this rank's own devices.
void Execution::put_fetched(const DeviceCopyUse& use) {
  std::byte* next = use.memory;
  for (size_t i = use.index; i < use.end; ++i) {
    const ProgramArrival& arrival = shared_.program.phases[use.phase].arrivals[i];
    const uint64_t room = memory_.room_of(arrival);
    if (room == 0 || memory_.staged_side_of(arrival.from) == nullptr) continue;
    const TypePair& types = shared_.program.tensors[arrival.to.tensor].types;
    const Region fetched = flat(room - arrival.from.bytes(), arrival.from.bytes());
    const CopySide from{next, &fetched,
                        memory_.converts(arrival.from) ? types.source : types.destination};
    const SideMemory* const to = memory_.staged_side_of(arrival.to);
    if (to == nullptr) {
      copy(from, memory_.copy_side_of(arrival.to), types.overflow);
    } else {
      const Region converted = flat(0, arrival.to.bytes());
      copy(from, {next, &converted, types.destination}, types.overflow);
      device_copies_.add(StreamDirection::kFromHost, *to, arrival.to, next);
    }
    next += room;
  }
  if (!device_copies_.has_rows(StreamDirection::kFromHost)) {
    shared_.landed.give(use.memory);
    return;
  }
  DeviceCopyUse next_use = use;
  next_use.kind = DeviceCopyUse::Kind::kUnpack;
  start_copies(StreamDirection::kFromHost, next_use);
}

// Starts the copies that were added, if any.
void Execution::start_copies(StreamDirection direction, const DeviceCopyUse& use) {
  if (!device_copies_.has_rows(direction)) return;
  device_copies_.start(direction, use);
  ++copies_;
  if (use.kind != DeviceCopyUse::Kind::kPack) ++phases_[use.phase].copies;
}

void Execution::on_device_copied(DeviceCopyUse use, const Status& status) {
  --copies_;
  PhaseState& phase = phases_[use.phase];
  if (use.kind == DeviceCopyUse::Kind::kPack) {
    messages_[phase.first_message + use.index].copying = false;
  } else {
    --phase.copies;
  }
  if (use.kind == DeviceCopyUse::Kind::kFetchOwn && state_ == State::kMoving && status.ok()) {
    try {
      put_fetched(use);
    } catch (const std::bad_alloc&) {
      fail(Code::kOutOfMemory, "out of memory");
    }
  } else if (use.memory != nullptr) {
    shared_.landed.give(use.memory);
  }
  if (state_ == State::kEnding) {
    try_to_end();
  } else if (!status.ok()) {
    fail(status.code(), status.text());
  } else {
    owner_.note_ready();
  }
}

void Execution::on_copied(const Status& status) {
  --copies_;
  if (state_ == State::kEnding) {
    try_to_end();
  } else if (!status.ok()) {
    fail(status.code(), status.text());
  } else if (copies_ > 0) {
    return;
  } else if (state_ == State::kStoring) {
    complete();
  } else {
    owner_.note_ready();
  }
}

}  // namespace hetcomm::reshard
