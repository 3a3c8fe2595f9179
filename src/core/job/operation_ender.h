// Ends operations early, in any phase. Callers hold the baton.
#pragma once

#include <string>
#include <string_view>

#include "src/base/baton_role.h"
#include "src/core/job/departures.h"
#include "src/core/job/paths/pair_table.h"
#include "src/core/peer/pair_services.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

class OperationEnder {
 public:
  OperationEnder(Engine& engine, Completer& completer, PairTable& pairs, Departures& departures)
      : engine_(engine), completer_(completer), pairs_(pairs), departures_(departures) {}

  // Ends |operation|, which is pending. |why| follows the description of the operation in its error
  // text. If out of memory, ends |operation| without a text.
  void end(Operation& operation, Code code, std::string_view why) HETCOMM_UNDER_BATON;
  // Returns readable text about |operation|, which is pending: the ranks that it waits for, and
  // what the transports report about them. The text begins with "; ", or is empty.
  std::string awaited_text(const Operation& operation) HETCOMM_UNDER_BATON;
  // Ends an operation that could not be started for lack of memory, unless it has already ended.
  void end_out_of_memory(Operation& operation) HETCOMM_UNDER_BATON;

 private:
  std::string trouble_with(int rank) HETCOMM_UNDER_BATON;

  Engine& engine_;
  Completer& completer_;
  PairTable& pairs_;
  Departures& departures_;
};

}  // namespace hetcomm
