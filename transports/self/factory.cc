#include "transports/self/factory.h"

#include "transports/self/transport.h"

namespace hetcomm {
namespace {

class SelfFactory final : public TransportFactory {
 public:
  std::string_view name() const override { return "self"; }
  Status probe(const Config&) const override { return {Code::kOk, "a rank's messages to itself"}; }
  Result<std::unique_ptr<Transport>> create(
      const TransportEnvironment& environment) const override {
    return std::unique_ptr<Transport>(std::make_unique<self::SelfTransport>(environment));
  }
};

}  // namespace

std::unique_ptr<TransportFactory> make_self_factory() { return std::make_unique<SelfFactory>(); }

}  // namespace hetcomm
