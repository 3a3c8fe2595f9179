// Identifies the process and the user at the other end of a connected local socket.
#pragma once

#include <sys/types.h>

#include <string>

#include "src/base/status.h"

namespace hetcomm {

// Returns a name of the peer for messages: its address or, on a local socket, its process and user.
// Returns "unknown" if the kernel does not report them.
std::string peer_name(int fd);

// The process at the other end of a local socket, as recorded by the kernel when that process
// connected or listened.
struct LocalPeer {
  pid_t process = 0;  // 0: in another PID namespace
  uid_t user = 0;     // effective user id; all users unknown to this namespace have the same
};
Result<LocalPeer> local_peer(int fd);
// Returns kPermissionDenied, with process and user, if the other end of the local socket |fd|
// belongs to a different effective user than this process.
Status check_same_user(int fd);

}  // namespace hetcomm
