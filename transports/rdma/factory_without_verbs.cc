// Replaces the transport if the libibverbs headers were not found at build time.
#include "transports/rdma/factory.h"

namespace hetcomm {
namespace {

class MissingFactory final : public TransportFactory {
 public:
  std::string_view name() const override { return "rdma"; }
  Status probe(const Config&) const override {
    return {Code::kUnsupported,
            "rdma: this build has no verbs: the headers of libibverbs were missing "
            "(package libibverbs-dev)"};
  }
  Result<std::unique_ptr<Transport>> create(
      const TransportEnvironment& environment) const override {
    return probe(environment.config);
  }
};

}  // namespace

std::unique_ptr<TransportFactory> make_rdma_factory() { return std::make_unique<MissingFactory>(); }

}  // namespace hetcomm
