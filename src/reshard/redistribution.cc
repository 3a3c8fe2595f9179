#include "src/reshard/redistribution.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/core.h>

#include "src/base/text.h"
#include "src/core/context/context.h"
#include "src/system/clock.h"
#include "src/system/variables.h"

namespace hetcomm::reshard {
namespace {

// The maximum number of consecutive executions that can be abandoned. A slow rank stores a note for
// each.
constexpr size_t kMaxInRow = 1u << 13;
// The maximum number of abandoned executions that are remembered. Notes about them can arrive late.
constexpr size_t kMaxGivenUp = 1u << 16;
constexpr size_t kMaxReason = 400;  // maximum length of a refusal's text in bytes

// Returns the job ranks to which |program| has tracks.
std::vector<int> peers_of(const Program& program, const Communicator& communicator) {
  std::set<int> peers;
  for (const ProgramTrack& track : program.tracks) {
    peers.insert(communicator.ranks()[static_cast<size_t>(track.peer)]);
  }
  return {peers.begin(), peers.end()};
}

ReshardBoard::Terms board_terms(const Communicator& communicator,
                                const RedistributionTerms& terms) {
  ReshardBoard::Terms own{.tag = terms.tag, .content = terms.content, .ranks = {}};
  // Other ranks do not include this rank in a plan in which it has no part.
  const bool has_part =
      std::find(terms.ranks.begin(), terms.ranks.end(), communicator.rank()) != terms.ranks.end();
  if (!has_part) return own;
  for (const int rank : terms.ranks) {
    if (rank != communicator.rank()) {
      own.ranks.push_back(communicator.ranks()[static_cast<size_t>(rank)]);
    }
  }
  return own;
}

// Returns the share for |track|. A rate limit for all tracks is divided in proportion to their
// bytes.
TrackShare share_of(const ProgramTrack& track, const Program& program, const TrackShare& share) {
  if (!track.sends || share.bytes_per_second == 0 || program.sent_bytes == 0) return share;
  uint64_t bytes = 0;
  for (const ProgramPhase& phase : program.phases) {
    for (const ProgramMessage& message : phase.sends) {
      if (&program.tracks[message.track] == &track) bytes += message.bytes;
    }
  }
  TrackShare own = share;
  const double part = static_cast<double>(bytes) / static_cast<double>(program.sent_bytes);
  own.bytes_per_second = std::max<uint64_t>(
      1, static_cast<uint64_t>(static_cast<double>(share.bytes_per_second) * part));
  return own;
}

}  // namespace

std::unique_ptr<Redistribution> Redistribution::create(Communicator& communicator, Program program,
                                                       const RedistributionTerms& terms) {
  std::unique_ptr<Redistribution> made(new Redistribution(communicator, std::move(program), terms));
  {
    const Engine::Baton baton(communicator.engine());
    made->active_.reserve(terms.in_flight);
    made->spare_.reserve(terms.in_flight);
    made->lined_up_.reserve(terms.in_flight);
    made->add_tracks(terms);
  }
  made->open_tracks();
  const Engine::Baton baton(communicator.engine());
  made->shared_.host_blocks.add_user();
  communicator.add_track_user();
  return made;
}

// Adds the plan to its board, and creates its tracks. If this throws, the plan is not on the board.
void Redistribution::add_tracks(const RedistributionTerms& terms) {
  const Program& own = shared_.program;
  shared_.talk.enter();
  try {
    for (const ProgramTrack& track : own.tracks) {
      const MemberChannel& peer = communicator_.poster().filler().member(track.peer);
      const uint64_t depth = uint64_t{track.messages} * terms.in_flight;
      shared_.turns.add(
          track.messages, track.sends ? Track::End::kSending : Track::End::kReceiving,
          communicator_, peer.rank, track.sends ? peer.channel : communicator_.id(),
          TrackTerms{.tag = terms.tag,
                     .most_bytes = track.most_bytes,
                     .depth = static_cast<uint32_t>(std::min<uint64_t>(depth, Track::kMaxDepth)),
                     .use = 1 + track.hop,
                     .content = terms.content,
                     .plan = shared_.talk.number_with(peer.rank)},
          share_of(track, own, terms.share));
      shared_.turns.track(shared_.turns.size() - 1).set_watcher(*this);
    }
  } catch (const std::bad_alloc&) {
    shared_.talk.close();
    throw;
  }
}

// Opens all tracks. If that fails, closes those already open, removes the plan from its board, and
// throws std::bad_alloc.
void Redistribution::open_tracks() {
  Poster& poster = communicator_.poster();
  const TrackTurns& turns = shared_.turns;
  size_t open = 0;
  try {
    for (; open < turns.size(); ++open) poster.open_track(turns.track(open));
    const Engine::Baton baton(communicator_.engine());
    tracks_open_ = true;
    shared_.talk.catch_up();
  } catch (const std::bad_alloc&) {
    {
      const Engine::Baton baton(communicator_.engine());
      tracks_open_ = false;
      shared_.talk.close();
    }
    while (open-- > 0) {
      // No message has begun, so this call cannot fail.
      [[maybe_unused]] const Code code = poster.close_track(turns.track(open));
    }
    throw;
  }
}

Redistribution::Redistribution(Communicator& communicator, Program program,
                               const RedistributionTerms& terms)
    : communicator_(communicator),
      shared_{.communicator = communicator,
              .data = communicator.job().data(),
              .host_blocks = communicator.job().host_blocks(),
              .own_rank = communicator.job().rank(),
              .program = std::move(program),
              .claims = Claims(terms.in_flight),
              .turns = TrackTurns(communicator.job()),
              .talk = ReshardTalk(communicator, *this, board_terms(communicator, terms),
                                  peers_of(shared_.program, communicator)),
              .packed = Landing(communicator.job().host_blocks(), terms.landing_bytes),
              .landed = Landing(communicator.job().host_blocks(), terms.landing_bytes)},
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

// Acquires a permit. Returns false if the maximum number of executions is in progress.
bool Redistribution::take_permit() {
  uint32_t taken = under_way_.load(std::memory_order_relaxed);
  while (taken < in_flight_) {
    if (under_way_.compare_exchange_weak(taken, taken + 1, std::memory_order_relaxed)) return true;
  }
  return false;
}

// Returns a fresh execution that has a permit, or null if no permit is available.
std::unique_ptr<Execution> Redistribution::take() {
  std::unique_ptr<Execution> execution;
  {
    const Engine::Baton baton(communicator_.engine());
    sweep_over();
    if (!take_permit()) return nullptr;
    if (!spare_.empty()) {
      execution = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  if (execution == nullptr) {
    try {
      execution.reset(new Execution(*this, shared_));
    } catch (const std::bad_alloc&) {
      give_permit();
      throw;
    }
  }
  execution->own_permit();
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
  // Members of a group start together, so a stream does not order them. A stream that is not held
  // back guarantees no order either.
  const bool in_order = !options.in_group && options.stream != nullptr && options.stream->is_held();
  code = execution->claim(sources, destinations, in_order ? options.stream : nullptr, text);
  if (code != Code::kOk) return code;
  std::unique_ptr<Departure> departure;
  if (!options.in_group) code = Poster::book(options.stream, &departure, text);
  if (code != Code::kOk) return code;
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
    execution->bind(sources, destinations, options.label, *operation);
    pending_.fetch_add(1, std::memory_order_relaxed);
  } catch (const std::bad_alloc&) {
    operation->clear_pieces();
    engine.pool().recycle(operation);
    throw;
  }
  operation->composite = execution.release();
  OperationFiller::name_stream(options.stream, *operation);
  if (departure != nullptr) book_departure(*operation, std::move(departure));
  {
    const Engine::Baton baton(engine);
    if (options.in_group) {
      poster.collect(*operation);
    } else {
      operation->set_state(OperationState::kPending);
      poster.start_now(*operation);
    }
  }
  if (!options.in_group && engine.threaded()) engine.note_pending();
  *out = operation;
  return Code::kOk;
}

// --- executions ---------------------------------------------------------------

// Assigns the next number to |execution|, unless it already has a number. Then notifies the other
// ranks, unless the plan has ended.
void Redistribution::call(Execution& execution) {
  if (execution.has_number()) return;
  execution.set_number(next_number_++);
  if (!broken_.ok()) return;
  shared_.talk.introduce();
  if (execution.label().is_set()) shared_.talk.tell(execution.number(), execution.label());
}

void Redistribution::lined_up(Execution& execution) {
  call(execution);
  execution.set_lined_up(true);
  lined_up_.push_back(&execution);  // create() has reserved capacity for all executions
}

void Redistribution::leave_line(Execution& execution) {
  if (!execution.is_lined_up()) return;
  execution.set_lined_up(false);
  std::erase(lined_up_, &execution);
}

Status Redistribution::begin(Execution& execution, Operation& /*operation*/) {
  call(execution);
  leave_line(execution);
  if (const auto found = given_up_.find(execution.number()); found != given_up_.end()) {
    shared_.talk.forget_labels(execution.number());
    return found->second.status();
  }
  if (!broken_.ok()) return ended();
  try {
    active_.reserve(active_.size() + 1);
    set_busy(true);
  } catch (const std::bad_alloc&) {
    // The other ranks expect this execution, so no later one can begin without it.
    break_off_and_sweep(Code::kOutOfMemory);
    return Code::kOutOfMemory;
  }
  active_.emplace_back(&execution);
  note_ready();
  execution.start();
  if (has_closed_track_) execution.track_closed();
  return {};
}

// Withdraws |execution|, which will not begin. If it was cancelled or is late, and can be
// abandoned, the other executions continue.
void Redistribution::withdraw(Execution& execution, const Status& why) {
  call(execution);
  leave_line(execution);
  if (why.code() == Code::kCancelled || why.code() == Code::kTimedOut) {
    if (give_up(execution, why)) return;
  } else if (given_up_.contains(execution.number())) {
    return;  // the other ranks have already been notified
  }
  break_off_and_sweep(why);
}

// Returns the status with which |execution|, which waits for a stream, is bound to end, or ok if it
// can still begin. Another rank's report about |execution| has precedence over the end of the plan.
// No rank completes its part of an execution before this rank has begun its own. A peer that has
// closed a track therefore takes no part in executions that are still waiting. They end only when
// no execution is active, because an active one may not need that peer.
Status Redistribution::known_end(const Execution& execution) const {
  if (const auto found = given_up_.find(execution.number()); found != given_up_.end()) {
    return found->second.status();
  }
  if (!broken_.ok()) return ended();
  for (size_t i = 0; i < shared_.turns.size() && active_.empty(); ++i) {
    const Track& track = shared_.turns.track(i);
    if (!track.closed().ok()) return track.closed();
  }
  return {};
}

Execution* Redistribution::find(uint64_t number) {
  for (const auto& each : active_) {
    if (each->number() == number && !each->is_over()) return each.get();
  }
  for (Execution* const each : lined_up_) {
    if (each->number() == number) return each;
  }
  return nullptr;
}

bool Redistribution::give_up(Execution& execution, const Status& why) {
  if (!broken_.ok()) return false;
  if (given_up_.contains(execution.number())) return true;
  try {
    return note_given_up({.execution = execution.number(),
                          .code = why.code(),
                          .origin = communicator_.rank(),
                          .text = std::string(why.text())},
                         -1);
  } catch (const std::bad_alloc&) {
    return false;
  }
}

// Records |given_up|, and notifies the other ranks before any message of that execution ends here.
// |from| is the job rank that reported it, or -1 if this rank abandons the execution. Returns false
// if too many consecutive executions were abandoned, or memory runs out.
bool Redistribution::note_given_up(const GivenUp& given_up, int from) {
  if (in_row_ >= kMaxInRow) return false;
  try {
    given_up_.emplace(given_up.execution, given_up);
    shared_.talk.tell(given_up, from);
    shared_.turns.skip(given_up.execution);
  } catch (const std::bad_alloc&) {
    return false;
  }
  ++in_row_;
  if (given_up_.size() > kMaxGivenUp) given_up_.erase(given_up_.begin());
  shared_.talk.forget_labels(given_up.execution);
  note_ready();  // it may now be the turn of other executions
  return true;
}

void Redistribution::refuse(std::string_view why) {
  Engine& engine = communicator_.engine();
  const Engine::Baton baton(engine);
  engine.drain_queued();
  if (!broken_.ok()) return;
  const GivenUp given_up{.execution = next_number_,
                         .code = Code::kMismatch,
                         .origin = communicator_.rank(),
                         .text = printable_beginning(why, kMaxReason)};
  shared_.talk.introduce();
  ++next_number_;
  if (given_up_.contains(given_up.execution)) return;  // another rank has already refused it
  if (note_given_up(given_up, -1)) return;
  break_off_and_sweep(status_or_code(Code::kBusy, [&]() HETCOMM_UNDER_BATON {
    return fmt::format(
        "rank {} has refused redistribution #{}, and {} in front of it were given up",
        communicator_.rank(), given_up.execution, in_row_);
  }));
}

// Restarts the count of consecutive abandoned executions. From now on, only executions after
// |execution|, which has succeeded, count.
void Redistribution::begin_row(uint64_t execution) {
  if (in_row_ == 0) return;
  in_row_ = static_cast<size_t>(std::distance(given_up_.upper_bound(execution), given_up_.end()));
}

// --- reports of other ranks -----------------------------------------------------

void Redistribution::plan_differs(int rank, const Status& why) {
  differs_ = differs_ || broken_.ok();
  differing_.insert(rank);
  break_off_and_sweep(why);
}

void Redistribution::peer_gave_up(int from, const GivenUp& given_up) {
  if (!broken_.ok() || given_up_.contains(given_up.execution)) return;
  Execution* execution = find(given_up.execution);
  const bool is_over = execution == nullptr && given_up.execution < next_number_;
  const bool is_active = execution != nullptr && !execution->is_lined_up();
  const Status why = given_up.status();
  // An execution that is over, or of which this rank has moved data, cannot be abandoned alone.
  if (is_over || (is_active && execution->has_moved()) || !note_given_up(given_up, from)) {
    break_off_and_sweep(why);
    return;
  }
  execution = find(given_up.execution);  // the plan may have ended for lack of memory
  if (execution == nullptr) return;
  if (is_active) {
    execution->end_alone(why);
  } else {
    communicator_.end(execution->operation(), why.code(), why.text());
  }
}

void Redistribution::label_came(uint64_t execution) {
  Execution* const own = find(execution);
  if (own != nullptr && !own->is_lined_up()) {
    own->compare_labels();
    note_ready();
  } else if (own == nullptr && execution < next_number_) {
    shared_.talk.forget_labels(execution);
  }
}

// --- progress -----------------------------------------------------------------

int Redistribution::progress() {
  ready_ = false;
  // Executions that fail here do not change |active_|.
  if (std::exchange(is_track_closed_, false)) {
    for (const auto& each : active_) each->track_closed();
  }
  for (size_t i = 0; i < active_.size(); ++i) {
    if (active_[i]->advance(i == 0)) note_ready();
  }
  sweep_over();
  return 1;
}

// Logs a pause, at most once per execution.
void Redistribution::note_pause(uint64_t pause_ns) {
  if (active_.empty()) return;
  const uint64_t oldest = active_.front()->number();
  if (oldest < quiet_until_) return;
  quiet_until_ = oldest + 1;
  communicator_.context().log().info(
      "redistribution #{} has waited {:.1f} s for this rank's next call: without the progress "
      "thread nothing moves between calls",
      oldest, static_cast<double>(pause_ns) / 1e9);
}

// Records that there is work to do. While no execution is active, progress() need not be called.
void Redistribution::note_ready() {
  ready_ = true;
  if (busy_) communicator_.job().tasks().note_ready(*this);
}

// Ends the plan from a callback. While executions are active, progress() sweeps later.
void Redistribution::break_off_and_sweep(const Status& why) {
  break_off(why);
  if (!busy_) sweep_over();
}

// Returns the status for executions that would begin after the plan has ended.
Status Redistribution::ended() const {
  if (differs_) return broken_;
  return status_or_code(broken_.code(), [&]() HETCOMM_UNDER_BATON {
    return fmt::format("the plan has ended; destroy it and create another one, on all ranks: {}",
                       broken_.text());
  });
}

// Ends the executions that are waiting for a user's stream and cannot succeed any more.
void Redistribution::end_lined_up() {
  for (size_t i = lined_up_.size(); i-- > 0;) {
    const Status why = known_end(*lined_up_[i]);
    if (!why.ok()) communicator_.end(lined_up_[i]->operation(), why.code(), why.text());
    i = std::min(i, lined_up_.size());
  }
}

// Records that a track was closed. progress() then ends the executions that still have to start a
// message on it. Otherwise they would wait for ranks that are not notified of the closing.
void Redistribution::track_closed() {
  has_closed_track_ = is_track_closed_ = true;
  note_ready();
  if (active_.empty()) end_lined_up();
}

void Redistribution::sweep_over() {
  if (!broken_.ok()) end_lined_up();
  const size_t before = active_.size();
  for (auto& execution : active_) {
    if (!execution->is_over()) continue;
    if (execution->has_succeeded()) begin_row(execution->number());
    // |spare_| has capacity for the maximum number in progress. Further executions are destroyed.
    if (spare_.size() < spare_.capacity()) {
      execution->reset();
      spare_.push_back(std::move(execution));
    } else {
      execution.reset();
    }
  }
  std::erase(active_, nullptr);
  if (active_.size() != before && !active_.empty()) note_ready();
  // Closes tracks early, so that their ranks do not wait for device copies or for messages with
  // other ranks.
  if (!broken_.ok()) close_tracks(broken_);
  if (active_.empty()) set_busy(false);
  if (active_.empty() && has_closed_track_) end_lined_up();
}

void Redistribution::set_busy(bool busy) {
  if (busy_ == busy) return;
  TaskList& tasks = communicator_.job().tasks();
  if (busy) {
    tasks.add(*this);
    if (ready_) tasks.note_ready(*this);
  } else {
    tasks.remove(*this);
  }
  busy_ = busy;
}

void Redistribution::break_off(const Status& why) {
  if (!broken_.ok()) return;
  broken_ = why;
  note_ready();
  for (size_t i = 0; i < active_.size(); ++i) active_[i]->fail(why.code(), why.text());
}

// Returns the status to report to rank |rank|. MISMATCH is reported only to ranks whose plan
// differs.
Status Redistribution::told_to(int rank, const Status& why) const {
  if (!differs_ || why.code() != Code::kMismatch || differing_.contains(rank)) return why;
  return status_or_code(Code::kAborted, [&] { return std::string(why.text()); });
}

// Closes the tracks on which no message is in flight.
void Redistribution::close_tracks(const Status& why) {
  if (!tracks_open_) return;
  for (size_t i = 0; i < shared_.turns.size(); ++i) {
    Track& track = shared_.turns.track(i);
    if (track.taken() > 0 || !shared_.turns.take_closing(i)) continue;
    const bool differs = differs_ && differing_.contains(track.peer());
    communicator_.job().pair(track.peer()).close_track(track, told_to(track.peer(), why), differs);
  }
}

bool Redistribution::drain(uint64_t timeout_ns) {
  const uint64_t limit_ns =
      timeout_ns == 0 ? communicator_.context().config().number(variable::kTimeout) : timeout_ns;
  return communicator_.engine().wait(deadline_after(now_ns(), limit_ns),
                                     [this] { return pending() == 0; });
}

void Redistribution::cancel() {
  Engine& engine = communicator_.engine();
  const Engine::Baton baton(engine);
  engine.drain();
  const void* const own = static_cast<const ExecutionOwner*>(this);
  engine.pool().for_each([&](Operation& operation) HETCOMM_UNDER_BATON {
    if (operation.state() == OperationState::kPending &&
        operation.kind == OperationKind::kCollective && operation.composite != nullptr &&
        operation.composite->order() == own) {
      communicator_.cancel(operation);
    }
  });
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
    close_tracks(status_or_code(Code::kAborted, [&] {
      return fmt::format("rank {} destroyed its plan", communicator_.job().rank());
    }));
    shared_.talk.close();
    shared_.host_blocks.drop_user();
  }
  communicator_.drop_track_user();
  return {};
}

}  // namespace hetcomm::reshard
