// Fills operations with the arguments of calls, and checks those arguments that src/capi cannot
// check.
//
// May be used from any thread: it reads only data that is constant while its communicator exists.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "src/base/status.h"
#include "src/core/communicator/post_arguments.h"
#include "src/core/progress/communicator_base.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

// The address to which messages for a rank of a communicator are sent.
struct MemberChannel {
  int rank;          // in the job
  uint32_t channel;  // number of the rank's channel
};

class OperationFiller {
 public:
  // |members|: the communicator's members, by rank. They outlive this object. |own|: this rank's
  // number in the job.
  OperationFiller(CommunicatorBase& communicator, std::span<const MemberChannel> members, int own,
                  uint64_t default_timeout_ns)
      : communicator_(communicator),
        members_(members),
        own_(own),
        default_timeout_ns_(default_timeout_ns) {}

  const MemberChannel& member(int32_t rank) const { return members_[static_cast<size_t>(rank)]; }

  // Fills |operation| for any data call, and adds uses to the memories of its buffers. If the call
  // is rejected, |*text| says why.
  Code fill(const PostArguments& arguments, Operation& operation, std::string* text) const;
  // Fills the members that do not depend on buffers and options.
  void fill_common(OperationKind kind, int32_t peer, uint64_t tag, uint64_t ignore,
                   Operation& operation) const {
    operation.kind = kind;
    operation.phase = OperationPhase::kSubmitted;
    operation.prepared = false;
    operation.detached = false;
    operation.buffers.on_host = true;
    operation.options = {};
    const MemberChannel to = peer < 0 ? MemberChannel{-1, 0} : member(peer);
    operation.peer = to.rank;
    operation.channel = to.channel;
    operation.tag = tag;
    operation.ignore = ignore;
    operation.communicator = &communicator_;
    operation.carrier = nullptr;
    operation.run = {};
    operation.wait_index.store(0, std::memory_order_relaxed);
    operation.outcome.begin(kind != OperationKind::kReceive ? own_ : -1, tag);
    operation.timeout_ns = default_timeout_ns_;
  }
  // Fills in one buffer in host memory.
  static void fill_host(const hetcomm_buffer_t& buffer, Operation& operation) {
    operation.buffers.extent = {reinterpret_cast<void*>(buffer.offset), buffer.length};
    operation.length = buffer.length;
    if (!operation.buffers.pieces.empty()) [[unlikely]]
      operation.clear_pieces();
  }
  // Fills in any number of buffers, in host or device memory.
  static Code fill_buffers(const PostArguments& arguments, Operation& operation, std::string* text);
  // Records that |operation| will join the order of |stream|, and adds a use to |stream|. Does
  // nothing if |stream| is null.
  static void name_stream(UserStream* stream, Operation& operation);
  // Makes a prepared operation ready for another run.
  void fill_again(Operation& operation) const;
  // Fills only the members that a completion shows. Used for an operation that completed before its
  // other members were filled.
  void show_outcome(OperationKind kind, int32_t source, uint64_t tag, uint64_t length,
                    Operation& operation) const {
    operation.kind = kind;
    operation.prepared = false;
    operation.detached = false;
    operation.outcome.code = Code::kOk;
    operation.communicator = &communicator_;
    operation.outcome.source = source;
    operation.outcome.matched_tag = tag;
    operation.outcome.bytes_sent = operation.outcome.bytes_received = length;
    operation.wait_index.store(0, std::memory_order_relaxed);
    if (!operation.buffers.pieces.empty()) [[unlikely]]
      operation.clear_pieces();
    operation.set_state(OperationState::kComplete);
  }

 private:
  CommunicatorBase& communicator_;
  const std::span<const MemberChannel> members_;
  const int own_;
  const uint64_t default_timeout_ns_;
};

}  // namespace hetcomm
