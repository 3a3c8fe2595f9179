#include "transports/self/transport.h"

#include <algorithm>

namespace hetcomm::self {

SelfTransport::SelfTransport(const TransportEnvironment& environment) : environment_(environment) {
  capabilities_.put = true;
  capabilities_.get = true;
  capabilities_.target_sees_put = true;
  capabilities_.lossless = true;
  capabilities_.protected_in_transit = true;
  capabilities_.max_payload_bytes = 32 << 10;
  capabilities_.eager_limit_bytes = 4 << 10;
  capabilities_.chunk_bytes = 4 << 20;
  capabilities_.latency_ns = 50;
  capabilities_.bandwidth_bytes_per_s = 30'000'000'000;
}

void SelfTransport::connect(const Destination& destination, ConstByteSpan) {
  connecting_.push_back(destination);
}

void SelfTransport::cancel_connect(const Destination& destination) {
  std::erase(connecting_, destination);
}

int SelfTransport::progress() {
  int done = 0;
  while (!connecting_.empty()) {
    const Destination destination = connecting_.front();
    connecting_.erase(connecting_.begin());
    ++done;
    if (destination.rank == environment_.rank) {
      environment_.handler.on_connected(
          destination, std::unique_ptr<Endpoint>(std::make_unique<SelfEndpoint>(*this)));
    } else {
      environment_.handler.on_connected(
          destination, Status(Code::kNotFound, "self: connects a rank to itself only"));
    }
  }
  if (has_gaps_) {
    std::erase(endpoints_, nullptr);
    has_gaps_ = false;
  }
  // Iterates by index, since upcalls can add and remove endpoints.
  // NOLINTNEXTLINE(modernize-loop-convert)
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    if (endpoints_[i] != nullptr && endpoints_[i]->has_work()) done += endpoints_[i]->progress();
  }
  return done;
}

bool SelfTransport::prepare_sleep(Sleep) { return may_sleep_on(); }

bool SelfTransport::may_sleep_on() const {
  return connecting_.empty() &&
         std::none_of(endpoints_.begin(), endpoints_.end(), [](const SelfEndpoint* endpoint) {
           return endpoint != nullptr && endpoint->has_work();
         });
}

void SelfTransport::remove(SelfEndpoint& endpoint) {
  const auto at = std::find(endpoints_.begin(), endpoints_.end(), &endpoint);
  if (at == endpoints_.end()) return;
  *at = nullptr;
  has_gaps_ = true;
}

}  // namespace hetcomm::self
