// Job: posting, delivering, completing and ending operations.
#include <algorithm>

#include "src/base/text.h"
#include "src/core/job/job.h"
#include "src/core/peer/transfer.h"

namespace hetcomm {

void Job::start_receive(Channel& own, Operation& receive) {
  MatchTable& table = receive.collective ? own.collective : own.point_to_point;
  Incoming* message = table.find_unexpected(receive.peer, receive.tag, receive.ignore);
  if (message != nullptr) {
    message->pair->attach(*message, receive);
    return;
  }
  if (receive.peer >= 0) {
    if (const Status& status = peer_status(receive.peer); !status.ok()) {
      commons_.completer.complete(receive, status.code(),
                                  fmt::format("{}: {}", describe(receive), status.text()));
      return;
    }
    Pair& sender = pair(receive.peer);
    if (sender.state() != Pair::State::kReady) [[unlikely]] {
      sender.ensure_connected();
      // Perhaps there is no way to connect.
      if (const Status& status = peer_status(receive.peer); !status.ok()) {
        commons_.completer.complete(receive, status.code(),
                                    fmt::format("{}: {}", describe(receive), status.text()));
        return;
      }
    }
  } else if (!any_live_sender(*receive.communicator) ||
             (receive.fail_on_any_loss && !all_senders_live(receive))) {
    commons_.completer.complete(
        receive, Code::kPeerLost,
        fmt::format("{}: {}", describe(receive),
                    receive.fail_on_any_loss ? "a sender was lost" : "no live sender is left"));
    return;
  }
  table.post(&receive);
  receive.stage = OperationStage::kPosted;
}

// Where an operation could not be started for want of memory.
void Job::end_out_of_memory(Operation& operation) {
  if (operation.state() != OperationState::kPending) return;
  end_operation(operation, Code::kOutOfMemory, "out of memory");
}

void Job::end_operation(Operation& operation, Code code, std::string_view why) {
  std::string text = text_or_none([&] { return fmt::format("{}: {}", describe(operation), why); });
  switch (operation.stage) {
    case OperationStage::kCollected:
      // Its group has not started it.
      operation.communicator->operation_begun();
      engine().operation_started();
      commons_.completer.complete(operation, code, std::move(text));
      break;
    case OperationStage::kPosted: {
      Channel& own = operation.communicator->channel();
      (operation.collective ? own.collective : own.point_to_point).remove(&operation);
      commons_.completer.complete(operation, code, std::move(text));
      break;
    }
    case OperationStage::kCollective:
      operation.composite->end(code, text);
      break;
    case OperationStage::kSubmitted:
      commons_.completer.complete(operation, code, std::move(text));
      break;
    case OperationStage::kCopying:
      break;  // all of it has arrived; ends with the copy
    case OperationStage::kQueued:
    case OperationStage::kArriving:
    case OperationStage::kTransfer:
    case OperationStage::kAwaiting:
    case OperationStage::kDirect:
      operation.pair->end(operation, code, std::move(text));
      break;
  }
}

bool Job::owns(const CommunicatorBase& communicator) const {
  return std::find(communicators_.begin(), communicators_.end(), &communicator) !=
         communicators_.end();
}

bool Job::any_live_sender(const CommunicatorBase& communicator) const {
  const std::vector<int>& ranks = communicator.ranks();
  return std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
    return (rank != rank_ || ranks.size() == 1) && peer_status(rank).ok();
  });
}

bool Job::all_senders_live(const Operation& receive) const {
  const std::vector<int>& ranks = receive.communicator->ranks();
  return std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return peer_status(rank).ok(); });
}

// Ends the receives that wait for |rank|, and those from any rank for which nobody is left.
void Job::fail_receives(int rank, const Status& why) {
  commons_.channels.for_each_table([&](MatchTable& table) {
    // A request of a lost sender can never be granted; eager messages that are here stay.
    Incoming* next = nullptr;
    for (Incoming* message = table.first_unexpected(); message != nullptr; message = next) {
      next = message->next_arrived;
      if (message->source != rank || !message->rendezvous) continue;
      table.remove_unexpected(message);
      message->pair->free_incoming(message);
    }
  });
  engine().pool().for_each([&](Operation& operation) {
    if (operation.state() != OperationState::kPending ||
        operation.kind != OperationKind::kReceive || operation.stage != OperationStage::kPosted ||
        !owns(*operation.communicator)) {
      return;
    }
    const bool named = operation.peer == rank;
    const bool any = operation.peer < 0 && operation.communicator->contains(rank) &&
                     (operation.fail_on_any_loss || !any_live_sender(*operation.communicator));
    if (named || any) end_operation(operation, why.code(), why.text());
  });
}

void Job::abort(JobMember& communicator, const Status& why, bool publish) {
  Channel& own = communicator.channel();
  if (own.closed) return;
  own.aborted = why;
  log().warn("communicator {} was aborted: {}", own.id, why.text());
  if (publish && control_ != nullptr) control_->publish_abort(own.id, why.text());
  engine().note_arrival();  // who probes has to look again
  own.closed = true;
  drop_queued(own);
  engine().drain();
  engine().pool().for_each([&](Operation& operation) {
    // What was not started yet ends when it is.
    if (operation.state() != OperationState::kPending ||
        operation.stage == OperationStage::kSubmitted || operation.communicator != &communicator) {
      return;
    }
    end_operation(operation, Code::kAborted, why.text());
  });
  for (JobMember* child : communicators_) {
    if (child->split_from() == &communicator) abort(*child, why, publish);
  }
}

