// Makes the errors that functions of this folder return for bad arguments.
#pragma once

#include <string>
#include <utility>

#include "src/base/status.h"

namespace hetcomm::reshard {

inline Status invalid(std::string text) { return Status(Code::kInvalidArgument, std::move(text)); }
inline Status unsupported(std::string text) { return Status(Code::kUnsupported, std::move(text)); }

}  // namespace hetcomm::reshard
