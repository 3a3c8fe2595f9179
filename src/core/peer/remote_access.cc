#include "src/core/peer/remote_access.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>

#include "src/base/text.h"
#include "src/core/peer/direct_access.h"
#include "src/core/peer/pair.h"
#include "src/core/peer/transfer.h"

namespace hetcomm {
namespace {

constexpr size_t kMostSegments = 8;  // of a put that goes as one message

bool is_atomic(const Operation& operation) {
  return operation.kind == OperationKind::kFetchAdd ||
         operation.kind == OperationKind::kCompareSwap;
}

AccessBody body_of(const Operation& operation) {
  return {operation.access.remote->id(), operation.access.offset, operation.length};
}

AtomicBody atomic_body_of(const Operation& operation) {
  return {
      body_of(operation),
      operation.kind == OperationKind::kFetchAdd ? AtomicAction::kAdd : AtomicAction::kCompareSwap,
      operation.access.operand, operation.access.compare};
}

uint64_t do_atomic(std::atomic_ref<uint64_t> word, const AtomicBody& body) {
  if (body.action == AtomicAction::kAdd) return word.fetch_add(body.operand);
  uint64_t seen = body.compare;
  word.compare_exchange_strong(seen, body.operand);
  return seen;
}

}  // namespace

// --- initiator --------------------------------------------------------------

void RemoteAccess::submit(Operation& operation) {
  operation.pair = &pair_;
  operation.access.ledger = this;
  if (operation.kind == OperationKind::kFlush) {
    submit_flush(operation);
    return;
  }
  ++open_epoch().running;
  operation.access.epoch = first_epoch_ + epochs_.size() - 1;
  operation.access.started = true;
  pair_.submit_send(operation);
}

void RemoteAccess::submit_flush(Operation& flush) {
  flush.stage = OperationStage::kAwaiting;
  Epoch& epoch = open_epoch();
  epoch.closed = true;
  epoch.flush = &flush;
  finish_epochs();
}

RemoteAccess::Epoch& RemoteAccess::open_epoch() {
  if (epochs_.empty() || epochs_.back().closed) epochs_.emplace_back();
  Epoch& epoch = epochs_.back();
  if (epochs_.size() == 1 && epoch.first_failure == Code::kOk) {
    epoch.first_failure = std::exchange(unreported_failure_, Code::kOk);
  }
  return epoch;
}

void RemoteAccess::ending(Operation& operation) {
  if (operation.kind == OperationKind::kAccept) {
    try {
      accepted(operation);
    } catch (const std::bad_alloc&) {
      pair_.starve();  // its notification is lost; the operation is not
    }
  }
  if (operation.kind == OperationKind::kAnswer && operation.outcome.code != Code::kOk &&
      !operation.access.asked) {
    refuse(operation);
  }
  if (operation.access.holds_place) release(operation);
}

void RemoteAccess::ended(uint64_t epoch, Code code) {
  Epoch& own = epochs_[epoch - first_epoch_];
  --own.running;
  if (code != Code::kOk && own.first_failure == Code::kOk) own.first_failure = code;
  if (own.running == 0) finish_epochs();
}

void RemoteAccess::finish_epochs() {
  while (!epochs_.empty() && epochs_.front().running == 0 && epochs_.front().closed) {
    const Epoch done = epochs_.front();
    epochs_.pop_front();
    ++first_epoch_;
    if (done.flush == nullptr) {
      // The flush ended early: the next one says what failed.
      if (done.first_failure == Code::kOk) continue;
      Code& next = epochs_.empty() ? unreported_failure_ : epochs_.front().first_failure;
      if (next == Code::kOk) next = done.first_failure;
      continue;
    }
    std::string text;
    if (done.first_failure != Code::kOk) {
      text = text_or_none([&] {
        return fmt::format("flush to rank {}: an operation before it failed: {}", pair_.rank(),
                           code_text(done.first_failure));
      });
    }
    pair_.common().completer.complete(*done.flush, done.first_failure, std::move(text));
  }
}

std::string RemoteAccess::failure_text(const Operation& operation, Code code) {
  const char* why =
      code == Code::kStaleHandle ? "the memory is not registered any more" : code_text(code);
  return fmt::format("{}: {}", describe(operation), why);
}

void RemoteAccess::complete(Operation& operation, Code code) {
  if (code == Code::kOk) {
    operation.outcome.bytes_sent = operation.outcome.bytes_received = operation.length;
    pair_.common().completer.complete(operation);
    return;
  }
  pair_.common().completer.complete(operation, code,
                                    text_or_none([&] { return failure_text(operation, code); }));
}

bool RemoteAccess::start(Operation& operation) {
  Rail& rail = *pair_.rail();
  if (operation.access.remote != nullptr && !operation.access.placed && operation.buffers.on_host &&
      !operation.access.direct_failed && is_mapped(*operation.access.remote, rail) &&
      start_mapped(operation)) {
    return true;
  }
  switch (operation.kind) {
    case OperationKind::kPut:
      return start_put(operation, rail);
    case OperationKind::kGet:
      return start_get(operation, rail);
    case OperationKind::kAnswer:
      return start_answer(operation, rail);
    default:
      return start_atomic(operation);
  }
}

// Once, when it leaves for the first time.
void RemoteAccess::count_once(Operation& operation) {
  if (operation.access.remote == nullptr || std::exchange(operation.access.counted, true)) return;
  hetcomm_counters_t& counters = pair_.rail()->counters();
  if (operation.kind == OperationKind::kPut) {
    ++counters.puts;
  } else if (operation.kind == OperationKind::kGet) {
    ++counters.gets;
  } else {
    ++counters.atomics;
  }
}

// --- mapped memory ----------------------------------------------------------

void RemoteAccess::add(RemoteMemory& remote) { remotes_.push_back(&remote); }

// Asks for the mapping on first use; until it is there the owner helps.
bool RemoteAccess::is_mapped(RemoteMemory& remote, Rail& rail) {
  if (remote.mapped != nullptr) return true;
  const RemoteKey& key = remote.key(rail.transport);
  if (!rail.capabilities().map || key == RemoteKey{}) return false;
  const auto found = std::find_if(regions_.begin(), regions_.end(),
                                  [&](const KnownRegion& each) { return each.key == key; });
  if (found == regions_.end()) {
    regions_.push_back({key, {}});
    rail.abilities().mapper->map(key, remote.length());
    return false;
  }
  // The exported bytes may say anything; what counts is what is mapped.
  const MappedRegion& region = found->mapped;
  if (region.length == remote.length()) remote.mapped = region.address;
  remote.counters = &rail.counters();
  return remote.mapped != nullptr;
}

void RemoteAccess::mapped(Rail& rail, const RemoteKey& key, const Result<MappedRegion>& mapped) {
  if (!mapped.ok()) {
    pair_.common().log.info("memory of rank {} is not mapped: {}", pair_.rank(),
                            mapped.status().text());
    return;
  }
  for (KnownRegion& each : regions_) {
    if (each.key == key) each.mapped = mapped.value();
  }
  for (RemoteMemory* remote : remotes_) {
    if (remote->key(rail.transport) == key) is_mapped(*remote, rail);
  }
}

void RemoteAccess::unmap(const Rail& rail, const RemoteKey& key) {
  for (RemoteMemory* remote : remotes_) {
    if (remote->key(rail.transport) == key) remote->mapped = nullptr;
  }
  // Not asked for again: the owner is about to forget it.
  for (KnownRegion& each : regions_) {
    if (each.key == key) each.mapped = {};
  }
  for (size_t i = 0; i < copies_.size();) {
    Operation& operation = *copies_[i].operation;
    if (operation.access.remote->key(rail.transport) != key) {
      ++i;
      continue;
    }
    copies_.erase(copies_.begin() + static_cast<ptrdiff_t>(i));
    go_by_message(operation);
  }
}

// Where the owner says what became of the memory. The first |placed| bytes are where they belong.
void RemoteAccess::go_by_message(Operation& operation, uint64_t placed) {
  operation.access.direct_failed = true;
  operation.drop_front(placed);
  send_soon(operation);
}

// At the end of the pass; until then it is in a list, whatever happens.
void RemoteAccess::send_soon(Operation& operation) {
  pair_.enqueue(operation);
  pair_.common().schedule.update_due(pair_);
}

void RemoteAccess::copy_part(const Operation& operation, uint64_t from, uint64_t length) const {
  std::byte* at = operation.access.remote->mapped + operation.access.offset + from;
  const bool put = operation.kind == OperationKind::kPut;
  for_each_piece(operation.segments(), from, length, [&](std::byte* piece, size_t size) {
    put ? copy_bytes(at, piece, size) : copy_bytes(piece, at, size);
    at += size;
  });
}

// True when the operation has left the outbox: done, or copying. False: the rest goes by message.
bool RemoteAccess::start_mapped(Operation& operation) {
  if (is_atomic(operation)) {
    std::byte* at = operation.access.remote->mapped + operation.access.offset;
    if (reinterpret_cast<uintptr_t>(at) % sizeof(uint64_t) != 0) return false;
    const uint64_t before = do_atomic(std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(at)),
                                      atomic_body_of(operation));
    if (operation.access.result != nullptr) *operation.access.result = before;
  } else if (operation.length > kMostCopiedAtOnce) {
    count_once(operation);
    ++pair_.rail()->counters().direct;
    operation.stage = OperationStage::kDirect;
    copies_.push_back({&operation, 0});
    pair_.common().schedule.copies_due(pair_);
    return true;
  } else {
    copy_part(operation, 0, operation.length);
  }
  count_once(operation);
  ++pair_.rail()->counters().direct;
  if (operation.access.notify) {
    operation.access.placed = true;
    return false;
  }
  complete(operation, Code::kOk);
  return true;
}

