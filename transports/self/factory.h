// Creates this folder's factory for the list of transports in src/capi/context.cc.
#pragma once

#include <memory>

#include "transports/transport.h"

namespace hetcomm {

std::unique_ptr<TransportFactory> make_self_factory();

}  // namespace hetcomm
