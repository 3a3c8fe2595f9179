// The entry point of this folder for core's registry of transports.
#pragma once

#include <memory>

#include "transports/transport.h"

namespace hetcomm {

std::unique_ptr<TransportFactory> make_self_factory();

}  // namespace hetcomm
