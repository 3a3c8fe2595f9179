#include "src/core/peer/access/remote_access.h"

#include <new>
#include <utility>

#include "src/core/memory/access_state.h"

namespace hetcomm {

void RemoteAccess::end(Operation& operation, Code code, std::string text) {
  if (operation.kind == OperationKind::kFlush) {
    batches_.forget(operation);
    completer_.complete(operation, code, std::move(text));
  } else if (operation.kind == OperationKind::kAnswer) {
    owner_.end(operation, code, std::move(text));
  } else {
    initiator_.end(operation, code, std::move(text));
  }
}

void RemoteAccess::ending(Operation& operation) {
  if (operation.kind == OperationKind::kAccept) {
    try {
      owner_.accepted(operation);
    } catch (const std::bad_alloc&) {
      association_.starve();  // the notification is lost, and so is the pair
    }
  }
  if (operation.kind == OperationKind::kAnswer && operation.outcome.code != Code::kOk &&
      !access_of(operation).asked) {
    owner_.refuse(operation);
  }
  if (!std::exchange(access_of(operation).holds_permit, false)) return;
  if (access_of(operation).registration != nullptr) {
    permits_.drop();
  } else {
    initiator_.free_permit();
  }
}

void RemoteAccess::receive(const WireHeader& header, ConstByteSpan payload) {
  switch (header.kind) {
    case MessageKind::kPut:
      return owner_.receive_put(header, payload);
    case MessageKind::kAnnouncePut:
      return owner_.receive_announced_put(header, payload);
    case MessageKind::kGet:
      return owner_.receive_get(header, payload);
    case MessageKind::kGetData:
      return initiator_.receive_get_data(header, payload);
    case MessageKind::kAnnounceGet:
      return initiator_.receive_announced_get(header, payload);
    case MessageKind::kAtomic:
      return owner_.receive_atomic(header, payload);
    case MessageKind::kAtomicDone:
      return initiator_.receive_atomic_done(header);
    case MessageKind::kRefused:
      return initiator_.receive_refused(header);
    case MessageKind::kAskMemory:
      return owner_.receive_ask(header.tag);
    case MessageKind::kNoMemory:
      return listener_.on_memory_gone(association_.rank(), header.tag,
                                      static_cast<int32_t>(header.value) < 0
                                          ? static_cast<Code>(static_cast<int32_t>(header.value))
                                          : Code::kInternal);
    default:
      association_.violated("unknown kind of message");
  }
}

}  // namespace hetcomm