bool RemoteAccess::copy_some() {
  if (copies_.empty()) return false;
  Copy& copy = copies_.front();
  Operation& operation = *copy.operation;
  const uint64_t length = std::min(kMostCopiedAtOnce, operation.length - copy.done);
  copy_part(operation, copy.done, length);
  copy.done += length;
  if (copy.done < operation.length) return true;
  copies_.erase(copies_.begin());
  finish_direct(operation, Code::kOk);
  return !copies_.empty();
}

// What needed nobody's help is over; the owner is told where it wants to know.
void RemoteAccess::finish_direct(Operation& operation, Code code) {
  if (code == Code::kOk && !operation.buffers.on_host && operation.kind == OperationKind::kGet) {
    code = DeviceAccess::flush_remote_writes(operation).code();
  }
  // Who may use the bytes is told by the owner's notification, or by this rank when it sees the
  // end.
  const bool owner_has_to_know =
      operation.access.notify ||
      (operation.kind == OperationKind::kPut && operation.access.remote->needs_flush());
  if (code == Code::kOk && owner_has_to_know) {
    operation.access.placed = true;
    send_soon(operation);
  } else {
    complete(operation, code);
  }
}

bool RemoteAccess::stop_copying(const Operation& operation) {
  return std::erase_if(copies_, [&](const Copy& each) { return each.operation == &operation; }) > 0;
}

