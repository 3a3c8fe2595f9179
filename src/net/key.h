// Turns the user's input (a secret of any length, names) into the fixed-size keys and ids that
// connections carry. The same input gives the same output on every rank.
#pragma once

#include <cstdint>
#include <string_view>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/net/credentials.h"

namespace hetcomm {

// Returns the key of a user's secret: SHA-256 under its own label.
Secret secret_from(ConstByteSpan user_secret);
Result<Secret> random_secret();
// Returns the key that ranks of job |name| prove. Ranks of another job that has the same |secret|
// cannot prove it.
Secret secret_of_job(const Secret& secret, std::string_view name);

// Returns the identity of communicator |communicator_name| of job |job_name| in generation |epoch|.
Identity identity_of(std::string_view job_name, std::string_view communicator_name, uint32_t epoch);

}  // namespace hetcomm
