// Finds the path of a measurement's bytes by the counters of the communicator.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <hetcomm/hetcomm.h>

#include "tools/common/session.h"

namespace bench {

// Counts what this rank has exchanged with rank 0 (on rank 0: with rank 1) since mark().
class Traffic {
 public:
  // |session| and |communicator| must outlive this object.
  Traffic(const tools::Session& session, hetcomm_communicator_t* communicator)
      : session_(session), communicator_(communicator) {}

  void mark() { marked_ = counters(); }
  // Returns the path of most messages, such as "shm/eager". With |one_sided|, returns that of most
  // operations on the peer's memory, such as "shm/direct".
  std::string path(bool one_sided) const;
  // Returns the average bytes of the chunks that this rank has staged, or 0 if there are none.
  double staged_chunk_bytes() const;
  // Returns how many one-sided operations needed no help of the peer's process since the
  // communicator was created.
  uint64_t direct_operations() const;

 private:
  std::vector<hetcomm_counters_t> counters() const;
  hetcomm_counters_t since_marked(const hetcomm_counters_t& now) const;

  const tools::Session& session_;
  hetcomm_communicator_t* const communicator_;
  std::vector<hetcomm_counters_t> marked_;
};

}  // namespace bench
