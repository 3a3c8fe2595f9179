// Reads a peer's memory with process_vm_readv, which is the single-copy method for gets.
//
// Only the reader acts, so a process never writes another process's memory. Success depends on PID
// namespaces, ptrace rules and seccomp filters, so each connection tests it by reading back a
// nonce.
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

// Returns kOk if |expected| can be read at |address| of process |pid|. Otherwise the text states
// the reason.
Status prove_reading(pid_t pid, uint64_t address, const Nonce& expected);

// Starts a get by storing its initial state in Bulk::scratch.
void begin_read(Bulk& bulk);
// Reads up to |most| further bytes. Returns the number of bytes read, or a negative errno. Must be
// called only while bytes are left.
int64_t read_fragment(pid_t pid, const SourceKey& source, Bulk& bulk, uint64_t most);
// Returns the number of bytes of |bulk| that have not been read yet.
uint64_t left_to_read(const Bulk& bulk);

}  // namespace hetcomm::shm
