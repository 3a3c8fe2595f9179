// A rank's place in its job, as its control plane has to know it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "src/base/bytes.h"
#include "src/net/address.h"
#include "src/net/credentials.h"

namespace hetcomm::liveness {

// Answers other ranks at once, whatever the threads of this one are doing.
class Witness {
 public:
  virtual ~Witness() = default;
  // What is known here of what |question|, by rank |from|, names; at most kMaxFrameText bytes.
  // Empty: nothing. [control thread]
  virtual std::string testify(int from, ConstByteSpan question) = 0;
};

struct Setup {
  int rank = 0;
  int size = 0;
  uint64_t detection_ns = 0;
  Credentials credentials;  // complete in start() only
  int doorbell = -1;        // an eventfd; rung when something is in the mailbox
  Address route{};          // of this host, leads to the other ranks; none where that is not known
  std::shared_ptr<Witness> witness{};  // null: questions are not answered
};

}  // namespace hetcomm::liveness