// --- starting ---------------------------------------------------------------

bool RemoteAccess::may_go_direct(const Operation& operation, const Rail& rail) {
  return rail.capabilities().regions && operation.length > 0 && !operation.access.direct_failed &&
         operation.access.remote->key(rail.transport) != RemoteKey{} &&
         pair_.common().reaches(operation, rail.transport);
}

void RemoteAccess::start_direct(Operation& operation) {
  direct_.reserve(direct_.size() + 1);
  auto direct = make_pooled<DirectAccess>(pair_.common().blocks, *this, pair_, operation);
  count_once(operation);
  ++pair_.rail()->counters().direct;
  operation.stage = OperationStage::kDirect;
  operation.access.direct = direct.get();
  direct_.push_back(&operation);
  direct.release()->start();
}

void RemoteAccess::forget_direct(Operation& operation) {
  std::erase(direct_, &operation);
  operation.access.direct = nullptr;
}

// Whether its bytes may travel in one message, which the owner copies from.
bool RemoteAccess::fits_message(const Operation& put, const Rail& rail) {
  const Capabilities& capabilities = rail.capabilities();
  return put.buffers.on_host && put.access.remote->host_accessible() &&
         put.length <= capabilities.eager_limit_bytes &&
         put.length + sizeof(AccessBody) <= capabilities.max_payload_bytes &&
         put.segments().size() <= kMostSegments;
}

bool RemoteAccess::start_put(Operation& put, Rail& rail) {
  // What remains of one may notify of more than its own range.
  const bool fits = fits_message(put, rail) && put.access.ahead == 0;
  // A small put that notifies is one message, which its notification would be anyway; written by
  // the network it would be waited for first.
  if (!put.access.placed && !(fits && put.access.notify) && may_go_direct(put, rail)) {
    start_direct(put);
    return true;
  }
  if (put.access.notify && !pay_for_notification(put)) return true;
  return fits || put.access.placed ? start_put_message(put) : start_put_request(put);
}

// Without credit it waits, and nothing waits for it.
bool RemoteAccess::pay_for_notification(Operation& put) {
  if (pair_.credit_available() >= kMessageCost) return true;
  put.stage = OperationStage::kAwaiting;
  awaiting_credit_.push_back(&put);
  return false;
}

void RemoteAccess::credit_came() {
  if (awaiting_credit_.empty()) return;
  // Out of one list into the other before anything that may fail for want of memory.
  for (Operation* put : awaiting_credit_) pair_.enqueue(*put);
  awaiting_credit_.clear();
  pair_.pump();
}

bool RemoteAccess::start_put_message(Operation& put) {
  const AccessBody body = body_of(put);
  std::array<iovec, 1 + kMostSegments> pieces;
  pieces[0] = {const_cast<AccessBody*>(&body), sizeof(body)};
  size_t count = 1;
  uint64_t length = sizeof(body);
  uint8_t flags = put.access.notify ? kFlagNotify : uint8_t{0};
  if (put.access.placed) {
    flags |= kFlagPlaced;
  } else {
    for (const iovec& segment : put.segments()) pieces[count++] = segment;
    length += put.length;
  }
  const WireHeader header{.kind = MessageKind::kPut, .flags = flags, .value = put.access.operand};
  return ask(put, header, Segments(pieces.data(), count), length);
}

