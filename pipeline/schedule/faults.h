// Makes the errors for invalid arguments.
#pragma once

#include <string>
#include <utility>

#include "src/base/status.h"

namespace hetcomm::pipeline {

inline Status invalid(std::string text) { return Status(Code::kInvalidArgument, std::move(text)); }

}  // namespace hetcomm::pipeline
