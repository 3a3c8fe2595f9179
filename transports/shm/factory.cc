#include "transports/shm/factory.h"

#include "src/system/membarrier.h"
#include "transports/shm/connection_memory.h"
#include "transports/shm/transport.h"

namespace hetcomm {
namespace {

class ShmFactory final : public TransportFactory {
 public:
  std::string_view name() const override { return "shm"; }

  Status probe(const Config&) const override {
    const Result<shm::ConnectionMemory> memory = shm::ConnectionMemory::create({});
    if (!memory.ok()) return memory.status();
    return Status(Code::kOk, register_global_membarrier() ? "sealed memfd, membarrier"
                                                          : "sealed memfd, no membarrier");
  }

  Result<std::unique_ptr<Transport>> create(
      const TransportEnvironment& environment) const override {
    Result<std::unique_ptr<shm::ShmTransport>> transport = shm::ShmTransport::create(environment);
    if (!transport.ok()) return transport.status();
    return std::unique_ptr<Transport>(std::move(transport).value());
  }
};

}  // namespace

std::unique_ptr<TransportFactory> make_shm_factory() { return std::make_unique<ShmFactory>(); }

}  // namespace hetcomm
