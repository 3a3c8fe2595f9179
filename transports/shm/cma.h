// Reading a peer's memory by process_vm_readv: the single-copy way of a get.
//
// Only the reader acts, so a process never writes another's memory. Whether it works depends on
// PID namespaces, ptrace rules and seccomp filters, so it is proved for each connection by reading
// back a nonce.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "src/base/status.h"
#include "src/system/config.h"
#include "transports/shm/exposure.h"
#include "transports/transport.h"

namespace hetcomm::shm {

using Nonce = std::array<std::byte, 16>;

// kOk if |expected| can be read at |address| of process |pid|. The text says why not.
Status prove_reading(pid_t pid, uint64_t address, const Nonce& expected);

// Sets up the state of a get, which lives in Bulk::scratch.
void begin_read(Bulk& bulk);
// Reads at most |most| bytes more. Returns the bytes read, or a negative errno. Call while bytes
// are left.
int64_t read_fragment(pid_t pid, const SourceKey& source, Bulk& bulk, uint64_t most);
// Bytes of |bulk| not read yet.
uint64_t left_to_read(const Bulk& bulk);

}  // namespace hetcomm::shm
