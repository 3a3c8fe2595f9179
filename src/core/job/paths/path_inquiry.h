// Ranks ask each other about data connections that are silent: does the peer not read, or is the
// path gone? Questions and answers go through the control planes, since the peer's threads may
// compute. Transports ask the questions and judge by the answers.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "src/liveness/setup.h"
#include "transports/transport.h"

namespace hetcomm {

struct PathAnswer {
  StreamId stream;
  PathReceipt receipt;
};

std::vector<std::byte> encode_question(const StreamId& stream);
// False: |bytes| are no answer.
bool decode_answer(ConstByteSpan bytes, PathAnswer* answer);

// Answers for the transports of one job. [any-thread]
class PathWitness final : public liveness::Witness {
 public:
  // |source| is asked until close().
  void add(const ReceiptSource& source);
  // On return no source is being asked, nor will be.
  void close();
  std::string testify(int from, ConstByteSpan question) override;

 private:
  std::mutex mutex_;
  std::vector<const ReceiptSource*> sources_;
};

}  // namespace hetcomm
