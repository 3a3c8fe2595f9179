#include "src/core/job/job_members.h"

#include <new>
#include <utility>

#include <fmt/core.h>

#include "src/base/baton_role.h"
#include "src/base/text.h"
#include "src/core/peer/pair.h"
#include "src/core/peer/transfer/message_receiver.h"

namespace hetcomm {
namespace {

constexpr size_t kMaxNoteBytes = 1024;  // limit for the report of one call

// Calls use(message) for each unexpected message in |table|. |use| may remove that message.
template <typename Use>
void for_each_unexpected(MatchTable& table, Use&& use) HETCOMM_UNDER_BATON {
  Incoming* next = nullptr;
  for (Incoming* message = table.first_unexpected(); message != nullptr; message = next) {
    next = message->next_arrived;
    use(*message);
  }
}

}  // namespace

void JobMembers::add(JobMember* communicator) {
  members_[communicator->channel().id] = {communicator};
  try {
    take_early_notices(*communicator);
  } catch (const std::bad_alloc&) {
    remove(communicator);
    throw;
  }
}

void JobMembers::remove(JobMember* communicator) {
  const auto own = members_.find(communicator->channel().id);
  if (own == members_.end()) return;
  if (own->second.is_going) --going_;
  members_.erase(own);
}

bool JobMembers::others_stay(JobMember& communicator) {
  const auto own = members_.find(communicator.channel().id);
  if (own != members_.end() && !std::exchange(own->second.is_going, true)) ++going_;
  return going_ < members_.size();
}

bool JobMembers::contains(const MessagingCommunicator& communicator) const {
  const auto found = members_.find(communicator.channel().id);
  return found != members_.end() && found->second.communicator == &communicator;
}

JobMember* JobMembers::find(int origin, uint32_t channel) const {
  for (const auto& [id, own] : members_) {
    if (is_known_by(*own.communicator, origin, channel)) return own.communicator;
  }
  return nullptr;
}

// --- failures ---------------------------------------------------------------

// Ending an operation here may abort other communicators, which re-enters this function. Each call
// ends only the operations of communicators that it has closed itself.
void JobMembers::abort(JobMember& communicator, const Status& why, bool publish) {
  if (communicator.channel().closed) return;
  if (publish && services_.control != nullptr) {
    services_.control->publish_abort(communicator.channel().id, why.text());
  }
  const uint64_t number = ++aborts_;
  close_aborted(communicator, why, number);
  close_aborted_children(why, publish, number);
  services_.engine.drain();
  // Checks all operations once, however many communicators are aborted.
  services_.engine.pool().for_each([&](Operation& operation) HETCOMM_UNDER_BATON {
    // An operation that has not been started yet ends when it is started.
    if (operation.state() != OperationState::kPending ||
        operation.phase == OperationPhase::kSubmitted ||
        !was_closed_by(number, &communicator_of(operation))) {
      return;
    }
    ender_.end(operation, Code::kAborted, why.text());
  });
}

bool JobMembers::was_closed_by(uint64_t abort, const MessagingCommunicator* communicator) const {
  const auto found = members_.find(communicator->channel().id);
  return found != members_.end() && found->second.closed_by == abort &&
         found->second.communicator == communicator;
}

// Does not fail if out of memory.
void JobMembers::close_aborted(JobMember& communicator, const Status& why, uint64_t number) {
  Channel& own = communicator.channel();
  own.aborted = why;
  own.was_aborted.store(true, std::memory_order_relaxed);
  own.closed = true;
  if (const auto found = members_.find(own.id); found != members_.end()) {
    found->second.closed_by = number;
  }
  services_.engine.note_arrival();  // makes threads that probe check again
  const JobMember* const parent = communicator.split_from();
  try {
    // Only the communicator where the abort begins gets a warning.
    if (parent != nullptr && was_closed_by(number, parent)) {
      services_.log.info("communicator {} was aborted with the one that it was split from", own.id);
    } else {
      services_.log.warn("communicator {} was aborted: {}", own.id, why.text());
    }
  } catch (const std::bad_alloc&) {
    // Only the log line is lost: the communicator's operations report the failure too.
  }
  drop_queued(own);
}

// Repeats until all children are closed. A child usually has a higher channel number than its
// parent, so the first round usually closes them all.
void JobMembers::close_aborted_children(const Status& why, bool publish, uint64_t number) {
  for (bool again = true; again;) {
    again = false;
    for (const auto& [id, each] : members_) {
      JobMember& child = *each.communicator;
      const JobMember* const parent = child.split_from();
      if (child.channel().closed || parent == nullptr || !was_closed_by(number, parent)) continue;
      close_aborted(child, why, number);
      if (publish) publish_abort(id, why.text());
      again = true;
    }
  }
}

void JobMembers::on_abort(int origin, uint32_t channel, const std::string& reason) {
  const Status why = status_or_code(Code::kAborted, [&] { return reason; });
  if (JobMember* own = find(origin, channel); own != nullptr) {
    abort(*own, why, false);
  } else {
    early_.keep({origin, channel, true, why});
  }
}

void JobMembers::fail_collectives(JobMember& communicator, const Status& why, bool publish) {
  Channel& own = communicator.channel();
  if (own.closed || !own.collectives_failed.ok()) return;
  own.collectives_failed = why;
  communicator.end_collectives(why);  // first, because the notices below may run out of memory
  stream_waits_.collectives_failed(communicator, why);
  try {
    if (publish && services_.control != nullptr) {
      services_.control->publish_collectives_failed(own.id, why);
    }
    services_.log.warn("the collective operations of communicator {} have failed: {}", own.id,
                       why.text());
  } catch (const std::bad_alloc&) {
    // Without a notice, the other ranks wait until their deadlines.
  }
  // No operation will receive these messages any longer.
  for_each_unexpected(own.collective, [&](Incoming& message) HETCOMM_UNDER_BATON {
    own.collective.remove_unexpected(&message);
    receiver_of(message).drop(message, MessageReceiver::Tell::kSender);
  });
}

void JobMembers::on_collectives_failed(int origin, uint32_t channel, const Status& why) {
  if (JobMember* own = find(origin, channel); own != nullptr) {
    fail_collectives(*own, why, false);
  } else {
    early_.keep({origin, channel, false, why});
  }
}

void JobMembers::on_call(int origin, uint32_t channel, ConstByteSpan note) {
  if (note.size() > kMaxNoteBytes) return;
  if (JobMember* own = find(origin, channel); own != nullptr) {
    own->peer_calls(origin, note);
    return;
  }
  early_.keep(EarlyNotices::Call{origin, channel, {note.begin(), note.end()}});
}

void JobMembers::take_early_notices(JobMember& communicator) {
  early_.take([&](int origin, uint32_t channel)
                  HETCOMM_UNDER_BATON { return is_known_by(communicator, origin, channel); },
              [&](const EarlyNotices::Failure& failure) HETCOMM_UNDER_BATON {
                if (failure.aborted) {
                  abort(communicator, failure.why, false);
                } else {
                  fail_collectives(communicator, failure.why, false);
                }
              },
              [&](const EarlyNotices::Call& call)
                  HETCOMM_UNDER_BATON { on_call(call.origin, call.channel, call.note); });
}

void JobMembers::on_unexpected_message(int rank, const WireHeader& header) {
  const auto own = members_.find(channel_of(header));
  if (own != members_.end()) own->second.communicator->note_unexpected_message(rank, header.tag);
}

void JobMembers::peer_lost(int rank, const Status& why) {
  drop_announced_by(rank);
  services_.engine.pool().for_each([&](Operation& operation) HETCOMM_UNDER_BATON {
    if (operation.state() != OperationState::kPending ||
        operation.kind != OperationKind::kReceive || operation.phase != OperationPhase::kPosted ||
        !contains(communicator_of(operation))) {
      return;
    }
    const bool named = operation.peer == rank;
    const bool any =
        operation.peer < 0 && operation.communicator->contains(rank) &&
        (operation.options.fail_on_any_loss || !pairs_.any_live_sender(*operation.communicator));
    if (named || any) ender_.end(operation, why.code(), why.text());
  });
  stream_waits_.peer_lost(rank, why);
  for (const auto& [id, own] : members_) own.communicator->peer_lost(rank);
}

// Drops the announced messages of |rank|, a lost sender: their data can never arrive. Keeps eager
// messages that have arrived.
void JobMembers::drop_announced_by(int rank) {
  channels_.for_each_table([&](MatchTable& table) HETCOMM_UNDER_BATON {
    for_each_unexpected(table, [&](Incoming& message) HETCOMM_UNDER_BATON {
      if (message.source != rank || !message.rendezvous) return;
      table.remove_unexpected(&message);
      receiver_of(message).free(message);
    });
  });
}

// --- channels ---------------------------------------------------------------

void JobMembers::close_channel(Channel& channel) {
  drop_queued(channel);
  channels_.close(channel.id);
}

void JobMembers::give_up_channel(Channel& channel) {
  const uint32_t id = channel.id;
  close_channel(channel);
  publish_abort(id, text_or_none([&] {
                  return fmt::format("rank {} could not make its part of the communicator",
                                     services_.terms.rank);
                }));
}

// Notifies all ranks of an abort. Does not throw: if out of memory, the others learn of the abort
// when their messages are refused.
void JobMembers::publish_abort(uint32_t channel, std::string_view why) {
  if (services_.control == nullptr) return;
  try {
    services_.control->publish_abort(channel, why);
  } catch (const std::bad_alloc&) {
  }
}

void JobMembers::drop_queued(Channel& channel) {
  for (MatchTable* table : {&channel.point_to_point, &channel.collective}) {
    while (Incoming* message = table->first_unexpected()) {
      table->remove_unexpected(message);
      // After an abort, the sender is not notified here: it learns of the abort itself.
      receiver_of(*message).drop(*message, channel.aborted.ok() ? MessageReceiver::Tell::kSender
                                                                : MessageReceiver::Tell::kNobody);
    }
  }
}

}  // namespace hetcomm
