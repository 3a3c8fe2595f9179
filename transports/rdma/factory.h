// The way in: what core's registry of transports gets from this folder.
#pragma once

#include <memory>

#include "transports/transport.h"

namespace hetcomm {

std::unique_ptr<TransportFactory> make_rdma_factory();

namespace rdma {

struct Verbs;

// Over another table than that of libibverbs, which stays for as long as the factory and what it
// made.
std::unique_ptr<TransportFactory> make_factory(const Verbs& verbs);

}  // namespace rdma
}  // namespace hetcomm
