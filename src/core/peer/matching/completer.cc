#include "src/core/peer/matching/completer.h"

#include <memory>
#include <new>

#include <fmt/core.h>

#include "src/base/baton_role.h"
#include "src/base/text.h"
#include "src/core/device/memory.h"
#include "src/core/device/user_stream.h"
#include "src/core/memory/access_state.h"
#include "src/core/peer/matching/messaging_communicator.h"

namespace hetcomm {

void Completer::complete(Operation& operation, Code code, std::string text) {
  operation.outcome.code = code;
  try {
    if (!text.empty()) operation.outcome.text = std::make_unique<std::string>(std::move(text));
  } catch (const std::bad_alloc&) {
    operation.outcome.text.reset();  // out of memory: only the code is reported
  }
  complete(operation);
}

bool is_aborted(const Operation& operation, Code code) {
  return code == Code::kAborted && communicator_of(operation).channel().closed;
}

std::string text_of_told(const Operation& operation, const Status& told) {
  return text_or_none([&]() HETCOMM_UNDER_BATON {
    return operation.internal.handler != nullptr
               ? std::string(told.text())
               : fmt::format("{}: {}", describe(operation), told.text());
  });
}

std::string Completer::access_failure_text(const Operation& operation, Code code) {
  const char* const why = code == Code::kStaleHandle  ? "the memory is not registered any more"
                          : code == Code::kDeviceLost ? "a device of this rank failed"
                                                      : code_text(code);
  return fmt::format("{}: {}", describe(operation), why);
}

void Completer::complete_access(Operation& operation, Code code) {
  if (code == Code::kOk) {
    operation.outcome.bytes_sent = operation.outcome.bytes_received = operation.length;
    complete(operation);
    return;
  }
  complete(operation, code, text_or_none([&]() HETCOMM_UNDER_BATON {
             return access_failure_text(operation, code);
           }));
}

// Completes a collective operation that was never started, or a one-sided operation.
void Completer::complete_other(Operation& operation) {
  if (operation.kind == OperationKind::kCollective) {
    delete std::exchange(operation.composite, nullptr);
    finish(operation);
    return;
  }
  const AccessState access = access_of(operation);
  const Code code = operation.outcome.code;
  if (code == Code::kOk) {
    operation.outcome.bytes_sent += operation.target.ahead;
    operation.outcome.bytes_received += operation.target.ahead;
  }
  if (access.ledger != nullptr) access.ledger->ending(operation);
  // The use ends before finish(), since a thread that sees the completion may release the remote
  // memory immediately.
  if (access.remote != nullptr) access.remote->drop_use();
  finish(operation);
  if (access.registration != nullptr && access.registration->drop_running()) {
    engine_.note_arrival();  // a thread may be waiting to unregister the memory
  }
  if (access.started) access.ledger->ended(access.batch, code);
}

// Called when |operation| has failed. If a device of its memory was abandoned, replaces its code by
// DEVICE_LOST and adds kNotQuiet to its text, because a copy may still access that memory.
void Completer::tell_of_abandoned(Operation& operation) {
  for (const BufferPiece& piece : operation.buffers.pieces) {
    if (piece.memory == nullptr || piece.length == 0 || piece.memory->check().ok()) continue;
    Code& code = operation.outcome.code;
    std::unique_ptr<std::string>& text = operation.outcome.text;
    try {
      if (code != Code::kDeviceLost || text == nullptr) {
        code = Code::kDeviceLost;
        text = std::make_unique<std::string>(
            fmt::format("{}: {}", describe(operation), piece.memory->check().text()));
      }
      if (text->find(kNotQuiet) == std::string::npos) *text += fmt::format("; {}", kNotQuiet);
    } catch (const std::bad_alloc&) {
      text.reset();  // out of memory: only the code is reported
    }
    return;
  }
}

void Completer::let_stream_go_on(Operation& operation) {
  StreamHold* const hold = std::exchange(operation.order.hold, nullptr);
  if (hold != nullptr) hold->drop_operation();
  if (!operation.prepared || operation.detached) drop_stream(operation);
}

void Completer::drop_stream(Operation& operation) {
  if (!operation.options.on_stream) return;
  operation.options.on_stream = false;
  operation.order.stream->drop_use();
}

void Completer::drop_uses(Operation& operation) {
  drop_stream(operation);
  for (const BufferPiece& piece : operation.buffers.pieces) {
    if (piece.memory != nullptr) piece.memory->drop_use();
  }
  operation.clear_pieces();
}

}  // namespace hetcomm
