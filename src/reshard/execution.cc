#include "src/reshard/execution.h"

#include <algorithm>
#include <new>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/base/text.h"

namespace hetcomm::reshard {
namespace {

// What a message is known by while it is under way.
constexpr unsigned kPhaseShift = 32;
constexpr uint64_t kSends = uint64_t{1} << 31;

uint64_t message_id(size_t phase, size_t index, bool sends) {
  return uint64_t{phase} << kPhaseShift | (sends ? kSends : 0) | index;
}

// Bytes that lie behind each other.
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
      sources_(shared.types.size()),
      destinations_(shared.types.size()),
      phases_(shared.program.phases.size()) {
  size_t messages = 0;
  for (const ProgramPhase& phase : shared.program.phases) {
    messages += phase.sends.size() + phase.receives.size();
  }
  messages_.resize(messages);
}

Execution::~Execution() {
  if (has_place_) owner_.give_place();
}

// --- life -------------------------------------------------------------------

void Execution::bind(const hetcomm_buffer_t* sources, const hetcomm_buffer_t* destinations,
                     Operation& operation) {
  const Program& program = shared_.program;
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (program.sources[i].bytes > 0) sources_[i].bind(sources[i], program.sources[i]);
    if (program.destinations[i].bytes > 0) {
      destinations_[i].bind(destinations[i], program.destinations[i]);
    }
  }
  for (const auto* side : {&sources_, &destinations_}) {
    for (const SideMemory& memory : *side) {
      if (memory.named_memory() == nullptr) continue;
      operation.buffers.pieces.push_back(memory.piece());
    }
  }
  for (const BufferPiece& piece : operation.buffers.pieces) piece.memory->add_use();
}

void Execution::start(uint64_t number, Operation& operation) {
  number_ = number;
  operation_ = &operation;
  operation.stage = OperationStage::kCollective;
  uint32_t next = 0;
  for (size_t i = 0; i < phases_.size(); ++i) {
    const ProgramPhase& phase = shared_.program.phases[i];
    phases_[i] = {.first_message = next,
                  .sends_left = static_cast<uint32_t>(phase.sends.size()),
                  .receives_left = static_cast<uint32_t>(phase.receives.size())};
    next += phases_[i].sends_left + phases_[i].receives_left;
  }
  for (MessageState& state : messages_) {
    state.operation = nullptr;
    state.landing = nullptr;
    state.started = false;
  }
  first_ = receive_phase_ = receive_index_ = 0;
  stage_ = Stage::kLoading;
  try {
    if (shared_.program.scratch_bytes > 0) {
      scratch_ = shared_.commons.host_blocks.take(shared_.program.scratch_bytes);
    }
    for (SideMemory& source : sources_) {
      if (!source.has_shadow()) continue;
      source.load(shared_.commons.staging, *this);
      ++copies_;
    }
  } catch (const std::bad_alloc&) {
    fail(Code::kOutOfMemory, "out of memory");
  }
}

void Execution::reset() {
  operation_ = nullptr;
  stage_ = Stage::kFresh;
  code_ = Code::kOk;
  text_.clear();
  has_place_ = false;
  owner_.give_place();
}

bool Execution::advance(bool oldest) {
  budget_ = kMostBytesAtOnce;
  try {
    if (stage_ == Stage::kLoading && copies_ == 0) stage_ = Stage::kMoving;
    if (stage_ == Stage::kMoving) move(oldest);
  } catch (const std::bad_alloc&) {
    fail(Code::kOutOfMemory, "out of memory");
  }
  return stage_ == Stage::kMoving && budget_ == 0;
}

void Execution::move(bool oldest) {
  const size_t end = std::min(first_ + kWindow, phases_.size());
  post_receives(end, oldest);
  for (size_t i = first_; i < end && stage_ == Stage::kMoving; ++i) {
    PhaseState& state = phases_[i];
    const int32_t after = shared_.program.phases[i].after;
    state.may_begin =
        state.may_begin || after < 0 || phases_[static_cast<size_t>(after)].has_arrived;
    if (!state.may_begin) continue;
    if (state.receives_left == 0 && !state.has_arrived) arrive(i);
    post_sends(i, oldest);
    if (budget_ == 0) break;
  }
  if (stage_ != Stage::kMoving) return;
  const size_t before = first_;
  while (first_ < phases_.size() && phases_[first_].has_arrived &&
         phases_[first_].sends_left == 0) {
    ++first_;
  }
  if (first_ == phases_.size()) {
    store();
  } else if (first_ != before) {
    owner_.note_ready();  // the window has moved
  }
}

void Execution::store() {
  stage_ = Stage::kStoring;
  const bool any = std::any_of(destinations_.begin(), destinations_.end(),
                               [](const SideMemory& memory) { return memory.has_shadow(); });
  if (any) start_storing();
  if (copies_ == 0) complete();
}

void Execution::start_storing() {
  std::vector<std::vector<const Region*>> regions(destinations_.size());
  for (const ProgramPhase& phase : shared_.program.phases) {
    for (const ProgramArrival& arrival : phase.arrivals) {
      const Region& to = arrival.to;
      if (to.memory != Space::kDestination || arrival.adds) continue;
      if (destinations_[to.tensor].has_shadow()) regions[to.tensor].push_back(&to);
    }
  }
  for (size_t i = 0; i < destinations_.size(); ++i) {
    if (!destinations_[i].has_shadow()) continue;
    destinations_[i].store(shared_.commons.staging, regions[i], *this);
    ++copies_;
  }
}

void Execution::complete() {
  stage_ = Stage::kOver;
  Operation& operation = *std::exchange(operation_, nullptr);
  if (code_ == Code::kOk) {
    operation.outcome.bytes_sent = shared_.program.sent_bytes;
    operation.outcome.bytes_received = shared_.program.received_bytes;
  } else {
    drop_landings();
    operation.outcome.code = code_;
    try {
      operation.outcome.text = std::make_unique<std::string>(std::move(text_));
    } catch (const std::bad_alloc&) {
      operation.outcome.text.reset();  // the code tells enough
    }
  }
  operation.composite = nullptr;
  if (scratch_.memory != nullptr) shared_.commons.host_blocks.give(std::exchange(scratch_, {}));
  shared_.commons.completer.finish(operation);
  owner_.note_ready();
}

// Gives back the memory of what has come and was not taken.
void Execution::drop_landings() {
  for (size_t i = 0; i < phases_.size(); ++i) {
    const ProgramPhase& phase = shared_.program.phases[i];
    for (size_t m = 0; m < phase.receives.size(); ++m) {
      let_go(messages_[phases_[i].first_message + phase.sends.size() + m], false);
    }
  }
}

void Execution::fail(Code code, std::string_view text) {
  if (stage_ == Stage::kEnding || stage_ == Stage::kOver) return;
  stage_ = Stage::kEnding;
  code_ = code;
  text_ = text_or_none(
      [&]() HETCOMM_UNDER_BATON { return fmt::format("{}: {}{}", describe(), text, missing()); });
  for (MessageState& state : messages_) {
    // Some end at once.
    if (state.operation == nullptr) continue;
    shared_.communicator.end(*state.operation, Code::kCancelled,
                             "the redistribution that it belongs to has failed");
  }
  // The reason of the first to fail is that of the others.
  owner_.break_off(status_or_code(code, [&] { return std::string(text); }));
  try_to_end();
}

void Execution::try_to_end() {
  if (stage_ == Stage::kEnding && under_way_ == 0 && copies_ == 0) complete();
}

void Execution::end(Code code, const std::string& text) { fail(code, text); }

std::string Execution::describe() const {
  return fmt::format("redistribution #{} of {} tensor{}", number_, shared_.types.size(),
                     shared_.types.size() == 1 ? "" : "s");
}

// The ranks that this one waits for.
std::string Execution::missing() const {
  std::set<int> peers;
  for (size_t i = first_; i < std::min(first_ + kWindow, phases_.size()); ++i) {
    const ProgramPhase& phase = shared_.program.phases[i];
    const size_t all = phase.sends.size() + phase.receives.size();
    for (size_t m = 0; m < all; ++m) {
      if (messages_[phases_[i].first_message + m].operation == nullptr) continue;
      const ProgramMessage& message =
          m < phase.sends.size() ? phase.sends[m] : phase.receives[m - phase.sends.size()];
      peers.insert(shared_.program.lanes[message.lane].peer);
    }
  }
  if (peers.empty()) return {};
  return fmt::format("; still waits for rank {}", fmt::join(peers, ", rank "));
}

// --- messages ----------------------------------------------------------------

// In the order of phases, so that what is needed first has memory first.
void Execution::post_receives(size_t end, bool oldest) {
  while (receive_phase_ < end && stage_ == Stage::kMoving) {
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
    if (stage_ != Stage::kMoving || budget_ == 0) return;
    if (messages_[state.first_message + i].started) continue;
    post(index, i, true, oldest && index == first_);
  }
}

// False: it is not its turn, or there is no room. |must|: see Landing.
bool Execution::post(size_t phase_index, size_t index, bool sends, bool must) {
  const ProgramPhase& phase = shared_.program.phases[phase_index];
  const ProgramMessage& message = sends ? phase.sends[index] : phase.receives[index];
  MessageState& state =
      messages_[phases_[phase_index].first_message + (sends ? index : phase.sends.size() + index)];
  CountedLane& lane = *shared_.lanes[message.lane];
  if (lane.started != number_ * lane.messages + message.place) return false;
  if (!message.is_direct) {
    state.landing = (sends ? shared_.packed : shared_.landed).take(message.bytes, must);
    if (state.landing == nullptr) return false;
  }
  if (!lane.lane.take_place()) {
    let_go(state, sends);
    return false;
  }
  buffers_.clear();
  Operation* operation = nullptr;
  try {
    if (message.is_direct) {
      for (const Region& region : message.regions) {
        const std::byte* const scratch = scratch_.memory.get();
        for (RowCursor row(region); row.left() > 0; row.advance(row.left())) {
          if (region.memory == Space::kScratch) {
            buffers_.push_back(hetcomm_buffer_host(scratch + row.offset(), row.left()));
            continue;
          }
          const SideMemory& side = region.memory == Space::kSource ? sources_[region.tensor]
                                                                   : destinations_[region.tensor];
          buffers_.push_back(side.part(row.offset(), row.left()));
        }
      }
    } else {
      if (sends) pack(message, state.landing);
      buffers_.push_back(hetcomm_buffer_host(state.landing, message.bytes));
    }
    operation = shared_.communicator.make_internal(
        {.kind = sends ? OperationKind::kSend : OperationKind::kReceive,
         .peer = lane.lane.peer(),
         .tag = 0,
         .bytes = {},
         .handler = this,
         .high_priority = operation_->options.high_priority,
         .lane = &lane.lane,
         .buffers = buffers_,
         .lists = &state.lists});
    if (operation == nullptr) throw std::bad_alloc();
  } catch (const std::bad_alloc&) {
    lane.lane.give_place();
    let_go(state, sends);
    throw;
  }
  ++lane.started;
  operation->access.id = message_id(phase_index, index, sends);
  state.operation = operation;
  state.started = true;
  ++under_way_;
  shared_.communicator.start_internal(*operation);
  return true;
}

void Execution::let_go(MessageState& state, bool sends) {
  if (state.landing == nullptr) return;
  (sends ? shared_.packed : shared_.landed).give(std::exchange(state.landing, nullptr));
}

void Execution::on_end(Operation& message) {
  const auto phase_index = static_cast<size_t>(message.access.id >> kPhaseShift);
  const bool sends = (message.access.id & kSends) != 0;
  const size_t index = message.access.id & (kSends - 1);
  const ProgramPhase& phase = shared_.program.phases[phase_index];
  PhaseState& state = phases_[phase_index];
  MessageState& own = messages_[state.first_message + (sends ? index : phase.sends.size() + index)];
  own.operation = nullptr;
  message.swap_lists(own.lists);
  --under_way_;
  const Code code = message.outcome.code;
  const bool whole = sends || message.outcome.bytes_received == message.length;
  // What was received stays where it is until it is taken.
  if (sends || code != Code::kOk || stage_ != Stage::kMoving) let_go(own, sends);
  if (stage_ == Stage::kEnding) {
    try_to_end();
    return;
  }
  if (code == Code::kOk && whole) {
    --(sends ? state.sends_left : state.receives_left);
    owner_.note_ready();
    return;
  }
  const int peer = shared_.program.lanes[(sends ? phase.sends : phase.receives)[index].lane].peer;
  if (code == Code::kOk || code == Code::kCancelled) {
    fail(code == Code::kOk ? Code::kMismatch : Code::kAborted, text_or_none([&] {
           return code == Code::kOk ? fmt::format("rank {} has sent another length", peer)
                                    : fmt::format("rank {} has ended it", peer);
         }));
    return;
  }
  fail(code, message.outcome.text ? *message.outcome.text : std::string(code_text(code)));
}

// --- copies -------------------------------------------------------------------

CopySide Execution::side_of(const Region& region) {
  const TypePair& types = shared_.types[region.tensor];
  if (region.memory == Space::kSource) {
    return {sources_[region.tensor].host(), &region, types.source};
  }
  std::byte* const base = region.memory == Space::kScratch ? scratch_.memory.get()
                                                           : destinations_[region.tensor].host();
  return {base, &region, types.destination};
}

void Execution::pack(const ProgramMessage& message, std::byte* to) {
  uint64_t at = 0;
  for (const Region& region : message.regions) {
    const CopySide from = side_of(region);
    const ElementType type = shared_.types[region.tensor].destination;
    const uint64_t bytes = region.bytes() / reduce::size_of(from.type) * reduce::size_of(type);
    const Region packed = flat(at, bytes);
    copy(from, {to, &packed, type});
    at += bytes;
  }
  budget_ -= std::min(budget_, message.bytes);
}

// Puts what has come in phase |index| in its place, in order.
void Execution::arrive(size_t index) {
  const ProgramPhase& phase = shared_.program.phases[index];
  PhaseState& state = phases_[index];
  while (state.next_arrival < phase.arrivals.size()) {
    if (budget_ == 0) return;
    take(phase, phase.arrivals[state.next_arrival++], state);
  }
  state.has_arrived = true;
  for (size_t i = 0; i < phase.receives.size(); ++i) {
    let_go(messages_[state.first_message + phase.sends.size() + i], false);
  }
  // Others may wait for it, or for the memory.
  owner_.note_ready();
}

void Execution::take(const ProgramPhase& phase, const ProgramArrival& arrival,
                     const PhaseState& state) {
  const CopySide to = side_of(arrival.to);
  if (arrival.receive < 0) {
    const CopySide from = side_of(arrival.from);
    arrival.adds ? add(from, to) : copy(from, to);
  } else {
    const auto receive = static_cast<size_t>(arrival.receive);
    if (phase.receives[receive].is_direct) return;
    const Region packed = flat(arrival.position, arrival.to.bytes());
    const MessageState& message = messages_[state.first_message + phase.sends.size() + receive];
    const CopySide from{message.landing, &packed, to.type};
    arrival.adds ? add(from, to) : copy(from, to);
  }
  budget_ -= std::min(budget_, arrival.to.bytes());
}

void Execution::on_copied(const Status& status) {
  --copies_;
  if (stage_ == Stage::kEnding) {
    try_to_end();
  } else if (!status.ok()) {
    fail(status.code(), status.text());
  } else if (copies_ > 0) {
    return;
  } else if (stage_ == Stage::kStoring) {
    complete();
  } else {
    owner_.note_ready();
  }
}

}  // namespace hetcomm::reshard
