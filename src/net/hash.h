// Computes digests for keys and proofs: SHA-256, HMAC-SHA256 and scrypt. Used only to set up
// connections, never per message.
#pragma once

#include <array>
#include <cstddef>

#include "src/base/span.h"
#include "src/base/status.h"

namespace hetcomm {

using Digest = std::array<std::byte, 32>;

Digest sha256(ConstByteSpan bytes);
Digest hmac_sha256(ConstByteSpan key, ConstByteSpan bytes);
// Returns a digest of |key| that takes some 16 MiB and 50 ms to compute (scrypt), for places where
// others can read it. Each guess at a weak key costs as much. Fails with OUT_OF_MEMORY if there
// is no room.
Result<Digest> slow_digest(ConstByteSpan key, ConstByteSpan salt);
// Overwrites a key that is no longer needed. The compiler does not optimise this away.
void wipe(ByteSpan bytes);
// Compares in a time independent of where the two differ. Returns false when the lengths differ.
bool equal_in_constant_time(ConstByteSpan a, ConstByteSpan b);

}  // namespace hetcomm
