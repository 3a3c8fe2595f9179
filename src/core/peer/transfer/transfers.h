// Transfers holds pointers to the transfers that carry out an operation on this rank.
#pragma once

#include "src/core/progress/operation.h"

namespace hetcomm {

class ReceiveTransfer;
class SendTransfer;

struct Transfers {
  static constexpr auto kRoom = &Operation::Bodies::transfer;
  SendTransfer* send = nullptr;
  ReceiveTransfer* receive = nullptr;
};

inline Transfers& transfers_of(Operation& operation) { return body_of<Transfers>(operation); }
inline const Transfers& transfers_of(const Operation& operation) {
  return body_of<Transfers>(operation);
}

}  // namespace hetcomm
