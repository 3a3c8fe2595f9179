// Keeps the reply to each rank's last exchange, so that the store can repeat it. If a connection
// breaks before the rank has read the reply, the rank sends its request again on another
// connection. A rank that sends a different request has read the reply.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "src/bootstrap/store_protocol.h"

namespace hetcomm {

class LastReplies {
 public:
  // |max_bytes| limits the total size of the replies. A reply shared by several ranks counts once.
  explicit LastReplies(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Replaces the reply kept for |rank| by |reply| to |request|. Keeps nothing if |reply| would
  // exceed the size limit.
  void keep(int32_t rank, std::vector<std::byte> request, const Frame& reply);
  // Returns the reply that |rank| got to |request|; null if it is not kept.
  Frame find(int32_t rank, const std::vector<std::byte>& request) const;
  void forget(int32_t rank);

 private:
  struct Reply {
    std::vector<std::byte> request;
    Frame frame;
  };
  const size_t max_bytes_;
  size_t bytes_ = 0;
  std::unordered_map<int32_t, Reply> replies_;  // the kept replies, by rank
  std::map<Frame, size_t> ranks_of_;            // by reply: the number of ranks that have it
};

}  // namespace hetcomm
