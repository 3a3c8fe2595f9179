// This rank's sides of the rendezvous that carry an operation.
#pragma once

#include "src/core/progress/operation.h"

namespace hetcomm {

class ReceiveTransfer;
class SendTransfer;

struct Transfers {
  SendTransfer* send = nullptr;
  ReceiveTransfer* receive = nullptr;
};

inline Transfers& transfers_of(Operation& operation) { return operation.transfer.as<Transfers>(); }
inline const Transfers& transfers_of(const Operation& operation) {
  return operation.transfer.as<Transfers>();
}

}  // namespace hetcomm