bool RemoteAccess::ask(Operation& operation, WireHeader header, Segments payload, uint64_t length) {
  if (!may_ask(operation)) return true;
  const bool is_put = header.kind == MessageKind::kPut;
  header.tag = asked_.insert(&operation);
  Code code;
  try {
    if (is_put) sent_puts_.push_back({pair_.sent_ + 1, header.tag});
    code = pair_.send_message(header, SegmentView{payload, 0, length});
  } catch (const std::bad_alloc&) {
    code = Code::kOutOfMemory;
  }
  if (code != Code::kOk) {
    if (is_put && !sent_puts_.empty() && sent_puts_.back().id == header.tag) sent_puts_.pop_back();
    asked_.erase(header.tag);
    return pair_.refused(operation, code);
  }
  if ((header.flags & kFlagNotify) != 0) {
    pair_.credit_used_ += static_cast<uint32_t>(kMessageCost);
  }
  count_once(operation);
  places_.take();
  operation.access.holds_place = !is_put;  // that of a put stays with |sent_puts_|
  operation.access.id = header.tag;
  operation.access.asked = true;
  operation.stage = OperationStage::kAwaiting;
  return true;
}

// A transfer whose request, with |value| in its header, the other side knows how to place.
bool RemoteAccess::start_transfer(Operation& send, MessageKind kind, uint64_t value) {
  const bool is_put = kind == MessageKind::kPutRequest;
  if (is_put && !may_ask(send)) return true;
  auto transfer = make_pooled<SendTransfer>(pair_.common().blocks, pair_, send);
  PutRequestBody body{};
  body.request = transfer->make_request();
  iovec piece{&body.request, sizeof(body.request)};
  if (is_put) {
    body.range = body_of(send);
    body.ahead = send.access.ahead;
    piece = {&body, sizeof(body)};
  }
  const WireHeader header{.kind = kind,
                          .flags = send.access.notify ? kFlagNotify : uint8_t{0},
                          .tag = send.access.id,
                          .value = value};
  const Code code = pair_.send_message(header, SegmentView{Segments(&piece, 1), 0, piece.iov_len});
  if (code != Code::kOk) return pair_.refused(send, code);
  if (is_put) {
    places_.take();
    send.access.holds_place = true;
  }
  if (send.access.notify) pair_.credit_used_ += static_cast<uint32_t>(kMessageCost);
  count_once(send);
  send.access.asked = true;
  send.stage = OperationStage::kTransfer;
  send.transfer.send = transfer.release();
  return true;
}

bool RemoteAccess::start_put_request(Operation& put) {
  return start_transfer(put, MessageKind::kPutRequest, put.access.operand);
}

bool RemoteAccess::start_get(Operation& get, Rail& rail) {
  if (may_go_direct(get, rail)) {
    start_direct(get);
    return true;
  }
  const AccessBody body = body_of(get);
  iovec piece{const_cast<AccessBody*>(&body), sizeof(body)};
  const WireHeader header{.kind = MessageKind::kGet};
  return ask(get, header, Segments(&piece, 1), sizeof(body));
}

bool RemoteAccess::start_atomic(Operation& atomic) {
  AtomicBody body = atomic_body_of(atomic);
  iovec piece{&body, sizeof(body)};
  const WireHeader header{.kind = MessageKind::kAtomic};
  return ask(atomic, header, Segments(&piece, 1), sizeof(body));
}

// --- places -----------------------------------------------------------------

// False: |operation| waits for its turn now, and nothing waits for it.
bool RemoteAccess::may_ask(Operation& operation) {
  if (places_.is_free() && (waiting_.empty() || operation.access.had_turn)) [[likely]]
    return true;
  wait_in(waiting_, operation);
  return false;
}

void RemoteAccess::wait_in(OperationQueue& queue, Operation& operation) {
  operation.stage = OperationStage::kAwaiting;
  operation.access.waiting = true;
  queue.push_back(operation);
}

// Starts what waits in |queue| until one has to wait on.
void RemoteAccess::start_all(OperationQueue& queue) {
  while (!queue.empty() && pair_.may_send() && (&queue != &waiting_ || places_.is_free())) {
    Operation& next = queue.front();
    queue.remove(next);
    next.access.waiting = false;
    next.access.had_turn = true;
    next.stage = OperationStage::kQueued;
    if (pair_.start_or_end(next)) continue;
    next.stage = OperationStage::kAwaiting;
    next.access.waiting = true;
    queue.push_front(next);
    return;
  }
}

