// PostArguments holds the arguments of a data call, as src/capi passes them.
#pragma once

#include <cstddef>
#include <cstdint>

#include <hetcomm/p2p.h>

#include "src/core/progress/operation.h"

namespace hetcomm {

class Track;
class RemoteMemory;
class UserStream;

// Returns the stream of a handle; null for a null handle.
inline UserStream* stream_of(hetcomm_stream_t* stream) {
  return reinterpret_cast<UserStream*>(stream);
}

// Further arguments of one-sided operations.
struct AccessArguments {
  RemoteMemory* remote = nullptr;  // null: a flush
  uint64_t offset = 0;
  uint64_t operand = 0;
  uint64_t compare = 0;
  uint64_t* result = nullptr;
};

// The unchecked arguments of a data call.
struct PostArguments {
  OperationKind kind;
  int32_t peer;  // rank in the communicator; -1: any source
  uint64_t tag;
  uint64_t ignore;
  const hetcomm_buffer_t* buffers;
  size_t count;
  const hetcomm_operation_options_t* options;  // null: defaults
  bool collective = false;
  const AccessArguments* access = nullptr;
  Track* track = nullptr;  // a track of the communicator, to or from |peer|

  // The stream whose order the operation joins; null: the operation starts immediately.
  UserStream* stream() const { return options == nullptr ? nullptr : stream_of(options->stream); }
};

}  // namespace hetcomm
