#include "src/core/collectives/collective.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/base/text.h"
#include "src/core/collectives/team.h"
#include "src/core/communicator.h"
#include "src/core/context.h"

namespace hetcomm::collectives {
namespace {

using reduce::Operator;
using reduce::Type;

constexpr uint64_t kLaneMask = 0xff;

bool on_device(const BufferPiece& piece) {
  return piece.length > 0 && piece.memory != nullptr && !piece.memory->host_accessible();
}

}  // namespace

std::byte* Side::host_address(const BufferPiece& piece) {
  if (piece.memory == nullptr) return reinterpret_cast<std::byte*>(piece.offset);
  return static_cast<std::byte*>(piece.memory->address()) + piece.offset;
}

// --- checks -----------------------------------------------------------------

void Side::reset() {
  one = {};
  many.clear();
  lengths.clear();
  starts.clear();
  length = stride = 0;
  on_device = false;
  staged.reset();
}

void Collective::reset() {
  communicator_ = nullptr;
  team_ = nullptr;
  operation_ = nullptr;
  problem_ = {};
  call_ = {};
  list_.clear();
  wait_all_ = in_segment_ = ready_ = false;
  stage_ = Stage::kQueued;
  copies_ = 0;
  sequence_ = started_ns_ = forsaken_ns_ = tag_ = 0;
  send_.reset();
  receive_.reset();
  scaled_.reset();
  lanes_ = next_lane_ = lanes_done_ = 0;
  for (Lane& lane : lane_list_) lane.reset();
  parts_.clear();
  code_ = Code::kOk;
  text_.clear();
}

Code Collective::set_up(Communicator& communicator, const Arguments& arguments, std::string* text) {
  communicator_ = &communicator;
  problem_.kind = arguments.kind;
  if (Code code = set_up_list(communicator, arguments, text); code != Code::kOk) return code;
  if (Code code = set_up_options(arguments, text); code != Code::kOk) return code;
  return set_up_buffers(arguments, text);
}

Code Collective::set_up_list(const Communicator& communicator, const Arguments& arguments,
                             std::string* text) {
  problem_.ranks = static_cast<uint32_t>(communicator.size());
  problem_.rank = static_cast<uint32_t>(communicator.rank());
  if (arguments.options != nullptr && arguments.options->ranks != nullptr) {
    const size_t count = arguments.options->rank_count;
    if (count == 0 || count > problem_.ranks) {
      *text = fmt::format("a list of {} ranks among {}", count, communicator.size());
      return Code::kInvalidArgument;
    }
    list_.assign(arguments.options->ranks, arguments.options->ranks + count);
    std::vector<bool> seen(problem_.ranks);
    size_t own = count;
    for (size_t i = 0; i < count; ++i) {
      const int32_t rank = list_[i];
      if (rank < 0 || rank >= communicator.size()) {
        *text = fmt::format("there is no rank {} among {}", rank, communicator.size());
        return Code::kOutOfRange;
      }
      if (seen[static_cast<size_t>(rank)]) {
        *text = fmt::format("rank {} stands twice in the list", rank);
        return Code::kInvalidArgument;
      }
      seen[static_cast<size_t>(rank)] = true;
      if (rank == communicator.rank()) own = i;
    }
    if (own == count) {
      *text = fmt::format("rank {}, which calls, is not in the list", communicator.rank());
      return Code::kInvalidArgument;
    }
    problem_.ranks = static_cast<uint32_t>(count);
    problem_.rank = static_cast<uint32_t>(own);
    // The same as no list.
    bool in_order = count == static_cast<size_t>(communicator.size());
    for (size_t i = 0; i < count && in_order; ++i) in_order = list_[i] == static_cast<int32_t>(i);
    if (in_order) list_.clear();
  }
  if (arguments.root < 0 || static_cast<uint32_t>(arguments.root) >= problem_.ranks) {
    *text = fmt::format("root: there is no rank {} among {}", arguments.root, problem_.ranks);
    return Code::kOutOfRange;
  }
  problem_.root = static_cast<uint32_t>(arguments.root);
  return Code::kOk;
}

Code Collective::set_up_options(const Arguments& arguments, std::string* text) {
  const Kind kind = problem_.kind;
  if (arguments.datatype < 0 || arguments.datatype > HETCOMM_COMPLEX128) {
    *text = fmt::format("there is no type {}", arguments.datatype);
    return Code::kInvalidArgument;
  }
  call_.kind = kind;
  if (arguments.splits) call_.variant = Variant::kSplit;
  call_.root = problem_.root;
  call_.datatype = arguments.datatype;
  problem_.element_bytes = reduce::size_of(static_cast<Type>(arguments.datatype));
  if (reduces(kind)) {
    if (arguments.reduction < 0 || arguments.reduction > HETCOMM_REDUCE_PREMUL_SUM) {
      *text = fmt::format("there is no operator {}", arguments.reduction);
      return Code::kInvalidArgument;
    }
    if (!reduce::is_defined(static_cast<Type>(arguments.datatype),
                            static_cast<Operator>(arguments.reduction))) {
      *text = "the operator is not defined for this type";
      return Code::kUnsupported;
    }
    call_.reduction = arguments.reduction;
    problem_.rounds = reduce::rounds(static_cast<Type>(arguments.datatype),
                                     static_cast<Operator>(arguments.reduction));
    problem_.wide_bytes = sizeof(float);
  }
  const hetcomm_collective_options_t* options = arguments.options;
  if (options == nullptr) return Code::kOk;
  constexpr uint32_t kBarrierFlags = HETCOMM_COLLECTIVE_MONITORED | HETCOMM_COLLECTIVE_WAIT_ALL;
  const uint32_t known = kind == Kind::kBarrier ? kBarrierFlags
                         : kind == Kind::kScan  ? HETCOMM_COLLECTIVE_EXCLUSIVE
                                                : 0;
  if ((options->flags & ~known) != 0) {
    *text = fmt::format("flags has bits that a {} does not know", name_of(kind));
    return Code::kInvalidArgument;
  }
  problem_.exclusive = (options->flags & HETCOMM_COLLECTIVE_EXCLUSIVE) != 0;
  problem_.monitored = (options->flags & HETCOMM_COLLECTIVE_MONITORED) != 0;
  wait_all_ = (options->flags & HETCOMM_COLLECTIVE_WAIT_ALL) != 0;
  if (wait_all_ && !problem_.monitored) {
    *text = "WAIT_ALL needs MONITORED";
    return Code::kInvalidArgument;
  }
  if (problem_.exclusive) call_.variant = Variant::kExclusive;
  call_.monitored = problem_.monitored ? 1 : 0;
  if (call_.reduction == HETCOMM_REDUCE_PREMUL_SUM) call_.factor = options->factor;
  if (options->algorithm != nullptr) {
    std::string names;
    if (!find_algorithm(kind, options->algorithm, &problem_.algorithm, &names)) {
      *text = fmt::format("{} has no algorithm '{}'; there are {}", name_of(kind),
                          options->algorithm, names);
      return Code::kUnsupported;
    }
    call_.algorithm = problem_.algorithm;
  }
  return Code::kOk;
}

Code Collective::fill_side(Side* side, const hetcomm_buffer_t* buffers, size_t count, bool parts,
                           std::string* text) {
  if (parts) {
    side->many.reserve(count);
    side->lengths.reserve(count);
  }
  for (size_t i = 0; i < count; ++i) {
    const hetcomm_buffer_t& buffer = buffers[i];
    auto* memory = reinterpret_cast<Memory*>(buffer.memory);
    if (memory != nullptr && !memory->contains(buffer.offset, buffer.length)) {
      *text = fmt::format("buffer {}: offset {} and length {} end past the memory's {} bytes", i,
                          buffer.offset, buffer.length, memory->size());
      return Code::kOutOfRange;
    }
    const BufferPiece piece{memory, buffer.offset, buffer.length};
    if (buffer.length > UINT64_MAX - side->length) {
      *text = "the buffers together are longer than 2^64 bytes";
      return Code::kOutOfRange;
    }
    if (parts) {
      side->starts.push_back(side->length);
      side->lengths.push_back(buffer.length);
      side->many.push_back(piece);
    } else {
      side->one = piece;
    }
    side->length += buffer.length;
    side->on_device = side->on_device || on_device(piece);
  }
  return Code::kOk;
}

Code Collective::check_elements(const Side& side, std::string* text) const {
  const auto whole = [this](uint64_t bytes) { return bytes % problem_.element_bytes == 0; };
  bool good = side.many.empty() ? whole(side.length)
                                : std::all_of(side.lengths.begin(), side.lengths.end(), whole);
  if (good) return Code::kOk;
  *text = fmt::format("a buffer's length is no multiple of the {} bytes of an element",
                      problem_.element_bytes);
  return Code::kInvalidArgument;
}

Code Collective::set_up_buffers(const Arguments& arguments, std::string* text) {
  const Kind kind = problem_.kind;
  const bool at_root = problem_.rank == problem_.root;
  const bool send_many = sends_many(kind);
  const bool receive_many = receives_many(kind);
  const bool sends = !(kind == Kind::kScatter || kind == Kind::kScatterv) || at_root;
  const bool receives =
      !(kind == Kind::kReduce || kind == Kind::kGather || kind == Kind::kGatherv) || at_root;
  if (sends) {
    const Code code = fill_side(&send_, arguments.sends,
                                send_many ? problem_.ranks : arguments.send_count, send_many, text);
    if (code != Code::kOk) return code;
  }
  if (receives) {
    const Code code =
        fill_side(&receive_, arguments.receives,
                  receive_many ? problem_.ranks : arguments.receive_count, receive_many, text);
    if (code != Code::kOk) return code;
  }
  for (const Side* side : {&send_, &receive_}) {
    if (const Code code = check_elements(*side, text); code != Code::kOk) return code;
  }
  return check_sizes(arguments, text);
}

// What the lengths are to each other; sets those of the problem and of the call.
Code Collective::check_sizes(const Arguments& /*arguments*/, std::string* text) {
  const uint64_t n = problem_.ranks;
  const bool at_root = problem_.rank == problem_.root;
  const auto refuse = [&](uint64_t sent, uint64_t received) {
    *text = fmt::format("{}: {} bytes to send and {} to receive do not fit together",
                        name_of(problem_.kind), sent, received);
    return Code::kInvalidArgument;
  };
  const uint64_t own_sent = send_.many.empty() ? send_.length : send_.lengths[problem_.rank];
  const uint64_t own_received =
      receive_.many.empty() ? receive_.length : receive_.lengths[problem_.rank];
  switch (problem_.kind) {
    case Kind::kBarrier:
      break;
    case Kind::kBroadcast:
      problem_.bytes = receive_.length;
      break;
    case Kind::kReduce:
      if (at_root && send_.length != receive_.length) return refuse(send_.length, receive_.length);
      problem_.bytes = send_.length;
      break;
    case Kind::kAllreduce:
    case Kind::kScan:
      if (send_.length != receive_.length) return refuse(send_.length, receive_.length);
      problem_.bytes = send_.length;
      break;
    case Kind::kAllgather:
    case Kind::kGather:
      if ((at_root || problem_.kind == Kind::kAllgather) &&
          (receive_.length % n != 0 || receive_.length / n != send_.length)) {
        return refuse(send_.length, receive_.length);
      }
      problem_.bytes = send_.length;
      break;
    case Kind::kReduceScatter:
    case Kind::kScatter:
      if ((at_root || problem_.kind == Kind::kReduceScatter) &&
          (send_.length % n != 0 || send_.length / n != receive_.length)) {
        return refuse(send_.length, receive_.length);
      }
      problem_.bytes = receive_.length;
      break;
    case Kind::kAlltoall:
      if (send_.length != receive_.length || send_.length % (n * problem_.element_bytes) != 0) {
        return refuse(send_.length, receive_.length);
      }
      problem_.bytes = send_.length / n;
      break;
    case Kind::kAllgatherv:
    case Kind::kAlltoallv:
      if (own_sent != own_received) return refuse(own_sent, own_received);
      problem_.bytes = own_sent;
      break;
    case Kind::kGatherv:
      if (at_root && own_sent != own_received) return refuse(own_sent, own_received);
      problem_.bytes = own_sent;
      break;
    case Kind::kReduceScatterv:
      if (own_sent != own_received) return refuse(own_sent, own_received);
      problem_.bytes = own_received;
      break;
    case Kind::kScatterv:
      if (at_root && own_sent != own_received) return refuse(own_sent, own_received);
      problem_.bytes = own_received;
      break;
  }
  send_.stride = receive_.stride = problem_.bytes;
  problem_.send_parts = send_.lengths;
  problem_.receive_parts = receive_.lengths;
  switch (problem_.kind) {
    case Kind::kAlltoallv:
    case Kind::kGatherv:
    case Kind::kScatterv:
      break;
    case Kind::kAllgatherv:
      call_.parts = hash_parts(receive_.lengths);
      break;
    case Kind::kReduceScatterv:
      call_.parts = hash_parts(send_.lengths);
      break;
    default:
      call_.bytes = problem_.bytes;
  }
  return Code::kOk;
}

void Collective::attach(Operation& operation) {
  operation_ = &operation;
  for (const Side* side : {&send_, &receive_}) {
    if (side->one.memory != nullptr) operation.pieces.push_back(side->one);
    for (const BufferPiece& piece : side->many) {
      if (piece.memory != nullptr) operation.pieces.push_back(piece);
    }
  }
  for (const BufferPiece& piece : operation.pieces) piece.memory->add_use();
}

// --- life -------------------------------------------------------------------

Mesh& Collective::mesh() const { return communicator_->mesh(); }

void Collective::place(Team& team, uint64_t sequence, uint64_t now_ns) {
  team_ = &team;
  sequence_ = sequence;
  started_ns_ = now_ns;
  operation_->stage = OperationStage::kCollective;
}

void Collective::start(bool in_segment) {
  in_segment_ = in_segment;
  try {
    load();
  } catch (const std::bad_alloc&) {
    give_up(Code::kOutOfMemory, "out of memory");
  }
}

bool Collective::loads(const Side& side) const {
  if (!side.on_device || side.length == 0) return false;
  if (&side == &send_) return true;
  return problem_.kind == Kind::kBroadcast && problem_.rank == problem_.root;
}

bool Collective::stores() const {
  if (!receive_.on_device || receive_.length == 0) return false;
  if (problem_.kind == Kind::kBroadcast) return problem_.rank != problem_.root;
  return problem_.kind != Kind::kScan || !problem_.exclusive || problem_.rank != 0;
}

bool Collective::start_copy(Side& side, StreamDirection direction) {
  std::vector<BufferPiece> pieces = side.many;
  if (pieces.empty()) pieces.push_back(side.one);
  ++copies_;
  mesh().commons().staging.start(side.copy, direction, pieces, 0, side.staged.get(), side.length,
                                 *this);
  return true;
}

void Collective::load() {
  stage_ = Stage::kLoading;
  for (Side* side : {&send_, &receive_}) {
    if (!side->on_device || side->length == 0) continue;
    side->staged = PoolBytes(mesh().commons().blocks, side->length);
    if (!side->staged) {
      give_up(Code::kOutOfMemory, "out of memory");
      return;
    }
  }
  for (Side* side : {&send_, &receive_}) {
    if (loads(*side)) start_copy(*side, StreamDirection::kToHost);
  }
  if (copies_ == 0) begin_moving();
}

void Collective::on_copied(const Status& status) {
  --copies_;
  if (stage_ == Stage::kEnding) {
    try_to_end();
    return;
  }
  if (!status.ok()) {
    give_up(status.code(), status.text());
    return;
  }
  if (copies_ > 0) return;
  if (stage_ == Stage::kStoring) {
    finish();
    return;
  }
  ready_ = true;
  team_->note_ready();
}

void Collective::begin_moving() {
  stage_ = Stage::kMoving;
  if (!scale()) {
    give_up(Code::kOutOfMemory, "out of memory");
    return;
  }
  if (in_segment_) {
    team_->begin_in_segment();
    return;
  }
  tag_ = team_->tag(sequence_, call_);
  problem_.topology = &team_->topology();
  problem_.algorithm = choose(problem_);
  lanes_ = count_lanes(problem_);
  const uint64_t at_once = std::min<uint64_t>(lanes_, kLanesAtOnce);
  if (lane_list_.size() < at_once) lane_list_.resize(at_once);
  advance();
}

// PREMUL_SUM: the rest works on elements that were multiplied. What rounds is multiplied where it
// is summed.
bool Collective::scale() {
  if (call_.reduction != HETCOMM_REDUCE_PREMUL_SUM || problem_.rounds || send_.length == 0) {
    return true;
  }
  scaled_ = PoolBytes(mesh().commons().blocks, send_.length);
  if (!scaled_) return false;
  const auto type = static_cast<Type>(call_.datatype);
  if (send_.many.empty()) {
    reduce::scale(type, scaled_.get(), send_.address(0), send_.length / problem_.element_bytes,
                  call_.factor);
    return true;
  }
  for (uint32_t part = 0; part < problem_.ranks; ++part) {
    if (send_.lengths[part] == 0) continue;
    reduce::scale(type, scaled_.get() + send_.starts[part], send_.address(part),
                  send_.lengths[part] / problem_.element_bytes, call_.factor);
  }
  return true;
}

void Collective::moved() { store(); }

void Collective::store() {
  stage_ = Stage::kStoring;
  if (stores()) {
    start_copy(receive_, StreamDirection::kFromHost);
    return;
  }
  finish();
}

void Collective::finish() {
  stage_ = Stage::kOver;
  operation_->run.bytes_sent = send_.length;
  operation_->run.bytes_received = receive_.length;
  if (problem_.kind == Kind::kBroadcast && problem_.rank == problem_.root) {
    std::swap(operation_->run.bytes_sent, operation_->run.bytes_received);
  }
  operation_->composite = nullptr;
  mesh().commons().completer.finish(*operation_);
  operation_ = nullptr;
  team_->note_ready();
}

void Collective::fail(Code code, const std::string& text) {
  if (stage_ == Stage::kEnding || stage_ == Stage::kOver) return;
  stage_ = Stage::kEnding;
  code_ = code;
  text_ = text_or_none([&] { return text; });
  // Ended messages take themselves out of the list, some at once.
  for (size_t i = parts_.size(); i-- > 0;) {
    if (i >= parts_.size()) continue;
    mesh().end_operation(*parts_[i], Code::kCancelled,
                         "the operation that it is part of has failed");
  }
  try_to_end();
}

void Collective::try_to_end() {
  if (stage_ != Stage::kEnding || !parts_.empty() || copies_ > 0) return;
  stage_ = Stage::kOver;
  operation_->code = code_;
  try {
    operation_->text = std::make_unique<std::string>(std::move(text_));
  } catch (const std::bad_alloc&) {
    operation_->text.reset();  // the code has to do
  }
  operation_->composite = nullptr;
  mesh().commons().completer.finish(*operation_);
  operation_ = nullptr;
  if (team_ != nullptr) team_->note_ready();
}

// Others may wait for what this rank does not do any more.
void Collective::end(Code code, const std::string& text) {
  const std::string full = text_or_none([&] { return text + missing(); });
  const Code shown = code;
  fail(code, full);
  communicator_->fail_collectives(shown, full);
}

uint64_t Collective::next_timer_ns() const {
  return forsaken_ns_ != 0 ? forsaken_ns_ + kReasonNs : kForever;
}

void Collective::tick(uint64_t now_ns) {
  if (stage_ == Stage::kMoving && now_ns >= next_timer_ns()) {
    give_up(Code::kAborted, "another rank has ended it");
  }
}

void Collective::give_up(Code code, std::string_view why) {
  end(code, text_or_none([&] { return fmt::format("{}: {}", describe(), why); }));
}

void Collective::refuse_length(int32_t shown_rank, uint64_t sent, uint64_t expected) {
  give_up(Code::kMismatch, text_or_none([&] {
            return fmt::format("rank {} sent {} bytes, and {} are expected", shown_rank, sent,
                               expected);
          }));
}

std::string Collective::describe() const {
  return fmt::format("{} #{} of rank {}", collectives::describe(call_), sequence_,
                     communicator_->rank());
}

std::string Collective::missing() const {
  if (team_ == nullptr) return {};
  std::vector<int> peers;
  for (const Operation* part : parts_) {
    if (part->kind == OperationKind::kReceive) peers.push_back(communicator_->rank_of(part->peer));
  }
  if (in_segment_ && stage_ == Stage::kMoving) peers = team_->missing_in_segment();
  if (stage_ == Stage::kQueued) peers = team_->missing_in_agreement();
  if (peers.empty()) return {};
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  if (problem_.monitored && !wait_all_) peers.resize(1);
  return fmt::format("; still waits for rank {}", fmt::join(peers, ", rank "));
}

// --- lanes ------------------------------------------------------------------

void Collective::advance() {
  ready_ = false;
  if (stage_ == Stage::kLoading && copies_ == 0) {
    begin_moving();
    return;
  }
  if (stage_ != Stage::kMoving || in_segment_) return;
  try {
    bool again = true;
    while (again && stage_ == Stage::kMoving) {
      again = false;
      for (size_t slot = 0; slot < lane_list_.size() && stage_ == Stage::kMoving; ++slot) {
        Lane& lane = lane_list_[slot];
        if (!lane.active && next_lane_ < lanes_ && next_lane_ - oldest_lane() <= kLaneMask) {
          lane.index = next_lane_++;
          make_plan(problem_, lane.index, &lane.plan);
          lane.scratch = PoolBytes(mesh().commons().blocks, lane.plan.scratch_bytes);
          if (!lane.scratch) throw std::bad_alloc();
          lane.active = true;
        }
        if (!lane.active || lane.pending > 0) continue;
        advance(lane, slot);
        again = again || (!lane.active && next_lane_ < lanes_);
      }
    }
  } catch (const std::bad_alloc&) {
    give_up(Code::kOutOfMemory, "out of memory");
    return;
  }
  if (stage_ == Stage::kMoving && lanes_done_ == lanes_) store();
}

// Of those under way: tags tell no more lanes apart than follow it.
uint64_t Collective::oldest_lane() const {
  uint64_t oldest = next_lane_;
  for (const Lane& lane : lane_list_) {
    if (lane.active) oldest = std::min(oldest, lane.index);
  }
  return oldest;
}

void Collective::advance(Lane& lane, size_t slot) {
  const std::vector<Step>& steps = lane.plan.steps;
  while (stage_ == Stage::kMoving) {
    if (lane.next == steps.size()) {
      finish_lane(lane);
      return;
    }
    if (!lane.posted) {
      post_round(lane, slot);
      if (lane.pending > 0) return;
      continue;  // looks again whether one of them has failed
    }
    const size_t end = end_of_round(lane);
    for (size_t i = lane.next; i < end; ++i) run_step(lane, steps[i]);
    lane.next = end;
    lane.posted = false;
  }
}

size_t Collective::end_of_round(const Lane& lane) const {
  const std::vector<Step>& steps = lane.plan.steps;
  size_t end = lane.next;
  while (end < steps.size() && steps[end].round == steps[lane.next].round) ++end;
  return end;
}

// Receives first: what comes finds its place.
void Collective::post_round(Lane& lane, size_t slot) {
  lane.posted = true;
  const size_t end = end_of_round(lane);
  ++lane.pending;  // until all are posted
  for (const StepKind kind : {StepKind::kReceive, StepKind::kSend}) {
    for (size_t i = lane.next; i < end && stage_ == Stage::kMoving; ++i) {
      const Step& step = lane.plan.steps[i];
      if (step.kind != kind) continue;
      parts_.reserve(parts_.size() + 1);
      Operation* part = communicator_->make_part(
          kind == StepKind::kSend ? OperationKind::kSend : OperationKind::kReceive,
          team_->mesh_rank(step.peer), tag_ | (lane.index & kLaneMask),
          {address(lane, step.to), step.to.length});
      if (part == nullptr) throw std::bad_alloc();
      part->end_handler = this;
      part->access.id = slot;
      parts_.push_back(part);
      ++lane.pending;
      communicator_->start_part(*part);
    }
  }
  --lane.pending;
}

void Collective::on_end(Operation& part) {
  std::erase(parts_, &part);
  Lane& lane = lane_list_[part.access.id];
  --lane.pending;
  if (stage_ == Stage::kEnding) {
    try_to_end();
    return;
  }
  if (part.code != Code::kOk) {
    if (part.code == Code::kCancelled || part.code == Code::kAborted) {
      // The other rank has ended it, and says why over the control plane.
      ++lane.pending;
      if (forsaken_ns_ == 0) forsaken_ns_ = mesh().commons().now_ns();
      return;
    }
    // A longer message than this rank's arguments ask for.
    const Code code = part.code == Code::kTruncated ? Code::kMismatch : part.code;
    give_up(code, part.text ? *part.text : code_text(part.code));
    return;
  }
  if (part.kind == OperationKind::kReceive && part.run.bytes_sent != part.length) {
    refuse_length(communicator_->rank_of(part.peer), part.run.bytes_sent, part.length);
    return;
  }
  if (lane.pending == 0) {
    ready_ = true;
    team_->note_ready();
  }
}

std::byte* Collective::address(const Lane& lane, const Range& range) const {
  switch (range.place) {
    case Place::kSend:
      if (range.length == 0) return nullptr;
      return send_address(range.part) + range.offset;
    case Place::kReceive:
      if (range.length == 0) return nullptr;
      return receive_address(range.part) + range.offset;
    case Place::kScratch:
      break;
  }
  return lane.scratch.get() + range.offset;
}

void Collective::run_step(Lane& lane, const Step& step) {
  if (step.kind == StepKind::kCopy) {
    std::byte* const to = address(lane, step.to);
    const std::byte* const from = address(lane, step.first);
    if (to != from && step.to.length > 0) std::memcpy(to, from, step.to.length);
  } else if (step.kind == StepKind::kReduce || step.kind == StepKind::kReduceWide) {
    run_reduction(lane, step);
  } else if (step.kind == StepKind::kCombine) {
    const std::byte* const inputs[] = {address(lane, step.first), address(lane, step.second)};
    reduce::combine(static_cast<Type>(call_.datatype), static_cast<Operator>(call_.reduction),
                    address(lane, step.to), inputs, 2, step.to.length / problem_.element_bytes);
  }
}

void Collective::run_reduction(Lane& lane, const Step& step) {
  inputs_.clear();
  for (uint32_t i = 0; i < step.inputs; ++i) {
    inputs_.push_back(address(lane, lane.plan.inputs[step.inputs_at + i]));
  }
  reduce::Reduction all = reduction();
  // The rest is combined with what comes from elsewhere, and divided at the end of the lane.
  if (!problem_.rounds) all.ranks = 1;
  std::byte* const to = address(lane, step.to);
  std::byte* const first = step.first.length > 0 ? address(lane, step.first) : nullptr;
  const auto* const before = reinterpret_cast<const float*>(first);
  if (step.kind == StepKind::kReduce) {
    reduce::reduce(all, to, inputs_.data(), inputs_.size(), step.to.length / problem_.element_bytes,
                   before);
  } else {
    reduce::reduce_wide(all, reinterpret_cast<float*>(to), inputs_.data(), inputs_.size(),
                        step.to.length / problem_.wide_bytes, before);
  }
}

reduce::Reduction Collective::reduction() const {
  return {.type = static_cast<Type>(call_.datatype),
          .op = static_cast<Operator>(call_.reduction),
          .ranks = problem_.ranks,
          .factor = call_.factor};
}

void Collective::finish_lane(Lane& lane) {
  const Range& result = lane.plan.result;
  if (call_.reduction == HETCOMM_REDUCE_AVERAGE && result.length > 0) {
    std::byte* const at = address(lane, result);
    reduce::divide(static_cast<Type>(call_.datatype), at, at,
                   result.length / problem_.element_bytes, problem_.ranks);
  }
  lane.reset();
  ++lanes_done_;
}

}  // namespace hetcomm::collectives
