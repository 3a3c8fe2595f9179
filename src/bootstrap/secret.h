// The job secret as the user configured it.
#pragma once

#include <optional>

#include "src/base/config.h"
#include "src/base/log.h"
#include "src/base/status.h"
#include "src/net/credentials.h"

namespace hetcomm {

// Key of HETCOMM_SECRET, else of the contents of HETCOMM_SECRET_FILE without line ends behind them;
// nothing when neither is set. Refuses a file that everybody can write and warns of one that
// everybody can read.
Result<std::optional<Secret>> configured_secret(const Config& config, Log& log);

Result<Secret> random_secret();

}  // namespace hetcomm
