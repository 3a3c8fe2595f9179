#include "src/core/job/job_members.h"

#include <algorithm>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "src/base/baton_role.h"
#include "src/core/peer/pair.h"

namespace hetcomm {
namespace {

constexpr size_t kMaxNoteBytes = 1024;  // of one call

// Calls use(message) for the unexpected messages of |table|; it may remove the one it is given.
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
  going_.reserve(members_.size() + 1);
  members_.push_back(communicator);
  try {
    take_early_notices(*communicator);
  } catch (const std::bad_alloc&) {
    remove(communicator);
    throw;
  }
}

bool JobMembers::others_stay(JobMember& communicator) {
  if (std::find(going_.begin(), going_.end(), &communicator) == going_.end()) {
    going_.push_back(&communicator);
  }
  return going_.size() < members_.size();
}

bool JobMembers::contains(const CommunicatorBase& communicator) const {
  return std::find(members_.begin(), members_.end(), &communicator) != members_.end();
}

JobMember* JobMembers::find(int origin, uint32_t channel) const {
  for (JobMember* own : members_) {
    if (own->contains(origin) && own->channel_at(origin) == channel) return own;
  }
  return nullptr;
}

// --- failures ---------------------------------------------------------------

void JobMembers::abort(JobMember& communicator, const Status& why, bool publish) {
  Channel& own = communicator.channel();
  if (own.closed) return;
  own.aborted = why;
  commons_.log.warn("communicator {} was aborted: {}", own.id, why.text());
  if (publish && commons_.control != nullptr) commons_.control->publish_abort(own.id, why.text());
  commons_.engine.note_arrival();  // who probes has to look again
  own.closed = true;
  drop_queued(own);
  commons_.engine.drain();
  commons_.engine.pool().for_each([&](Operation& operation) HETCOMM_UNDER_BATON {
    // An operation that was not started yet ends when it is.
    if (operation.state() != OperationState::kPending ||
        operation.stage == OperationStage::kSubmitted || operation.communicator != &communicator) {
      return;
    }
    ender_.end(operation, Code::kAborted, why.text());
  });
  for (JobMember* child : members_) {
    if (child->split_from() == &communicator) abort(*child, why, publish);
  }
}

void JobMembers::on_abort(int origin, uint32_t channel, const std::string& reason) {
  const Status why(Code::kAborted, reason);
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
  communicator.end_collectives(why);  // in any case, also without memory to tell anybody
  stream_waits_.collectives_failed(communicator, why);
  try {
    if (publish && commons_.control != nullptr) {
      commons_.control->publish_collectives_failed(own.id, why);
    }
    commons_.log.warn("the collective operations of communicator {} have failed: {}", own.id,
                      why.text());
  } catch (const std::bad_alloc&) {
    // The others wait until their deadlines.
  }
  // Nobody will receive these any more.
  for_each_unexpected(own.collective, [&](Incoming& message) HETCOMM_UNDER_BATON {
    own.collective.remove_unexpected(&message);
    message.receiver->drop(message, MessageReceiver::Tell::kSender);
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
                  HETCOMM_UNDER_BATON { return find(origin, channel) == &communicator; },
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

void JobMembers::on_unexpected_part(int rank, const WireHeader& header) {
  const uint32_t channel = channel_of(header);
  for (JobMember* own : members_) {
    if (own->channel().id == channel) own->note_unexpected_part(rank, header.tag);
  }
}

void JobMembers::peer_lost(int rank, const Status& why) {
  drop_announced_by(rank);
  commons_.engine.pool().for_each([&](Operation& operation) HETCOMM_UNDER_BATON {
    if (operation.state() != OperationState::kPending ||
        operation.kind != OperationKind::kReceive || operation.stage != OperationStage::kPosted ||
        !contains(*operation.communicator)) {
      return;
    }
    const bool named = operation.peer == rank;
    const bool any =
        operation.peer < 0 && operation.communicator->contains(rank) &&
        (operation.options.fail_on_any_loss || !pairs_.any_live_sender(*operation.communicator));
    if (named || any) ender_.end(operation, why.code(), why.text());
  });
  stream_waits_.peer_lost(rank, why);
  for (JobMember* communicator : members_) communicator->peer_lost(rank);
}

// A request of a lost sender can never be granted; eager messages that are here stay.
void JobMembers::drop_announced_by(int rank) {
  commons_.channels.for_each_table([&](MatchTable& table) HETCOMM_UNDER_BATON {
    for_each_unexpected(table, [&](Incoming& message) HETCOMM_UNDER_BATON {
      if (message.source != rank || !message.rendezvous) return;
      table.remove_unexpected(&message);
      message.receiver->free(message);
    });
  });
}

// --- channels ---------------------------------------------------------------

void JobMembers::close_channel(Channel& channel) {
  drop_queued(channel);
  commons_.channels.close(channel.id);
}

void JobMembers::give_up_channel(Channel& channel) {
  const uint32_t id = channel.id;
  close_channel(channel);
  if (commons_.control == nullptr) return;
  try {
    commons_.control->publish_abort(
        id, fmt::format("rank {} could not make its part of the communicator", commons_.rank));
  } catch (const std::bad_alloc&) {
    // Its messages are refused one by one.
  }
}

void JobMembers::drop_queued(Channel& channel) {
  for (MatchTable* table : {&channel.point_to_point, &channel.collective}) {
    while (Incoming* message = table->first_unexpected()) {
      table->remove_unexpected(message);
      // An abort reaches the sender by itself.
      message->receiver->drop(*message, channel.aborted.ok() ? MessageReceiver::Tell::kSender
                                                             : MessageReceiver::Tell::kNobody);
    }
  }
}

}  // namespace hetcomm
