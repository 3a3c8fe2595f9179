#include "src/core/communicator/link_queries.h"

#include "src/core/context/context.h"
#include "src/core/progress/engine.h"
#include "transports/variables.h"

namespace hetcomm {

Result<PairingReport> LinkQueries::pairing_report(int32_t rank, size_t device) {
  Result<const topology::HostView*> view = context_.topology().view();
  if (!view.ok()) return view.status();
  const Device& owner = context_.devices().device(device);
  PairingReport report{.rank = communicator_.rank_of(job_.rank()),
                       .peer = rank,
                       .device = static_cast<int32_t>(device),
                       .device_name = name_of(owner),
                       .most_rails = context_.config().number(variable::kRails),
                       .pairings = {},
                       .machine = view.value()->machine,
                       .order = context_.nic_order(*view.value(), owner),
                       .left_nics = {},
                       .refusals = {}};
  const Engine::Baton baton(job_.engine());
  report.refusals = job_.transports().refusals();
  report.pairings = job_.paths().pairings(in_job(rank), device);
  for (const auto& each : job_.transports().all()) {
    if (job_.leaves_to_others(device, *each)) report.left_nics.push_back(each->nic);
  }
  return report;
}

const topology::LinkModel* LinkQueries::model() {
  const Engine::Baton baton(job_.engine());
  return job_.peers().link_model();
}

Status LinkQueries::model_status() {
  const Engine::Baton baton(job_.engine());
  return job_.peers().link_model_status();
}

topology::LinkEnd LinkQueries::end_of(const RankDevice& device) {
  const Engine::Baton baton(job_.engine());
  return job_.peers().link_end({in_job(device.rank), device.device});
}

std::vector<bool> LinkQueries::near_ranks() {
  const Engine::Baton baton(job_.engine());
  std::vector<bool> near;
  for (const int rank : communicator_.ranks()) {
    near.push_back(job_.peers().are_near(rank, job_.rank()));
  }
  return near;
}

topology::Route LinkQueries::route(const RankDevice& from, const RankDevice& to) {
  const Engine::Baton baton(job_.engine());
  return job_.peers().route({in_job(from.rank), from.device}, {in_job(to.rank), to.device});
}

size_t LinkQueries::device_count(int32_t rank) {
  const Engine::Baton baton(job_.engine());
  return job_.peers().device_count(in_job(rank));
}

}  // namespace hetcomm