// They are not behind the outbox: its first operation may wait for what only the peer can do.
void RemoteAccess::start_answers() { start_all(waiting_answers_); }

void RemoteAccess::start_waiting() { start_all(waiting_); }

// At the end of the pass.
void RemoteAccess::wake_waiting() {
  if (!waiting_.empty()) pair_.common().schedule.update_due(pair_);
}

void RemoteAccess::free_place() {
  places_.give_back();
  wake_waiting();
}

void RemoteAccess::release(Operation& operation) {
  operation.access.holds_place = false;
  if (operation.access.registration != nullptr) {
    places_.drop();
  } else {
    free_place();
  }
}

Place RemoteAccess::hand_over(Operation& operation) {
  switch (operation.kind) {
    case OperationKind::kPut:
    case OperationKind::kAccept:
    case OperationKind::kAnswer:
      if (!std::exchange(operation.access.holds_place, false)) return Place::kNone;
      return operation.kind == OperationKind::kPut ? Place::kInitiator : Place::kOwner;
    default:
      return Place::kNone;  // a get gives its place back as it ends: kMaxHeld allows for that
  }
}

void RemoteAccess::left(MessageKind kind, Place place) {
  if (kind == MessageKind::kRailDown) told_of_failure();
  if (place == Place::kNone) return;
  if (place == Place::kOwner) {
    places_.answered(pair_.sent_);
  } else {
    sent_puts_.push_back({pair_.sent_, 0});
  }
}

// The owner has answered |id|, and its operation had ended before.
void RemoteAccess::answered_late(uint64_t id) {
  if (asked_.erase(id)) free_place();
}

// --- ending -----------------------------------------------------------------

void RemoteAccess::end(Operation& operation, Code code, std::string text) {
  if (operation.kind == OperationKind::kFlush) {
    for (Epoch& epoch : epochs_) {
      if (epoch.flush == &operation) epoch.flush = nullptr;
    }
  } else if (DirectAccess* direct = operation.access.direct; direct != nullptr) {
    if (direct->cancel(code, &text)) return;
    direct->retire();
  } else if (std::exchange(operation.access.waiting, false)) {
    const bool is_answer = operation.kind == OperationKind::kAnswer;
    (is_answer ? waiting_answers_ : waiting_).remove(operation);
  } else if (!stop_copying(operation)) {
    std::erase(awaiting_credit_, &operation);
    if (std::exchange(operation.access.holds_place, false)) {
      asked_.detach(operation.access.id);  // and the place with it
    } else {
      asked_.erase(operation.access.id);
    }
    if (is_atomic(operation) && operation.access.asked) {
      text = text_or_none([&] { return text + "; whether it happened cannot be learned"; });
      code = Code::kOutcomeUnknown;
    }
  }
  pair_.common().completer.complete(operation, code, std::move(text));
}

bool RemoteAccess::is_idle() const {
  return flushed() && asked_.empty() && direct_.empty() && !is_fence_open() && sent_puts_.empty() &&
         remotes_.empty() && copies_.empty() && again_.empty();
}

bool RemoteAccess::uses(const Rail& rail) const {
  return std::any_of(direct_.begin(), direct_.end(), [&](const Operation* operation) {
    return operation->access.direct->uses(rail);
  });
}

void RemoteAccess::rail_failed(const Rail& rail, bool peer_has_to_know) {
  if (rail.capabilities().map) {
    for (RemoteMemory* remote : remotes_) remote->mapped = nullptr;
    regions_.clear();
    again_.reserve(again_.size() + copies_.size());  // in one of the two lists, whatever happens
    for (const Copy& copy : copies_) again_.push_back(copy.operation);
    copies_.clear();
  }
  for (Operation* operation : direct_) operation->access.direct->rail_failed(rail);
  if (!peer_has_to_know) return;
  ++untold_failures_;
  if (rail.capabilities().regions) fence_ = Fence::kWanted;
}

// The fence is the last message that tells of a failed connection. What follows it may need no
// acknowledgement.
void RemoteAccess::told_of_failure() {
  --untold_failures_;
  if (fence_ != Fence::kWanted || untold_failures_ > 0) return;
  fence_ = Fence::kAsked;
  fence_sequence_ = pair_.sent_;
}

void RemoteAccess::rails_changed() {
  if (direct_.empty()) return;
  const std::vector<Operation*> now = direct_;
  for (Operation* operation : now) {
    const bool there = std::find(direct_.begin(), direct_.end(), operation) != direct_.end();
    if (there) operation->access.direct->go_on();
  }
}

void RemoteAccess::start_again() {
  if (again_.empty()) return;
  enqueue_again();
  pair_.common().schedule.update_due(pair_);
}

