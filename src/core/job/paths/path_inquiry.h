// When a data connection is silent, a rank asks its peer whether the peer does not read, or the
// path is broken. Questions and answers go over the control plane, since the peer's threads may be
// busy computing. Transports ask the questions and evaluate the answers.
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
// Decodes |bytes|. Returns false if they are not an answer.
bool decode_answer(ConstByteSpan bytes, PathAnswer* answer);

// Answers questions for the transports of one job. [any-thread]
class PathWitness final : public liveness::Witness {
 public:
  // Adds |source|, which is queried until close().
  void add(const ReceiptSource& source);
  // Removes all sources. On return no source is being queried, and none will be.
  void close();
  std::string testify(int from, ConstByteSpan question) override;

 private:
  std::mutex mutex_;
  std::vector<const ReceiptSource*> sources_;
};

}  // namespace hetcomm
