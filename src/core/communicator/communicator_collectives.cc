// Communicator: collective operations, which its teams carry out.
#include <algorithm>

#include "src/base/text.h"
#include "src/core/collectives/collective.h"
#include "src/core/collectives/collectives.h"
#include "src/core/communicator/communicator.h"
#include "src/core/job/context.h"

namespace hetcomm {

using collectives::Arguments;
using collectives::Collective;

Code Communicator::post_collective(const Arguments& arguments, Operation** out, std::string* text) {
  const bool in_group = arguments.options != nullptr && arguments.options->group != nullptr;
  if (engine_.try_lock_as_user()) [[likely]] {
    const Engine::Held held(engine_);
    std::unique_ptr<Collective> call = collectives_->take();
    if (const Code code = call->set_up(*collectives_, arguments, text); code != Code::kOk) {
      collectives_->recycle(std::move(call));
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
    if (const Code code = call->set_up(*collectives_, arguments, text); code != Code::kOk)
      return code;
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
  operation.buffers.segment = {};
  operation.length = 0;
  operation.clear_pieces();
  call->attach(operation);
  operation.composite = call.release();
}

Operation* Communicator::make_internal(const InternalMessage& message) {
  Operation* operation = engine_.pool().allocate();
  if (operation == nullptr) return nullptr;
  fill_common(message.kind, rank_of(message.peer), message.tag, 0, *operation);
  operation->collective = true;
  operation->detached = true;
  operation->options.high_priority = message.high_priority;
  operation->run.deadline_ns = message.deadline_ns;
  operation->end_handler = message.handler;
  fill_host(hetcomm_buffer_host(message.bytes.data(), message.bytes.size()), *operation);
  operation->set_state(OperationState::kPending);
  return operation;
}

void Communicator::refuse_collective(std::string_view why) {
  const Engine::Baton baton(engine_);
  engine_.drain_queued();
  collectives_->refuse(why);
}

void Communicator::end_collectives(const Status& why) { collectives_->end(why); }

void Communicator::peer_calls(int job_rank, ConstByteSpan note) {
  collectives_->peer_calls(job_rank, note);
}

void Communicator::note_unexpected_part(int job_rank, uint64_t tag) {
  collectives_->note_unexpected_part(job_rank, tag);
}

void Communicator::peer_lost(int job_rank) { collectives_->peer_lost(job_rank); }

}  // namespace hetcomm
