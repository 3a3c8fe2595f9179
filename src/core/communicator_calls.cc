// Communicator: collective operations, which its teams carry out.
#include <algorithm>

#include "src/base/text.h"
#include "src/core/collectives/team.h"
#include "src/core/communicator.h"
#include "src/core/context.h"

namespace hetcomm {

using collectives::Arguments;
using collectives::CallNote;
using collectives::Collective;
using collectives::Team;

Code Communicator::post_collective(const Arguments& arguments, Operation** out, std::string* text) {
  const bool in_group = arguments.options != nullptr && arguments.options->group != nullptr;
  if (engine_.try_lock_as_user()) [[likely]] {
    const Engine::Held held(engine_);
    std::unique_ptr<Collective> call = take_call();
    if (const Code code = call->set_up(*this, arguments, text); code != Code::kOk) {
      recycle(std::move(call));
      return code;
    }
    Operation* operation = engine_.pool().allocate();
    if (operation == nullptr) return Code::kOutOfMemory;
    fill_call(arguments, std::move(call), *operation);
    if (in_group) {
      collect(*operation);
    } else {
      operation->set_state(OperationState::kPending);
      start_now(*operation);
    }
    *out = operation;
  } else {
    auto call = std::make_unique<Collective>();
    if (const Code code = call->set_up(*this, arguments, text); code != Code::kOk) return code;
    Operation* operation = allocate();
    if (operation == nullptr) return Code::kOutOfMemory;
    fill_call(arguments, std::move(call), *operation);
    if (in_group) {
      const Engine::Baton baton(engine_);
      collect(*operation);
    } else {
      operation->set_state(OperationState::kPending);
      engine_.submit_queued(operation);
    }
    *out = operation;
  }
  if (!in_group && engine_.threaded()) engine_.note_pending();
  return Code::kOk;
}

void Communicator::fill_call(const Arguments& arguments, std::unique_ptr<Collective> call,
                             Operation& operation) {
  fill_common(OperationKind::kCollective, rank_, 0, 0, operation);
  if (arguments.options != nullptr && arguments.options->timeout_ns != 0) {
    operation.timeout_ns = arguments.options->timeout_ns;
    operation.run.deadline_ns = deadline_after(now_ns(), operation.timeout_ns);
  }
  operation.segment = {};
  operation.length = 0;
  operation.clear_pieces();
  call->attach(operation);
  operation.composite = call.release();
}

std::unique_ptr<Collective> Communicator::take_call() {
  if (spare_calls_.empty()) return std::make_unique<Collective>();
  std::unique_ptr<Collective> call = std::move(spare_calls_.back());
  spare_calls_.pop_back();
  return call;
}

void Communicator::recycle(std::unique_ptr<Collective> call) {
  constexpr size_t kMostSpare = 32;
  if (spare_calls_.size() == kMostSpare) return;
  call->reset();
  try {
    spare_calls_.push_back(std::move(call));
  } catch (const std::bad_alloc&) {
    // It goes, which those who hand it over need not know.
  }
}

Team* Communicator::team_of(const std::vector<int32_t>& list) {
  for (const auto& team : teams_) {
    if (team->list() == list) return team.get();
  }
  auto made = std::make_unique<Team>(*this, list);
  for (const auto& team : teams_) {
    // So seldom that no more is done about it.
    if (made->collides_with(*team)) return nullptr;
  }
  teams_.push_back(std::move(made));
  Team& team = *teams_.back();
  std::erase_if(early_calls_, [&](const auto& early) {
    const std::optional<CallNote> note = CallNote::decode(early.second);
    if (!note || note->team != team.hash()) return false;
    team.peer_says(early.first, *note);
    return true;
  });
  return &team;
}

void Communicator::refuse_collective(std::string_view why) {
  const Engine::Baton baton(engine_);
  engine_.drain_queued();
  if (!channel().collectives_failed.ok() || channel().closed) return;
  if (Team* team = team_of({}); team != nullptr) team->refuse(why);
}

// A failure: the operation stays as it is.
Status Communicator::start_collective(Operation& operation) {
  if (!channel().collectives_failed.ok()) {
    return channel().collectives_failed.annotate(
        "the collective operations of the communicator have failed before");
  }
  auto& composite = static_cast<Collective&>(*operation.composite);
  Team* team = team_of(composite.list());
  if (team == nullptr) {
    return Status(Code::kUnsupported,
                  "messages of this list of ranks cannot be told from those of another one");
  }
  std::unique_ptr<Collective> call(&composite);
  try {
    team->submit(call);
  } catch (const std::bad_alloc&) {
    if (call != nullptr) static_cast<void>(call.release());  // still the operation's
    throw;
  }
  return {};
}

Operation* Communicator::make_internal(const InternalMessage& message) {
  Operation* operation = engine_.pool().allocate();
  if (operation == nullptr) return nullptr;
  fill_common(message.kind, rank_of(message.peer), message.tag, 0, *operation);
  operation->collective = true;
  operation->detached = true;
  operation->high_priority = message.high_priority;
  operation->run.deadline_ns = message.deadline_ns;
  operation->end_handler = message.handler;
  fill_host(hetcomm_buffer_host(message.bytes.data(), message.bytes.size()), *operation);
  operation->set_state(OperationState::kPending);
  return operation;
}

void Communicator::fail_collectives(Code code, std::string_view text) {
  // Only what all ranks may hear of is told on.
  const bool told = code == Code::kMismatch || code == Code::kPeerLost;
  mesh_->fail_collectives(
      *this, status_or_code(told ? code : Code::kAborted, [&] { return std::string(text); }), true);
}

void Communicator::end_collectives(const Status& why) {
  for (size_t i = 0; i < teams_.size(); ++i) {
    teams_[i]->fail_all(why.code(), why.text());
  }
}

void Communicator::note_unexpected_part(int mesh_rank, uint64_t tag) {
  for (const auto& team : teams_) team->note_unexpected_part(mesh_rank, tag);
}

void Communicator::peer_lost(int mesh_rank) {
  for (const auto& team : teams_) team->peer_lost(mesh_rank);
}

void Communicator::peer_calls(int mesh_rank, ConstByteSpan bytes) {
  constexpr size_t kMostEarly = 256;
  const std::optional<CallNote> note = CallNote::decode(bytes);
  if (!note) return;
  for (const auto& team : teams_) {
    if (team->hash() != note->team) continue;
    team->peer_says(mesh_rank, *note);
    return;
  }
  if (early_calls_.size() < kMostEarly) {
    early_calls_.emplace_back(mesh_rank, std::vector<std::byte>(bytes.begin(), bytes.end()));
  }
}

}  // namespace hetcomm