// Fails for nothing.
void RemoteAccess::enqueue_again() {
  for (Operation* operation : again_) {
    operation->access.direct_failed = true;
    pair_.enqueue(*operation);
  }
  again_.clear();
}

void RemoteAccess::fail_everything(const Status& why) {
  sent_puts_.clear();
  fence_ = Fence::kNone;
  untold_failures_ = 0;
  const auto fail = [&](Operation& operation) {
    end(operation, why.code(),
        text_or_none([&] { return fmt::format("{}: {}", describe(operation), why.text()); }));
  };
  asked_.for_each(fail);
  while (!awaiting_credit_.empty()) fail(*awaiting_credit_.back());
  while (!waiting_.empty()) fail(waiting_.front());
  while (!waiting_answers_.empty()) fail(waiting_answers_.front());
  while (!direct_.empty()) lose_direct(*direct_.back(), why);
  while (!copies_.empty()) fail(*copies_.back().operation);
  enqueue_again();  // into the outbox, which is failed next
}

void RemoteAccess::lose_direct(Operation& operation, const Status& why) {
  Code code = why.code();
  std::string text =
      text_or_none([&] { return fmt::format("{}: {}", describe(operation), why.text()); });
  DirectAccess& direct = *operation.access.direct;
  direct.lose(&code, &text);
  direct.retire();
  pair_.common().completer.complete(operation, code, std::move(text));
}

void RemoteAccess::receive_refused(const WireHeader& header) {
  Operation* operation = asked_.find(header.tag);
  if (operation == nullptr) {
    answered_late(header.tag);
    return;
  }
  asked_.erase(header.tag);
  const auto code = static_cast<Code>(static_cast<int32_t>(header.value));
  complete(*operation, static_cast<int32_t>(code) < 0 ? code : Code::kInternal);
}

void RemoteAccess::acknowledged(uint32_t sequence) {
  while (!sent_puts_.empty() && static_cast<int32_t>(sequence - sent_puts_.front().sequence) >= 0) {
    const uint64_t id = sent_puts_.front().id;
    Operation* put = asked_.find(id);
    asked_.erase(id);
    sent_puts_.pop_front();
    free_place();
    if (put != nullptr) complete(*put, Code::kOk);  // or else it ended before
  }
  if (fence_ == Fence::kAsked && static_cast<int32_t>(sequence - fence_sequence_) >= 0) {
    fence_ = Fence::kNone;
    rails_changed();
  }
}

void RemoteAccess::receive_atomic_done(const WireHeader& header) {
  Operation* operation = asked_.find(header.tag);
  if (operation == nullptr) {
    answered_late(header.tag);
    return;
  }
  if (!is_atomic(*operation)) {
    pair_.violated("answer of a wrong kind");
    return;
  }
  asked_.erase(header.tag);
  if (operation->access.result != nullptr) *operation->access.result = header.value;
  complete(*operation, Code::kOk);
}

void RemoteAccess::receive_get_data(const WireHeader& header, ConstByteSpan payload) {
  Operation* get = asked_.find(header.tag);
  if (get == nullptr) {
    answered_late(header.tag);
    return;
  }
  if (get->kind != OperationKind::kGet || payload.size() != get->length) {
    pair_.violated("data of a get of a wrong length");
    return;
  }
  asked_.erase(header.tag);
  pair_.common().delivery.deliver(*get, pair_.rank(), get->tag, payload, payload.size());
}

void RemoteAccess::receive_get_request(const WireHeader& header, ConstByteSpan payload) {
  RequestBody body;
  if (!decode_body(payload, &body)) {
    pair_.violated("request of a wrong size");
    return;
  }
  Operation* get = asked_.find(header.tag);
  if (get == nullptr) {
    // It ended meanwhile.
    pair_.send_control(MessageKind::kStop, body.sender_id, static_cast<uint64_t>(Code::kCancelled),
                       nullptr, 0);
    answered_late(header.tag);
    return;
  }
  if (get->kind != OperationKind::kGet || header.value != get->length) {
    pair_.violated("data of a get of a wrong length");
    return;
  }
  asked_.erase(header.tag);
  pair_.attach_request(*get, body, header.value);
}

// --- owner ------------------------------------------------------------------

bool RemoteAccess::hold() {
  if (places_.hold()) [[likely]]
    return true;
  pair_.violated("more one-sided operations than may be asked for at a time");
  return false;
}

// After hold(), and before anything that acknowledges the operation.
void RemoteAccess::refuse(uint64_t id, Code code) {
  pair_.send_control(MessageKind::kRefused, id, static_cast<uint64_t>(code), nullptr, 0,
                     Place::kOwner);
}

