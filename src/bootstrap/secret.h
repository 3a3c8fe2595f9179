// Reads the job secret that the user has configured, and decides whether a job may have none.
#pragma once

#include <cstdint>
#include <optional>

#include "src/base/status.h"
#include "src/net/credentials.h"
#include "src/system/config.h"
#include "src/system/log.h"

namespace hetcomm {

// Returns the key of HETCOMM_SECRET, else of the contents of HETCOMM_SECRET_FILE without trailing
// line ends, or nothing if neither is set. Refuses a file that belongs to another user (root apart)
// or that its group or everybody can write, and warns of a file that everybody can read.
Result<std::optional<Secret>> configured_secret(const Config& config, Log& log);

// The channel through which rank 0 gives the random key of a job without a secret to the others.
enum class KeyChannel : uint8_t {
  kStore,     // the library's own store, protected by TLS where that is on
  kCallbacks  // the caller's functions, whose channel the library cannot protect
};
// Returns OK if a job of |size| ranks may continue without a configured secret. Fails with
// PERMISSION_DENIED if HETCOMM_REQUIRE_SECRET or HETCOMM_REQUIRE_TLS forbids it. Rank 0 warns of
// the missing secret once per process, unless TLS protects the key.
Status allow_without_secret(const Config& config, Log& log, int rank, int size, KeyChannel channel);

}  // namespace hetcomm
