// Creates files in memory (memfd) that processes of one host can map and share.
//
// The limit on file sizes (RLIMIT_FSIZE, ulimit -f) applies to these files too. The kernel sends
// SIGXFSZ to a process that exceeds the limit, which kills it by default. The limit is therefore
// checked before a file grows.
#pragma once

#include <cstdint>

#include "src/base/status.h"
#include "src/system/unique_fd.h"

namespace hetcomm {

// Returns ok if a file of |size_bytes| is within the limit on file sizes. Otherwise returns
// OUT_OF_RESOURCES with a text that gives both sizes and names the limit. [any-thread]
Status check_file_size(uint64_t size_bytes);

// Creates a file of |size_bytes| that is closed on exec and can be sealed. /proc shows |name|.
// Fails if check_file_size(), memfd_create() or ftruncate() fails. Never raises a signal.
// [any-thread]
Result<UniqueFd> create_memory_file(const char* name, uint64_t size_bytes);

}  // namespace hetcomm