void RemoteAccess::refuse(Operation& answer) {
  answer.access.holds_place = false;  // it goes over to the message
  refuse(answer.access.id, answer.outcome.code);
}

Registration* RemoteAccess::find(const AccessBody& body, uint32_t right, Code* code) const {
  Registration* registration = pair_.common().registrations.find(body.region);
  if (registration == nullptr || registration->closing) {
    *code = Code::kStaleHandle;
  } else if (!registration->communicator().channel().aborted.ok()) {
    *code = Code::kAborted;
  } else if (!registration->communicator().contains(pair_.rank())) {
    *code = Code::kPermissionDenied;
    note_refusal("it is registered on a communicator that this rank does not belong to");
  } else if ((registration->rights() & right) == 0) {
    *code = Code::kPermissionDenied;
    note_refusal("that access was not granted");
  } else if (!registration->memory().contains(body.offset, body.length)) {
    *code = Code::kOutOfRange;
  } else {
    return registration;
  }
  return nullptr;
}

// Whoever keeps to what the export says is not refused. Once for each rank and reason.
void RemoteAccess::note_refusal(const char* why) const {
  try {
    pair_.common().log.warn_once(fmt::format("rank {} is refused memory: {}", pair_.rank(), why));
  } catch (const std::bad_alloc&) {
    // Nothing else fails for a line.
  }
}

Operation* RemoteAccess::begin_for_peer(OperationKind kind, Registration& registration,
                                        const AccessBody& range) {
  Operation* operation = registration.communicator().begin_for_peer(
      kind, pair_.rank(), registration, range.offset, range.length);
  if (operation == nullptr) return nullptr;
  operation->pair = &pair_;
  operation->access.ledger = this;
  return operation;
}

void RemoteAccess::receive(const WireHeader& header, ConstByteSpan payload) {
  switch (header.kind) {
    case MessageKind::kPut:
      return receive_put(header, payload);
    case MessageKind::kPutRequest:
      return receive_put_request(header, payload);
    case MessageKind::kGet:
      return receive_get(header, payload);
    case MessageKind::kGetData:
      return receive_get_data(header, payload);
    case MessageKind::kGetRequest:
      return receive_get_request(header, payload);
    case MessageKind::kAtomic:
      return receive_atomic(header, payload);
    case MessageKind::kAtomicDone:
      return receive_atomic_done(header);
    case MessageKind::kRefused:
      return receive_refused(header);
    default:
      pair_.violated("unknown kind of message");
  }
}

void RemoteAccess::accepted(const Operation& accept) {
  if (accept.outcome.code != Code::kOk) {
    if (accept.access.notify) pair_.return_credit(kMessageCost);
    return;
  }
  const uint64_t ahead = accept.access.ahead;
  const AccessBody body{accept.access.registration->id, accept.access.offset - ahead,
                        accept.length + ahead};
  finish_put(*accept.access.registration, body,
             {.kind = MessageKind::kPutRequest,
              .flags = accept.access.notify ? kFlagNotify : uint8_t{0},
              .value = accept.access.operand});
}

// All bytes are in place.
void RemoteAccess::finish_put(Registration& registration, const AccessBody& body,
                              const WireHeader& header) {
  if ((header.flags & kFlagNotify) == 0) return;
  const int32_t source = registration.communicator().rank_of(pair_.rank());
  registration.notify(pair_, {header.value, source, 0, body.offset, body.length});
  pair_.common().engine.note_arrival();
}

void RemoteAccess::receive_put(const WireHeader& header, ConstByteSpan payload) {
  const bool notify = (header.flags & kFlagNotify) != 0;
  const bool placed = (header.flags & kFlagPlaced) != 0;
  AccessBody body;
  const size_t bytes = payload.size() - std::min(payload.size(), sizeof(body));
  if (payload.size() < sizeof(body) || !decode_body(payload.first(sizeof(body)), &body) ||
      bytes != (placed ? 0 : body.length)) {
    pair_.violated("put of a wrong size");
    return;
  }
  if (notify && !pair_.use_credit(kMessageCost)) return;
  Code code = Code::kOk;
  Registration* registration = find(body, HETCOMM_ACCESS_PUT, &code);
  if (registration != nullptr && bytes > 0 && !registration->memory().host_accessible()) {
    code = Code::kUnsupported;
  }
  if (code == Code::kOk && placed && bytes == 0 && body.length > 0) {
    code = registration->memory().flush_remote_writes().code();
  }
  if (code == Code::kOk) {
    if (bytes > 0) {
      copy_bytes(static_cast<std::byte*>(registration->memory().address()) + body.offset,
                 payload.data() + sizeof(body), bytes);
    }
    finish_put(*registration, body, header);
  } else {
    if (notify) pair_.return_credit(kMessageCost);
    if (!hold()) return;
    refuse(header.tag, code);
  }
  pair_.acknowledgement_due();
}

