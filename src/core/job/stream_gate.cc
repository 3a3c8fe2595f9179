#include "src/core/job/stream_gate.h"

#include <new>
#include <string>
#include <utility>

#include "src/base/text.h"
#include "src/core/peer/matching/messaging_communicator.h"

namespace hetcomm {

void StreamGate::start(Operation& operation) {
  MessagingCommunicator& communicator = communicator_of(operation);
  communicator.operation_begun();
  std::unique_ptr<Departure> departure = take_departure(operation);
  const Channel& channel = communicator.channel();
  if (channel.closed) {
    completer_.complete(operation, Code::kAborted, text_or_none([&]() HETCOMM_UNDER_BATON {
                          return std::string(channel.aborted.text());
                        }));
    return;
  }
  const bool is_collective = operation.kind == OperationKind::kCollective;
  try {
    if (departure == nullptr) {
      departure = std::make_unique<Departure>();
      departure->reserve(1);
    }
    std::vector<const void*> orders;
    if (is_collective) orders.push_back(operation.composite->order());
    Departure& own = departures_.add(std::move(departure), std::move(orders));
    own.join(operation);
    own.close();
    if (is_collective) operation.composite->lined_up();
    communicator.starter().note_started(operation);
    waits_.begun(operation);
  } catch (const std::bad_alloc&) {
    if (is_collective) operation.composite->withdraw(Code::kOutOfMemory, "out of memory");
    ender_.end_out_of_memory(operation);
  }
}

}  // namespace hetcomm
