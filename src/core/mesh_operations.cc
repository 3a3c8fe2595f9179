// Mesh: posting, delivering, completing and ending operations.
#include <algorithm>

#include "src/base/text.h"
#include "src/core/collectives/team.h"
#include "src/core/communicator.h"
#include "src/core/mesh.h"
#include "src/core/transfer.h"

namespace hetcomm {
// An eager message on its way into device memory.
class Mesh::DeviceDelivery final : public CopyHandler, public Mortal {
 public:
  DeviceDelivery(Mesh& mesh, Operation& receive, ConstByteSpan bytes)
      : mesh_(mesh), receive_(receive), bytes_(mesh.blocks_, bytes.size()), length_(bytes.size()) {
    if (!bytes_) throw std::bad_alloc();
    std::memcpy(bytes_.get(), bytes.data(), bytes.size());
  }
  void start() {
    mesh_.staging_.start(copy_, StreamDirection::kFromHost, receive_.pieces, 0, bytes_.get(),
                         length_, *this);
  }

 private:
  void on_copied(const Status& status) override {
    if (!status.ok()) {
      mesh_.complete(receive_, status.code(),
                     text_or_none([&] { return std::string(status.text()); }));
    } else {
      mesh_.complete_delivered(receive_);
    }
    mesh_.retire(PoolPtr<DeviceDelivery>(this, {&mesh_.blocks_}));
  }

  Mesh& mesh_;
  Operation& receive_;
  PoolBytes bytes_;
  uint64_t length_;
  CopyJob copy_;
};

void Mesh::start_receive(Channel& own, Operation& receive) {
  MatchTable& table = receive.collective ? own.collective : own.point_to_point;
  Incoming* message = table.find_unexpected(receive.peer, receive.tag, receive.ignore);
  if (message != nullptr) {
    message->pair->attach(*message, receive);
    return;
  }
  if (receive.peer >= 0) {
    if (const Status& status = peer_status(receive.peer); !status.ok()) {
      complete(receive, status.code(), fmt::format("{}: {}", describe(receive), status.text()));
      return;
    }
    Pair& sender = pair(receive.peer);
    if (sender.state() != Pair::State::kReady) [[unlikely]] {
      sender.ensure_connected();
      // Perhaps there is no way to connect.
      if (const Status& status = peer_status(receive.peer); !status.ok()) {
        complete(receive, status.code(), fmt::format("{}: {}", describe(receive), status.text()));
        return;
      }
    }
  } else if (!any_live_sender(Communicator::of(receive)) ||
             (receive.fail_on_any_loss && !all_senders_live(receive))) {
    complete(
        receive, Code::kPeerLost,
        fmt::format("{}: {}", describe(receive),
                    receive.fail_on_any_loss ? "a sender was lost" : "no live sender is left"));
    return;
  }
  table.post(&receive);
  receive.stage = OperationStage::kPosted;
}

// A message that does not go into one piece of host memory as a whole.
void Mesh::deliver_rest(Operation& receive, ConstByteSpan bytes) {
  const uint64_t part = std::min<uint64_t>(bytes.size(), receive.length);
  if (part > 0) {
    if (!receive.on_host) {
      try {
        PoolPtr<DeviceDelivery> delivery =
            make_pooled<DeviceDelivery>(blocks_, *this, receive, bytes.first(part));
        receive.stage = OperationStage::kCopying;
        delivery.release()->start();
      } catch (const std::bad_alloc&) {
        complete(receive, Code::kOutOfMemory);  // nothing was begun
      }
      return;
    }
    scatter(receive.segments(), 0, bytes.first(part));
  }
  complete_delivered(receive);
}

void Mesh::delivered(Operation& receive, int source, uint64_t tag, uint64_t length) {
  note_message(receive, source, tag, length);
  complete_delivered(receive);
}

void Mesh::complete_delivered(Operation& receive) {
  if (receive.run.bytes_sent > receive.length) {
    complete_truncated(receive);
  } else {
    complete(receive);
  }
}

void Mesh::complete_truncated(Operation& receive) {
  complete(receive, Code::kTruncated, text_or_none([&] {
             return fmt::format("{}: the message has {} bytes", describe(receive),
                                receive.run.bytes_sent);
           }));
}

void Mesh::complete(Operation& operation, Code code, std::string text) {
  operation.code = code;
  try {
    if (!text.empty()) operation.text = std::make_unique<std::string>(std::move(text));
  } catch (const std::bad_alloc&) {
    operation.text.reset();  // the code has to do
  }
  complete(operation);
}

// One-sided operations: what is counted for them, here and for the peer, is settled.
void Mesh::complete_access(Operation& operation) {
  const OperationKind kind = operation.kind;
  if (kind == OperationKind::kCollective) {
    // Was never started.
    delete std::exchange(operation.composite, nullptr);
    complete_any(operation);
    return;
  }
  const Operation::Access access = operation.access;
  const Code code = operation.code;
  Pair* pair = operation.pair;
  if (code == Code::kOk) {
    operation.run.bytes_sent += access.ahead;
    operation.run.bytes_received += access.ahead;
  }
  if (kind == OperationKind::kAccept) {
    try {
      pair->access().accepted(operation);
    } catch (const std::bad_alloc&) {
      pair->starve();  // its notification is lost; the operation is not
    }
  }
  if (kind == OperationKind::kAnswer && code != Code::kOk && !access.asked) {
    pair->access().refuse(operation);
  }
  if (operation.access.holds_place) pair->access().release(operation);
  // Whoever sees the end may let go of the remote memory at once.
  if (access.remote != nullptr) access.remote->drop_use();
  complete_any(operation);
  if (access.registration != nullptr && access.registration->drop_running()) {
    engine().note_arrival();  // somebody may wait for it to unregister
  }
  if (access.started) pair->access().completed(access.epoch, code);
}

// Where an operation could not be started for want of memory.
void Mesh::end_out_of_memory(Operation& operation) {
  if (operation.state() != OperationState::kPending) return;
  end_operation(operation, Code::kOutOfMemory, "out of memory");
}

void Mesh::end_operation(Operation& operation, Code code, std::string_view why) {
  std::string text = text_or_none([&] { return fmt::format("{}: {}", describe(operation), why); });
  switch (operation.stage) {
    case OperationStage::kSubmitted:
      complete(operation, code, std::move(text));
      break;
    case OperationStage::kCollected:
      Communicator::of(operation).drop(operation, code, std::move(text));
      break;
    case OperationStage::kQueued:
      operation.pair->end_send(operation, code, std::move(text));
      break;
    case OperationStage::kPosted: {
      Channel& own = operation.communicator->channel();
      (operation.collective ? own.collective : own.point_to_point).remove(&operation);
      complete(operation, code, std::move(text));
      break;
    }
    case OperationStage::kArriving:
      operation.pair->detach_arriving(operation);
      complete(operation, code, std::move(text));
      break;
    case OperationStage::kTransfer:
      if (operation.send_transfer != nullptr) {
        operation.send_transfer->end(code, std::move(text));
      } else {
        operation.receive_transfer->end(code, std::move(text));
      }
      break;
    case OperationStage::kAwaiting:
    case OperationStage::kDirect:
      operation.pair->access().end(operation, code, std::move(text));
      break;
    case OperationStage::kCollective:
      operation.composite->end(code, text);
      break;
    case OperationStage::kCopying:
      break;  // all of it has arrived; ends with the copy
  }
}

bool Mesh::any_live_sender(const Communicator& communicator) const {
  const std::vector<int>& ranks = communicator.ranks();
  return std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
    return (rank != rank_ || ranks.size() == 1) && peer_status(rank).ok();
  });
}

