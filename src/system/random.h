// Gets random bytes from the kernel, for nonces and keys.
#pragma once

#include "src/base/span.h"
#include "src/base/status.h"

namespace hetcomm {

// Fills |bytes| with random bytes. Fails only if getrandom() fails.
Status fill_random(ByteSpan bytes);

}  // namespace hetcomm
