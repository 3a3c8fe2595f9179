// The way in: what core's registry of transports gets from this folder.
#pragma once

#include <memory>

#include "transports/transport.h"

namespace hetcomm {

std::unique_ptr<TransportFactory> make_tcp_factory();

}  // namespace hetcomm
