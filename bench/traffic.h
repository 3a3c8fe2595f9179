// Determines the path of a measurement's bytes from the counters of the communicator.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <hetcomm/hetcomm.h>

#include "tools/common/session.h"

namespace bench {

// Counts the traffic of this rank with rank 0 (on rank 0: with rank 1) since mark().
class Traffic {
 public:
  // |session| and |communicator| must outlive this object.
  Traffic(const tools::Session& session, hetcomm_communicator_t* communicator)
      : session_(session), communicator_(communicator) {}

  void mark() { marked_ = counters(); }
  // Returns the path of most messages, such as "shm/eager". With |one_sided|, returns the path of
  // most operations on the peer's memory, such as "shm/direct".
  std::string path(bool one_sided) const;
  // Returns the average size in bytes of the chunks that this rank has staged, or 0 if there are
  // none.
  double staged_chunk_bytes() const;
  // Returns the number of one-sided operations since the creation of the communicator that needed
  // no help from the peer's process.
  uint64_t direct_operations() const;

 private:
  std::vector<hetcomm_counters_t> counters() const;
  hetcomm_counters_t since_marked(const hetcomm_counters_t& now) const;

  const tools::Session& session_;
  hetcomm_communicator_t* const communicator_;
  std::vector<hetcomm_counters_t> marked_;
};

}  // namespace bench
