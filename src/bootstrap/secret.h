// Reads the job secret that the user has configured, and decides whether a job may run without one.
#pragma once

#include <cstdint>
#include <optional>

#include "src/base/status.h"
#include "src/net/credentials.h"
#include "src/system/config.h"
#include "src/system/log.h"

namespace hetcomm {

// Returns the key made from HETCOMM_SECRET, or else from the contents of HETCOMM_SECRET_FILE
// without trailing newlines. Returns nothing if neither is set. Rejects a file that belongs to
// another user (except root), or that its group or everybody can write. Warns about a file that
// everybody can read.
Result<std::optional<Secret>> configured_secret(const Config& config, Log& log);

// The channel through which rank 0 sends the random key of a job without a secret to the others.
enum class KeyChannel : uint8_t {
  kStore,     // the library's own store, protected by TLS if that is on
  kCallbacks  // the caller's functions, whose channel the library cannot protect
};
// Returns OK if a job of |size| ranks may continue without a configured secret. Fails with
// PERMISSION_DENIED if HETCOMM_REQUIRE_SECRET or HETCOMM_REQUIRE_TLS forbids it. Rank 0 warns about
// the missing secret once per process, unless TLS protects the key.
Status allow_without_secret(const Config& config, Log& log, int rank, int size, KeyChannel channel);

}  // namespace hetcomm
