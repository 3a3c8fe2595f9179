#include "transports/rdma/factory.h"

#include <fmt/core.h>

#include "transports/rdma/nic.h"
#include "transports/rdma/transport.h"
#include "transports/rdma/verbs.h"
#include "transports/variables.h"

namespace hetcomm {
namespace rdma {
namespace {

class RdmaFactory final : public TransportFactory {
 public:
  // If |verbs| or |cm| is null, the installed library is loaded on demand.
  explicit RdmaFactory(const Verbs* verbs, const Cm* cm) : verbs_(verbs), cm_(cm) {}

  std::string_view name() const override { return "rdma"; }

  Status probe(const Config& config) const override {
    const Result<const Verbs*> verbs = table();
    if (!verbs.ok()) return verbs.status();
    if (by_cm(config) && cm_ == nullptr) HETCOMM_RETURN_IF_ERROR(ConnectionManager::probe());
    Result<OpenNic> nic = open_nic(*verbs.value(), config);
    if (!nic.ok()) return nic.status();
    return {Code::kOk, nic->others.empty()
                           ? nic->nic.describe()
                           : fmt::format("{} (not used: {})", nic->nic.describe(), nic->others)};
  }

  Status check_nic(const Config& config, const BoundNic& nic) const override {
    // If HETCOMM_RDMA_NIC is set, it selects the ports and their order, and no RDMA transport is
    // bound to an interface.
    const bool may_use =
        !nic.rdma_port.empty() && config.text(variable::kRdmaNic).empty() && table().ok();
    return may_use ? Status() : Status(Code::kUnsupported, "");
  }

  size_t instances(const Config& config) const override {
    const Result<const Verbs*> verbs = table();
    const auto most = static_cast<size_t>(config.number(variable::kRails));
    return verbs.ok() ? count_nics(*verbs.value(), config, most) : 0;
  }

  Result<std::unique_ptr<Transport>> create(
      const TransportEnvironment& environment) const override {
    const Result<const Verbs*> verbs = table();
    if (!verbs.ok()) return verbs.status();
    Result<std::unique_ptr<RdmaTransport>> transport =
        RdmaTransport::create(*verbs.value(), cm_, environment);
    if (!transport.ok()) return transport.status();
    return std::unique_ptr<Transport>(std::move(transport).value());
  }

 private:
  Result<const Verbs*> table() const {
    if (verbs_ != nullptr) return verbs_;
    return load_verbs();
  }

  const Verbs* verbs_;
  const Cm* cm_;
};

}  // namespace

std::unique_ptr<TransportFactory> make_factory(const Verbs& verbs, const Cm* cm) {
  return std::make_unique<RdmaFactory>(&verbs, cm);
}

}  // namespace rdma

void warn_of_unknown_rdma_devices(const Config& config, Log& log) {
  if (config.text(variable::kRdmaNic).empty()) return;
  if (Result<const rdma::Verbs*> verbs = rdma::load_verbs(); verbs.ok()) {
    rdma::warn_of_unknown_devices(*verbs.value(), config, log);
  } else {
    log.warn_once(fmt::format("HETCOMM_RDMA_NIC has no effect: {}", verbs.status().text()));
  }
}

std::unique_ptr<TransportFactory> make_rdma_factory() {
  return std::make_unique<rdma::RdmaFactory>(nullptr, nullptr);
}

}  // namespace hetcomm
