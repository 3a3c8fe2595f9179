// Declares the factory of the RDMA transport, which src/capi/context.cc adds to its list.
#pragma once

#include <memory>

#include "transports/transport.h"

namespace hetcomm {

std::unique_ptr<TransportFactory> make_rdma_factory();

namespace rdma {

struct Verbs;
struct Cm;

// Creates a factory that uses |verbs| and |cm| instead of the installed libraries. If |cm| is null,
// it uses the installed librdmacm. The tables outlive the factory and its transports.
std::unique_ptr<TransportFactory> make_factory(const Verbs& verbs, const Cm* cm = nullptr);

}  // namespace rdma
// Logs one warning for every name in HETCOMM_RDMA_NIC that is not a device of this host. Without
// libibverbs, logs that the variable has no effect.
void warn_of_unknown_rdma_devices(const Config& config, Log& log);

}  // namespace hetcomm
