#include "src/reshard/redistribution.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "src/base/clock.h"
#include "src/base/text.h"

namespace hetcomm::reshard {

std::unique_ptr<Redistribution> Redistribution::create(Communicator& communicator, Program program,
                                                       const RedistributionTerms& terms) {
  std::unique_ptr<Redistribution> made(new Redistribution(communicator, std::move(program), terms));
  const Program& own = made->shared_.program;
  for (const ProgramLane& lane : own.lanes) {
    const MemberChannel& peer = communicator.poster().filler().member(lane.peer);
    const uint64_t depth = uint64_t{lane.messages} * terms.in_flight;
    made->shared_.lanes.push_back(std::make_unique<CountedLane>(
        lane.messages, lane.sends ? Lane::End::kSending : Lane::End::kReceiving, communicator,
        peer.rank, lane.sends ? peer.channel : communicator.id(),
        LaneTerms{.tag = terms.tag,
                  .most_bytes = lane.most_bytes,
                  .depth = static_cast<uint32_t>(std::min<uint64_t>(depth, Lane::kMaxDepth)),
                  .use = 1 + lane.stage,
                  .content = terms.content}));
  }
  {
    const Engine::Baton baton(communicator.engine());
    made->active_.reserve(terms.in_flight);
    made->spare_.reserve(terms.in_flight);
  }
  for (size_t i = 0; i < made->shared_.lanes.size(); ++i) {
    try {
      communicator.poster().open_lane(made->shared_.lanes[i]->lane);
    } catch (const std::bad_alloc&) {
      while (i-- > 0) {
        // No message has begun: it cannot fail.
        [[maybe_unused]] const Code code =
            communicator.poster().close_lane(made->shared_.lanes[i]->lane);
      }
      throw;
    }
  }
  const Engine::Baton baton(communicator.engine());
  made->lanes_open_ = true;
  made->shared_.commons.host_blocks.add_user();
  communicator.add_lane_user();
  return made;
}

Redistribution::Redistribution(Communicator& communicator, Program program,
                               const RedistributionTerms& terms)
    : communicator_(communicator),
      shared_{.communicator = communicator,
              .commons = communicator.job().commons(),
              .program = std::move(program),
              .claims = Claims(terms.in_flight),
              .lanes = {},
              .packed = Landing(communicator.job().commons().host_blocks, terms.landing_bytes),
              .landed = Landing(communicator.job().commons().host_blocks, terms.landing_bytes)},
      in_flight_(terms.in_flight) {}

Redistribution::~Redistribution() = default;

Code Redistribution::check(const hetcomm_buffer_t* buffers, const std::vector<ProgramSide>& sides,
                           const char* name, std::string* text) const {
  for (size_t i = 0; i < sides.size(); ++i) {
    if (sides[i].bytes == 0) continue;
    if (buffers == nullptr) {
      *text = fmt::format("rank {} has a part of the {} of tensor {}, and no buffers are given",
                          communicator_.rank(), name, i);
      return Code::kInvalidArgument;
    }
    const hetcomm_buffer_t& buffer = buffers[i];
    const auto* memory = reinterpret_cast<const Memory*>(buffer.memory);
    if (memory != nullptr && !memory->contains(buffer.offset, buffer.length)) {
      *text = fmt::format("{} of tensor {}: offset {} and length {} end past the memory's {} bytes",
                          name, i, buffer.offset, buffer.length, memory->size());
      return Code::kOutOfRange;
    }
    if (buffer.length < sides[i].bytes) {
      *text = fmt::format(
          "{} of tensor {}: the buffer has {} bytes, and rank {}'s part of the layout needs {}",
          name, i, buffer.length, communicator_.rank(), sides[i].bytes);
      return Code::kOutOfRange;
    }
  }
  return Code::kOk;
}

// False: as many executions are under way as may be.
bool Redistribution::take_place() {
  uint32_t taken = under_way_.load(std::memory_order_relaxed);
  while (taken < in_flight_) {
    if (under_way_.compare_exchange_weak(taken, taken + 1, std::memory_order_relaxed)) return true;
  }
  return false;
}

// An execution that has a place; null: there is none.
std::unique_ptr<Execution> Redistribution::take() {
  std::unique_ptr<Execution> execution;
  {
    const Engine::Baton baton(communicator_.engine());
    sweep_over();
    if (!take_place()) return nullptr;
    if (!spare_.empty()) {
      execution = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  if (execution == nullptr) {
    try {
      execution.reset(new Execution(*this, shared_));
    } catch (const std::bad_alloc&) {
      give_place();
      throw;
    }
  }
  execution->own_place();
  return execution;
}

Code Redistribution::start(const hetcomm_buffer_t* sources, const hetcomm_buffer_t* destinations,
                           const ExecutionOptions& options, Operation** out, std::string* text) {
  Code code = check(sources, shared_.program.sources, "source", text);
  if (code == Code::kOk)
    code = check(destinations, shared_.program.destinations, "destination", text);
  if (code != Code::kOk) return code;
  std::unique_ptr<Execution> execution = take();
  if (execution == nullptr) {
    *text = fmt::format(
        "{} executions are under way, which is all that may be; wait for the oldest", in_flight_);
    return Code::kBusy;
  }
  code = execution->claim(sources, destinations, options.stream, text);
  if (code != Code::kOk) return code;
  std::unique_ptr<Departure> departure;
  if (code = Poster::book(options.stream, &departure, text); code != Code::kOk) return code;
  Engine& engine = communicator_.engine();
  Poster& poster = communicator_.poster();
  Operation* operation = poster.allocate();
  if (operation == nullptr) return Code::kOutOfMemory;
  poster.filler().fill_common(OperationKind::kCollective, communicator_.rank(), 0, 0, *operation);
  operation->options.high_priority = options.high_priority;
  if (options.timeout_ns != 0) {
    operation->timeout_ns = options.timeout_ns;
    operation->run.deadline_ns = deadline_after(now_ns(), options.timeout_ns);
  }
  operation->buffers.extent = {};
  operation->length = 0;
  operation->clear_pieces();
  try {
    execution->bind(sources, destinations, *operation);
  } catch (const std::bad_alloc&) {
    operation->clear_pieces();
    engine.pool().recycle(operation);
    throw;
  }
  operation->composite = execution.release();
  OperationFiller::name_stream(options.stream, *operation);
  if (departure != nullptr) operation->order.departure = departure.release();
  {
    const Engine::Baton baton(engine);
    operation->set_state(OperationState::kPending);
    poster.start_now(*operation);
  }
  if (engine.threaded()) engine.note_pending();
  *out = operation;
  return Code::kOk;
}

Status Redistribution::begin(Execution& execution, Operation& operation) {
  if (!broken_.ok()) {
    return broken_.annotate("an earlier execution has failed; prepare it anew on all ranks");
  }
  try {
    active_.reserve(active_.size() + 1);
    set_busy(true);
  } catch (const std::bad_alloc&) {
    // The other ranks count on this execution.
    break_off(Code::kOutOfMemory);
    sweep_over();
    return Code::kOutOfMemory;
  }
  active_.emplace_back(&execution);
  ready_ = true;
  execution.start(next_number_++, operation);
  return {};
}

void Redistribution::withdraw(const Status& why) {
  break_off(why);
  sweep_over();
}

int Redistribution::progress() {
  if (!ready_) return 0;
  ready_ = false;
  // Executions that fail here change no list.
  for (size_t i = 0; i < active_.size(); ++i) {
    if (active_[i]->advance(i == 0)) ready_ = true;
  }
  sweep_over();
  return 1;
}

void Redistribution::sweep_over() {
  const size_t before = active_.size();
  for (auto& execution : active_) {
    if (!execution->is_over()) continue;
    // There is room for as many as can be under way; what cannot be kept goes.
    if (spare_.size() < spare_.capacity()) {
      execution->reset();
      spare_.push_back(std::move(execution));
    } else {
      execution.reset();
    }
  }
  std::erase(active_, nullptr);
  if (active_.size() != before) ready_ = ready_ || !active_.empty();
  if (!active_.empty()) return;
  if (!broken_.ok()) close_lanes(Code::kAborted);
  set_busy(false);
}

void Redistribution::set_busy(bool busy) {
  if (busy_ == busy) return;
  if (busy) {
    communicator_.job().tasks().add(*this);
  } else {
    communicator_.job().tasks().remove(*this);
  }
  busy_ = busy;
}

void Redistribution::break_off(const Status& why) {
  if (!broken_.ok()) return;
  broken_ = why;
  ready_ = true;
  for (size_t i = 0; i < active_.size(); ++i) active_[i]->fail(why.code(), why.text());
}

void Redistribution::close_lanes(Code code) {
  if (!std::exchange(lanes_open_, false)) return;
  for (const auto& lane : shared_.lanes) {
    communicator_.job().pair(lane->lane.peer()).close_lane(lane->lane, code);
  }
}

Status Redistribution::close() {
  Engine& engine = communicator_.engine();
  {
    const Engine::Baton baton(engine);
    engine.drain();
    sweep_over();
    if (under_way_.load(std::memory_order_acquire) != 0) {
      return Status(Code::kBusy, fmt::format("{} executions are under way", under_way_.load()));
    }
    close_lanes(Code::kAborted);
    shared_.commons.host_blocks.drop_user();
  }
  communicator_.drop_lane_user();
  return {};
}

}  // namespace hetcomm::reshard
