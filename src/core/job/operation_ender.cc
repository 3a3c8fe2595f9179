#include "src/core/job/operation_ender.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "src/base/baton_role.h"
#include "src/base/text.h"
#include "src/core/peer/matching/messaging_communicator.h"
#include "src/core/peer/pair.h"

namespace hetcomm {

void OperationEnder::end_out_of_memory(Operation& operation) {
  if (operation.state() != OperationState::kPending) return;
  end(operation, Code::kOutOfMemory, "out of memory");
}

std::string OperationEnder::trouble_with(int rank) {
  Pair* pair = pairs_.find(rank);
  return pair != nullptr ? pair->trouble() : std::string();
}

std::string OperationEnder::awaited_text(const Operation& operation) {
  constexpr size_t kMaxNamed = 3;
  constexpr size_t kMaxSenders = 64;  // ranks to check for a receive from any source
  const bool of_many = operation.kind == OperationKind::kCollective;
  // The operation waits for no rank yet. Its remark may still say something about the other ranks.
  if (operation.phase == OperationPhase::kBehind || operation.phase == OperationPhase::kCollected) {
    return of_many && operation.composite != nullptr ? operation.composite->remark()
                                                     : std::string();
  }
  const CommunicatorBase& communicator = *operation.communicator;
  std::vector<int> ranks;
  if (of_many && operation.composite != nullptr) {
    ranks = operation.composite->awaited();
  } else if (!of_many && operation.peer >= 0) {
    ranks = {operation.peer};
  } else if (!of_many) {
    ranks = communicator.ranks();
    ranks.resize(std::min(ranks.size(), kMaxSenders));
  }
  std::string text;
  size_t told = 0;
  for (const int rank : ranks) {
    const std::string trouble = told < kMaxNamed ? trouble_with(rank) : std::string();
    if (!trouble.empty()) ++told;
    if (of_many) {
      text += fmt::format("{} rank {}", text.empty() ? "; still waits for" : ",",
                          communicator.rank_of(rank));
      if (!trouble.empty()) text += fmt::format(" ({})", trouble);
    } else if (!trouble.empty()) {
      text += fmt::format("; rank {}: {}", rank, trouble);
    }
  }
  if (of_many && operation.composite != nullptr) text += operation.composite->remark();
  return text;
}

// The text of an operation that ends at its deadline names the ranks that it waited for. If an
// internal message ends for another reason, its text does not describe the message, because users
// know only the operation that it belongs to.
void OperationEnder::end(Operation& operation, Code code, std::string_view why) {
  std::string text = text_or_none([&]() HETCOMM_UNDER_BATON {
    if (operation.internal.handler != nullptr && code != Code::kTimedOut) return std::string(why);
    return fmt::format("{}: {}{}", describe(operation), why,
                       code == Code::kTimedOut ? awaited_text(operation) : "");
  });
  const bool is_collective = operation.kind == OperationKind::kCollective;
  const Code early =  // for an operation that has not begun
      code == Code::kTimedOut && is_collective ? operation.composite->code_at_deadline() : code;
  switch (operation.phase) {
    case OperationPhase::kCollected:
      // The operation's group has not started it. At the deadline of a redistribution, notifies the
      // ranks that wait for it. A collective operation does not count as called, so no rank is
      // notified.
      if (is_collective && code == Code::kTimedOut && !operation.composite->is_collective_call()) {
        operation.composite->withdraw(code, text);
      }
      operation.communicator->operation_begun();
      engine_.operation_started();
      completer_.complete(operation, early, std::move(text));
      break;
    case OperationPhase::kBehind:
      departures_.leave(operation);
      if (is_collective) operation.composite->withdraw(code, text);
      completer_.complete(operation, early, std::move(text));
      break;
    case OperationPhase::kPosted: {
      Channel& own = communicator_of(operation).channel();
      (operation.options.collective ? own.collective : own.point_to_point).remove(&operation);
      completer_.complete(operation, code, std::move(text));
      break;
    }
    case OperationPhase::kCollective:
      operation.composite->end(code, text);
      break;
    case OperationPhase::kSubmitted:
      completer_.complete(operation, code, std::move(text));
      break;
    case OperationPhase::kCopying:
      break;  // all data has arrived; the operation ends with the copy
    case OperationPhase::kQueued:
    case OperationPhase::kArriving:
    case OperationPhase::kTransfer:
    case OperationPhase::kAwaiting:
    case OperationPhase::kDirect:
    case OperationPhase::kUnopened:
      operation.carrier->end(operation, code, std::move(text));
      break;
  }
}

}  // namespace hetcomm
