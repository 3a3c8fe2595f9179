// Bytes and descriptors over a local stream socket.
#pragma once

#include <span>
#include <vector>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/base/unique_fd.h"

namespace hetcomm::shm {

inline constexpr size_t kMaxPassed = 2;  // descriptors with one message

// Sends |bytes| with |descriptors|, all or nothing. kWouldBlock: no room.
Status send_with(int socket, ConstByteSpan bytes, std::span<const int> descriptors);

// Appends to |bytes| until they are |wanted|, and what descriptors come with them. kPending: the
// rest has yet to come.
Status receive_with(int socket, size_t wanted, std::vector<std::byte>& bytes,
                    std::vector<UniqueFd>& descriptors);

}  // namespace hetcomm::shm
