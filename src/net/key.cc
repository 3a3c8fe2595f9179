#include "src/net/key.h"

#include <algorithm>

#include "src/base/bytes.h"
#include "src/net/hash.h"

namespace hetcomm {

Secret secret_from(ConstByteSpan user_secret) {
  ByteWriter writer;
  writer.write_string("hetcomm secret 1");
  writer.write_bytes(user_secret);
  return sha256(writer.bytes());
}

Identity identity_of(std::string_view job_name, std::string_view communicator_name,
                     uint32_t epoch) {
  ByteWriter writer;
  writer.write_string("hetcomm identity 1");
  writer.write_string(job_name);
  writer.write_string(communicator_name);
  const Digest digest = sha256(writer.bytes());
  Identity identity;
  std::copy_n(digest.begin(), identity.job.size(), identity.job.begin());
  identity.epoch = epoch;
  return identity;
}

}  // namespace hetcomm