bool Mesh::all_senders_live(const Operation& receive) const {
  const std::vector<int>& ranks = receive.communicator->ranks();
  return std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return peer_status(rank).ok(); });
}

// Ends the receives that wait for |rank|, and those from any rank for which nobody is left.
void Mesh::fail_receives(int rank, const Status& why) {
  channels_.for_each([&](Channel& channel) {
    for (MatchTable* table : {&channel.point_to_point, &channel.collective}) {
      // A request of a lost sender can never be granted; eager messages that are here stay.
      Incoming* next = nullptr;
      for (Incoming* message = table->first_unexpected(); message != nullptr; message = next) {
        next = message->next_arrived;
        if (message->source != rank || !message->rendezvous) continue;
        table->remove_unexpected(message);
        free_incoming(message);
      }
    }
  });
  engine().pool().for_each([&](Operation& operation) {
    if (operation.state() != OperationState::kPending ||
        operation.kind != OperationKind::kReceive || operation.stage != OperationStage::kPosted ||
        &Communicator::of(operation).mesh() != this) {
      return;
    }
    const bool named = operation.peer == rank;
    const bool any = operation.peer < 0 && operation.communicator->contains(rank) &&
                     (operation.fail_on_any_loss || !any_live_sender(Communicator::of(operation)));
    if (named || any) end_operation(operation, why.code(), why.text());
  });
}

void Mesh::drop_withdrawn(int rank, uint64_t sender_id) {
  Incoming* found = nullptr;
  MatchTable* in = nullptr;
  channels_.for_each([&](Channel& channel) {
    for (MatchTable* table : {&channel.point_to_point, &channel.collective}) {
      for (Incoming* message = table->first_unexpected(); message != nullptr && found == nullptr;
           message = message->next_arrived) {
        if (message->source != rank || !message->rendezvous || message->sender_id != sender_id) {
          continue;
        }
        found = message;
        in = table;
      }
    }
  });
  if (found == nullptr) return;
  in->remove_unexpected(found);
  found->pair->return_credit(found->credit);
  free_incoming(found);
}

void Mesh::abort(Communicator& communicator, const Status& why, bool publish) {
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
  for (Communicator* child : communicators_) {
    if (child->parent() == &communicator) abort(*child, why, publish);
  }
}

