#include "src/core/communicator/operation_filler.h"

#include <fmt/core.h>

#include "src/core/device/memory.h"
#include "src/core/device/user_stream.h"
#include "src/core/memory/access_state.h"
#include "src/core/memory/registration.h"
#include "src/core/peer/matching/completer.h"
#include "src/core/peer/transfer/track.h"
#include "src/system/clock.h"

namespace hetcomm {
namespace {

Code fill_access(const PostArguments& arguments, Operation& operation, std::string* text) {
  const AccessArguments& given = *arguments.access;
  begin_access(operation, given.offset,
               {.remote = given.remote,
                .operand = given.operand,
                .compare = given.compare,
                .result = given.result});
  if (given.remote == nullptr) return Code::kOk;
  access_of(operation).notify =
      arguments.options != nullptr && (arguments.options->flags & HETCOMM_OPERATION_NOTIFY) != 0;
  const RemoteMemory& remote = *given.remote;
  uint32_t right = HETCOMM_ACCESS_ATOMIC;
  if (arguments.kind == OperationKind::kPut) {
    right = HETCOMM_ACCESS_PUT;
  } else if (arguments.kind == OperationKind::kGet) {
    right = HETCOMM_ACCESS_GET;
  } else {
    operation.length = sizeof(uint64_t);
  }
  Code code = Code::kOk;
  if (!remote.contains(given.offset, operation.length)) {
    *text = fmt::format("offset {} and length {} end past the remote memory's {} bytes",
                        given.offset, operation.length, remote.length());
    code = Code::kOutOfRange;
  } else if ((remote.rights() & right) == 0) {
    const char* const use = right == HETCOMM_ACCESS_PUT   ? "puts"
                            : right == HETCOMM_ACCESS_GET ? "gets"
                                                          : "atomic operations";
    *text = fmt::format("the owner of the memory did not register it for {}", use);
    code = Code::kPermissionDenied;
  } else if (right == HETCOMM_ACCESS_ATOMIC && given.offset % sizeof(uint64_t) != 0) {
    *text = fmt::format("offset {} of an atomic operation is not a multiple of 8", given.offset);
    code = Code::kInvalidArgument;
  }
  if (code != Code::kOk) {
    Completer::drop_uses(operation);
    return code;
  }
  given.remote->add_use();
  return Code::kOk;
}

}  // namespace

Code OperationFiller::fill(const PostArguments& arguments, Operation& operation,
                           std::string* text) const {
  fill_common(arguments.kind, arguments.peer, arguments.tag, arguments.ignore, operation);
  operation.options.collective = arguments.collective;
  if (arguments.track != nullptr) {
    operation.options.on_track = true;
    track_run(operation).track = arguments.track;
  }
  if (const hetcomm_operation_options_t* options = arguments.options; options != nullptr) {
    operation.options.high_priority = options->priority == HETCOMM_PRIORITY_HIGH;
    operation.options.fail_on_any_loss = (options->flags & HETCOMM_OPERATION_FAIL_ON_ANY_LOSS) != 0;
    if (options->timeout_ns != 0) {
      operation.timeout_ns = options->timeout_ns;
      operation.run.deadline_ns = deadline_after(now_ns(), operation.timeout_ns);
    }
  }
  if (arguments.count == 1 && arguments.buffers->memory == nullptr) {
    fill_host(*arguments.buffers, operation);
  } else if (const Code code = fill_buffers(arguments, operation, text); code != Code::kOk) {
    return code;
  }
  name_stream(arguments.stream(), operation);
  return arguments.access == nullptr ? Code::kOk : fill_access(arguments, operation, text);
}

void OperationFiller::name_stream(UserStream* stream, Operation& operation) {
  if (stream == nullptr) return;
  operation.options.on_stream = true;
  operation.order = {.stream = stream};
  stream->add_use();
}

Code OperationFiller::fill_buffers(const PostArguments& arguments, Operation& operation,
                                   std::string* text) {
  operation.clear_pieces();
  operation.buffers.extent = {};
  operation.length = 0;
  operation.buffers.on_host = true;
  operation.buffers.has_placeholders = true;
  for (size_t i = 0; i < arguments.count; ++i) {
    const hetcomm_buffer_t& buffer = arguments.buffers[i];
    auto* memory = reinterpret_cast<Memory*>(buffer.memory);
    if (memory != nullptr && !memory->contains(buffer.offset, buffer.length)) {
      *text = fmt::format("buffer {}: offset {} and length {} end past the memory's {} bytes", i,
                          buffer.offset, buffer.length, memory->size());
      return Code::kOutOfRange;
    }
    if (memory != nullptr && !memory->host_accessible()) {
      if (const Status status = memory->check(); !status.ok()) {
        *text = status.text();
        return status.code();
      }
    }
    if (buffer.length > UINT64_MAX - operation.length) {
      *text = "the buffers together are longer than 2^64 bytes";
      return Code::kOutOfRange;
    }
    operation.buffers.pieces.push_back({memory, buffer.offset, buffer.length});
    operation.length += buffer.length;
    const bool on_host = memory == nullptr || memory->host_accessible();
    operation.buffers.on_host = operation.buffers.on_host && (on_host || buffer.length == 0);
    if (on_host) {
      // Without a memory the offset is an address.
      std::byte* const start = memory != nullptr
                                   ? static_cast<std::byte*>(memory->address()) + buffer.offset
                                   : reinterpret_cast<std::byte*>(buffer.offset);
      operation.buffers.extent_list.push_back({start, buffer.length});
    } else if (buffer.length > 0) {
      std::byte* const placeholder = memory->placeholder();
      operation.buffers.has_placeholders =
          operation.buffers.has_placeholders && placeholder != nullptr;
      if (placeholder != nullptr) {
        operation.buffers.extent_list.push_back({placeholder + buffer.offset, buffer.length});
      }
    }
  }
  for (const BufferPiece& piece : operation.buffers.pieces) {
    if (piece.memory != nullptr) piece.memory->add_use();
  }
  return Code::kOk;
}

void OperationFiller::fill_again(Operation& operation) const {
  operation.phase = OperationPhase::kSubmitted;
  operation.run = {};
  operation.wait_index.store(0, std::memory_order_relaxed);
  if (operation.timeout_ns != default_timeout_ns_) {
    operation.run.deadline_ns = deadline_after(now_ns(), operation.timeout_ns);
  }
  operation.outcome.begin(operation.kind != OperationKind::kReceive ? own_ : -1, operation.tag);
  operation.outcome.text.reset();
}

}  // namespace hetcomm
