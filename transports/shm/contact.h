// A Contact gives peers the name of a process's local socket, and the largest ring size that the
// process accepts. It also contains hints, which explain why the process cannot be reached.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/system/host_id.h"

namespace hetcomm::shm {

struct Contact {
  std::string socket;       // abstract name of the process's local socket
  uint64_t ring_bytes = 0;  // the largest ring that the process accepts
  HostId host{};
  uint64_t network_namespace = 0;  // inode; 0 if unknown

  static Contact of_this_process(std::string socket, uint64_t ring_bytes);
  std::vector<std::byte> encode() const;
  static Result<Contact> decode(ConstByteSpan bytes);
};

// Returns kOk if the process with contact |own| can reach |peer|'s socket. If the hints of both
// match, assumes so without trying. Otherwise tries to connect, and uses the hints to explain a
// failure.
Status try_reach(const Contact& own, const Contact& peer);

}  // namespace hetcomm::shm