void RemoteAccess::receive_put_request(const WireHeader& header, ConstByteSpan payload) {
  PutRequestBody body;
  if (!decode_body(payload, &body)) {
    pair_.violated("put request of a wrong size");
    return;
  }
  const bool notify = (header.flags & kFlagNotify) != 0;
  if (notify && !pair_.use_credit(kMessageCost)) return;
  if (!hold()) return;
  Code code = Code::kOutOfRange;
  Registration* registration = nullptr;
  if (body.ahead <= body.range.offset && body.ahead <= UINT64_MAX - body.range.length) {
    const AccessBody whole{body.range.region, body.range.offset - body.ahead,
                           body.range.length + body.ahead};
    registration = find(whole, HETCOMM_ACCESS_PUT, &code);
  }
  Operation* accept = nullptr;
  if (registration != nullptr) {
    accept = begin_for_peer(OperationKind::kAccept, *registration, body.range);
    if (accept == nullptr) code = Code::kOutOfMemory;
  }
  if (accept == nullptr) {
    if (notify) pair_.return_credit(kMessageCost);
    pair_.send_control(MessageKind::kStop, body.request.sender_id, static_cast<uint64_t>(code),
                       nullptr, 0, Place::kOwner);
    return;
  }
  accept->access.holds_place = true;
  accept->access.ahead = body.ahead;
  accept->access.notify = notify;
  accept->access.operand = header.value;
  pair_.attach_request(*accept, body.request, body.range.length);
}

void RemoteAccess::receive_get(const WireHeader& header, ConstByteSpan payload) {
  AccessBody body;
  if (!decode_body(payload, &body)) {
    pair_.violated("get of a wrong size");
    return;
  }
  if (!hold()) return;
  Code code = Code::kOk;
  Registration* registration = find(body, HETCOMM_ACCESS_GET, &code);
  Operation* send = nullptr;
  if (registration != nullptr) {
    send = begin_for_peer(OperationKind::kAnswer, *registration, body);
    if (send == nullptr) code = Code::kOutOfMemory;
  }
  if (send == nullptr) {
    refuse(header.tag, code);
    return;
  }
  send->access.id = header.tag;
  send->access.holds_place = true;
  try {
    submit_answer(*send);
  } catch (const std::bad_alloc&) {
    pair_.end_out_of_memory(*send);  // it is in no list
    throw;
  }
}

void RemoteAccess::submit_answer(Operation& answer) {
  if (waiting_answers_.empty() && pair_.may_send() && start(answer)) [[likely]]
    return;
  wait_in(waiting_answers_, answer);
}

bool RemoteAccess::start_answer(Operation& send, const Rail& rail) {
  const Capabilities& capabilities = rail.capabilities();
  const bool may_keep =
      capabilities.lossless || pair_.retention_.bytes() + send.length <= kMaxKeptAnswers;
  if (!send.buffers.on_host || send.length > capabilities.eager_limit_bytes ||
      send.length > capabilities.max_payload_bytes || !may_keep) {
    return start_transfer(send, MessageKind::kGetRequest, send.length);
  }
  const WireHeader header{
      .kind = MessageKind::kGetData, .tag = send.access.id, .value = send.length};
  const Code code = pair_.send_message(header, SegmentView{send.segments(), 0, send.length});
  if (code != Code::kOk) return pair_.refused(send, code);
  send.access.asked = true;
  left(header.kind, Place::kOwner);
  send.access.holds_place = false;
  pair_.common().completer.complete(send);
  return true;
}

void RemoteAccess::receive_atomic(const WireHeader& header, ConstByteSpan payload) {
  AtomicBody body;
  if (!decode_body(payload, &body) || body.range.length != sizeof(uint64_t)) {
    pair_.violated("atomic of a wrong size");
    return;
  }
  if (!hold()) return;
  Code code = Code::kOk;
  Registration* registration = find(body.range, HETCOMM_ACCESS_ATOMIC, &code);
  if (registration == nullptr) {
    refuse(header.tag, code);
    return;
  }
  std::byte* at = static_cast<std::byte*>(registration->memory().address()) + body.range.offset;
  if (reinterpret_cast<uintptr_t>(at) % sizeof(uint64_t) != 0 ||
      (body.action != AtomicAction::kAdd && body.action != AtomicAction::kCompareSwap)) {
    refuse(header.tag, Code::kInvalidArgument);
    return;
  }
  const uint64_t before =
      do_atomic(std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(at)), body);
  pair_.send_control(MessageKind::kAtomicDone, header.tag, before, nullptr, 0, Place::kOwner);
}

}  // namespace hetcomm