Communicator* Mesh::find_communicator(int origin, uint32_t channel) const {
  for (Communicator* own : communicators_) {
    if (own->contains(origin) && own->channel_at(origin) == channel) return own;
  }
  return nullptr;
}

void Mesh::on_abort(int origin, uint32_t channel, const std::string& reason) {
  const Status why(Code::kAborted, reason);
  if (Communicator* own = find_communicator(origin, channel); own != nullptr) {
    abort(*own, why, false);
  } else {
    keep_early({origin, channel, true, why});
  }
}

void Mesh::fail_collectives(Communicator& communicator, const Status& why, bool publish) {
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
    free_incoming(message);
  }
}

void Mesh::on_collectives_failed(int origin, uint32_t channel, const Status& why) {
  if (Communicator* own = find_communicator(origin, channel); own != nullptr) {
    fail_collectives(*own, why, false);
  } else {
    keep_early({origin, channel, false, why});
  }
}

void Mesh::wake(int rank) {
  Pair& peer = pair(rank);
  peer.ensure_connected();
  peer.send_control(MessageKind::kWake, 0, 0, nullptr, 0);
}

namespace {

// A note of a call as it travels; the reason of a refusal follows.
struct CallHead {
  uint64_t team;
  uint64_t sequence;
  uint32_t refusals;
  collectives::Call call;
};
static_assert(std::is_trivially_copyable_v<CallHead>);

}  // namespace

void Mesh::tell_call(int rank, const Communicator& communicator,
                     const collectives::CallNote& note) {
  const CallHead head{note.team, note.sequence, note.refusals, note.call};
  const ConstByteSpan bytes = std::as_bytes(std::span(&head, 1));
  const ConstByteSpan why = std::as_bytes(std::span(note.why));
  std::vector<std::byte> letter(bytes.begin(), bytes.end());
  letter.insert(letter.end(), why.begin(), why.end());
  control_->tell_call(rank, communicator.id(), letter);
}

void Mesh::note_unexpected_part(int rank, const WireHeader& header) {
  const uint32_t channel = channel_of(header);
  for (Communicator* own : communicators_) {
    if (own->id() == channel) own->note_unexpected_part(rank, header.tag);
  }
}

void Mesh::on_call(int origin, uint32_t channel, ConstByteSpan note) {
  CallHead head;
  if (note.size() < sizeof(head) || note.size() > sizeof(head) + collectives::kMostWhy) return;
  std::memcpy(&head, note.data(), sizeof(head));
  if (static_cast<size_t>(head.call.kind) >= collectives::kKinds) return;
  if (head.refusals == 0 && note.size() != sizeof(head)) return;
  Communicator* own = find_communicator(origin, channel);
  if (own == nullptr) {
    if (early_calls_.size() == kMostEarlyCalls) early_calls_.pop_front();
    early_calls_.push_back({origin, channel, {note.begin(), note.end()}});
    return;
  }
  const auto* why = reinterpret_cast<const char*>(note.data() + sizeof(head));
  own->peer_calls(origin, {head.team, head.sequence, head.refusals, head.call,
                           printable(std::string_view(why, note.size() - sizeof(head)))});
}

void Mesh::add(Communicator* communicator) {
  communicators_.push_back(communicator);
  try {
    take_early_facts(*communicator);
  } catch (const std::bad_alloc&) {
    remove(communicator);
    throw;
  }
}

bool Mesh::others_stay(Communicator& communicator) {
  communicator.going_ = true;
  return std::any_of(communicators_.begin(), communicators_.end(),
                     [](const Communicator* each) { return !each->going_; });
}

void Mesh::keep_early(EarlyFact fact) {
  if (early_facts_.size() == kMostEarlyFacts) early_facts_.pop_front();
  early_facts_.push_back(std::move(fact));
}

void Mesh::take_early_facts(Communicator& communicator) {
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

void Mesh::close_channel(Channel& channel) {
  drop_queued(channel);
  channels_.close(channel.id);
}

void Mesh::give_up_channel(Channel& channel) {
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

void Mesh::drop_queued(Channel& channel) {
  for (MatchTable* table : {&channel.point_to_point, &channel.collective}) {
    while (Incoming* message = table->first_unexpected()) {
      table->remove_unexpected(message);
      if (message->pair->forget(*message)) continue;  // its fragments still come, to be dropped
      if (message->rendezvous && channel.aborted.ok()) {
        message->pair->send_control(MessageKind::kStop, message->sender_id,
                                    static_cast<uint64_t>(Code::kAborted), nullptr, 0);
      }
      message->pair->return_credit(message->credit);
      free_incoming(message);
    }
  }
}

void Mesh::free_incoming(Incoming* message) {
  if (message->rendezvous) message->pair->request_dropped();
  message->drop_bytes(blocks_);
  blocks_.give(message, sizeof(*message));
}

}  // namespace hetcomm
