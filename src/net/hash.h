// SHA-256 and HMAC-SHA256, for keys and proofs. Setting up connections only, never per message.
#pragma once

#include <array>
#include <cstddef>

#include "src/base/span.h"

namespace hetcomm {

using Digest = std::array<std::byte, 32>;

Digest sha256(ConstByteSpan bytes);
Digest hmac_sha256(ConstByteSpan key, ConstByteSpan bytes);
// Takes the same time wherever the two differ. False when the lengths differ.
bool equal_in_constant_time(ConstByteSpan a, ConstByteSpan b);

}  // namespace hetcomm
