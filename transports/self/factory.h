// The entry point of this folder.
#pragma once

#include <memory>

#include "transports/transport.h"

namespace hetcomm {

std::unique_ptr<TransportFactory> make_self_factory();

}  // namespace hetcomm
