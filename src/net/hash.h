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
// Returns a digest of |key| that takes about 16 MiB and 50 ms to compute (scrypt), for use where
// others can read the digest. Each guess at a weak key costs that much. Fails with OUT_OF_MEMORY if
// memory runs out.
Result<Digest> slow_digest(ConstByteSpan key, ConstByteSpan salt);
// Overwrites a key that is no longer needed. The compiler does not optimise this away.
void wipe(ByteSpan bytes);
// Compares in a time that does not depend on where the two differ. Returns false if the lengths
// differ.
bool equal_in_constant_time(ConstByteSpan a, ConstByteSpan b);

}  // namespace hetcomm
