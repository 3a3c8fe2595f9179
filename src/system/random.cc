#include "src/system/random.h"

#include <sys/random.h>

#include <cerrno>

namespace hetcomm {

Status fill_random(ByteSpan bytes) {
  while (!bytes.empty()) {
    const ssize_t got = getrandom(bytes.data(), bytes.size(), 0);
    if (got < 0) {
      if (errno == EINTR) continue;
      return status_from_errno(errno, "getrandom");
    }
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
  return {};
}

}  // namespace hetcomm
