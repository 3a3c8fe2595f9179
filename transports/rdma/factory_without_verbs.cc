// Replaces the transport if the libibverbs headers were not found at build time.
#include <fmt/format.h>

#include "src/system/config.h"
#include "src/system/log.h"
#include "transports/rdma/factory.h"
#include "transports/variables.h"

namespace hetcomm {
namespace {

constexpr std::string_view kReason =
    "this build has no verbs: the headers of libibverbs were missing (package libibverbs-dev)";

class MissingFactory final : public TransportFactory {
 public:
  std::string_view name() const override { return "rdma"; }
  Status probe(const Config&) const override {
    return {Code::kUnsupported, fmt::format("rdma: {}", kReason)};
  }
  Result<std::unique_ptr<Transport>> create(
      const TransportEnvironment& environment) const override {
    return probe(environment.config);
  }
};

}  // namespace

void warn_of_unknown_rdma_devices(const Config& config, Log& log) {
  if (config.text(variable::kRdmaNic).empty()) return;
  log.warn_once(fmt::format("HETCOMM_RDMA_NIC has no effect: {}", kReason));
}

std::unique_ptr<TransportFactory> make_rdma_factory() { return std::make_unique<MissingFactory>(); }

}  // namespace hetcomm