JobMember* Job::find_communicator(int origin, uint32_t channel) const {
  for (JobMember* own : communicators_) {
    if (own->contains(origin) && own->channel_at(origin) == channel) return own;
  }
  return nullptr;
}

void Job::on_abort(int origin, uint32_t channel, const std::string& reason) {
  const Status why(Code::kAborted, reason);
  if (JobMember* own = find_communicator(origin, channel); own != nullptr) {
    abort(*own, why, false);
  } else {
    keep_early({origin, channel, true, why});
  }
}

void Job::fail_collectives(JobMember& communicator, const Status& why, bool publish) {
  Channel& own = communicator.channel();
  if (own.closed || !own.collectives_failed.ok()) return;
  own.collectives_failed = why;
  communicator.end_collectives(why);  // in any case, also without memory to tell anybody
  try {
    if (publish && control_ != nullptr) control_->publish_collectives_failed(own.id, why);
    log().warn("the collective operations of communicator {} have failed: {}", own.id, why.text());
  } catch (const std::bad_alloc&) {
    // The others wait until their deadlines.
  }
  // What nobody will receive any more.
  Incoming* next = nullptr;
  for (Incoming* message = own.collective.first_unexpected(); message != nullptr; message = next) {
    next = message->next_arrived;
    own.collective.remove_unexpected(message);
    if (message->pair->forget(*message)) continue;  // its fragments still come, to be dropped
    if (message->rendezvous) {
      message->pair->send_control(MessageKind::kStop, message->sender_id,
                                  static_cast<uint64_t>(Code::kAborted), nullptr, 0);
    }
    message->pair->return_credit(message->credit);
    message->pair->free_incoming(message);
  }
}

void Job::on_collectives_failed(int origin, uint32_t channel, const Status& why) {
  if (JobMember* own = find_communicator(origin, channel); own != nullptr) {
    fail_collectives(*own, why, false);
  } else {
    keep_early({origin, channel, false, why});
  }
}

void Job::wake(int rank) {
  Pair& peer = pair(rank);
  peer.ensure_connected();
  peer.send_control(MessageKind::kWake, 0, 0, nullptr, 0);
}

void Job::tell_call(int rank, uint32_t channel, ConstByteSpan note) {
  control_->tell_call(rank, channel, note);
}

void Job::on_unexpected_part(int rank, const WireHeader& header) {
  const uint32_t channel = channel_of(header);
  for (JobMember* own : communicators_) {
    if (own->channel().id == channel) own->note_unexpected_part(rank, header.tag);
  }
}

void Job::on_call(int origin, uint32_t channel, ConstByteSpan note) {
  if (note.size() > kMostNote) return;
  if (JobMember* own = find_communicator(origin, channel); own != nullptr) {
    own->peer_calls(origin, note);
    return;
  }
  if (early_calls_.size() == kMostEarlyCalls) early_calls_.pop_front();
  early_calls_.push_back({origin, channel, {note.begin(), note.end()}});
}

void Job::add(JobMember* communicator) {
  going_.reserve(communicators_.size() + 1);
  communicators_.push_back(communicator);
  try {
    take_early_facts(*communicator);
  } catch (const std::bad_alloc&) {
    remove(communicator);
    throw;
  }
}

bool Job::others_stay(JobMember& communicator) {
  if (std::find(going_.begin(), going_.end(), &communicator) == going_.end()) {
    going_.push_back(&communicator);
  }
  return going_.size() < communicators_.size();
}

void Job::keep_early(EarlyFact fact) {
  if (early_facts_.size() == kMostEarlyFacts) early_facts_.pop_front();
  early_facts_.push_back(std::move(fact));
}

void Job::take_early_facts(JobMember& communicator) {
  const auto is_of_it = [&](const auto& each) {
    return find_communicator(each.origin, each.channel) == &communicator;
  };
  for (const EarlyFact& fact : early_facts_) {
    if (!is_of_it(fact)) continue;
    if (fact.aborted) {
      abort(communicator, fact.why, false);
    } else {
      fail_collectives(communicator, fact.why, false);
    }
  }
  std::erase_if(early_facts_, is_of_it);
  for (const EarlyCall& call : early_calls_) {
    if (is_of_it(call)) on_call(call.origin, call.channel, call.note);
  }
  std::erase_if(early_calls_, is_of_it);
}

void Job::close_channel(Channel& channel) {
  drop_queued(channel);
  commons_.channels.close(channel.id);
}

void Job::give_up_channel(Channel& channel) {
  const uint32_t id = channel.id;
  close_channel(channel);
  if (control_ == nullptr) return;
  try {
    control_->publish_abort(
        id, fmt::format("rank {} could not make its part of the communicator", rank_));
  } catch (const std::bad_alloc&) {
    // Its messages are refused one by one.
  }
}

void Job::drop_queued(Channel& channel) {
  for (MatchTable* table : {&channel.point_to_point, &channel.collective}) {
    while (Incoming* message = table->first_unexpected()) {
      table->remove_unexpected(message);
      if (message->pair->forget(*message)) continue;  // its fragments still come, to be dropped
      if (message->rendezvous && channel.aborted.ok()) {
        message->pair->send_control(MessageKind::kStop, message->sender_id,
                                    static_cast<uint64_t>(Code::kAborted), nullptr, 0);
      }
      message->pair->return_credit(message->credit);
      message->pair->free_incoming(message);
    }
  }
}

}  // namespace hetcomm
