// Turns the user's input (a secret of any length, names) into the fixed-size keys and ids that
// connections carry. The same input gives the same output on every rank.
#pragma once

#include <cstdint>
#include <string_view>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/net/credentials.h"

namespace hetcomm {

// Returns the key made from a user's secret: the SHA-256 digest of a label and the secret.
Secret secret_from(ConstByteSpan user_secret);
Result<Secret> random_secret();
// Returns the key that the ranks of job |name| prove. It differs from the key of another job with
// the same |secret|.
Secret secret_of_job(const Secret& secret, std::string_view name);

// Returns the identity of communicator |communicator_name| of job |job_name| in generation |epoch|.
Identity identity_of(std::string_view job_name, std::string_view communicator_name, uint32_t epoch);

}  // namespace hetcomm
