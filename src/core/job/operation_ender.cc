#include "src/core/job/operation_ender.h"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "src/base/baton_role.h"
#include "src/base/text.h"
#include "src/core/peer/pair.h"

namespace hetcomm {

void OperationEnder::end_out_of_memory(Operation& operation) {
  if (operation.state() != OperationState::kPending) return;
  end(operation, Code::kOutOfMemory, "out of memory");
}

void OperationEnder::end(Operation& operation, Code code, std::string_view why) {
  std::string text = text_or_none(
      [&]() HETCOMM_UNDER_BATON { return fmt::format("{}: {}", describe(operation), why); });
  switch (operation.stage) {
    case OperationStage::kCollected:
      // Its group has not started it.
      operation.communicator->operation_begun();
      commons_.engine.operation_started();
      commons_.completer.complete(operation, code, std::move(text));
      break;
    case OperationStage::kBehind:
      departures_.leave(operation);
      if (operation.kind == OperationKind::kCollective) operation.composite->withdraw(code, text);
      commons_.completer.complete(operation, code, std::move(text));
      break;
    case OperationStage::kPosted: {
      Channel& own = operation.communicator->channel();
      (operation.options.collective ? own.collective : own.point_to_point).remove(&operation);
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
    case OperationStage::kUnopened:
      operation.pair->end(operation, code, std::move(text));
      break;
  }
}

}  // namespace hetcomm
