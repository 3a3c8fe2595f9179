// Answers questions about the links between the ranks of a communicator, and about the devices at
// their ends. Ranks are those of the communicator. [any-thread]
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/status.h"
#include "src/core/job/job.h"
#include "src/core/job/paths/pairing_report.h"
#include "src/core/progress/communicator_base.h"
#include "topology/links/link_model.h"

namespace hetcomm {

class Context;

class LinkQueries {
 public:
  // All arguments outlive this object.
  LinkQueries(Context& context, const CommunicatorBase& communicator, Job& job)
      : context_(context), communicator_(communicator), job_(job) {}
  LinkQueries(const LinkQueries&) = delete;
  LinkQueries& operator=(const LinkQueries&) = delete;

  // Returns every pairing of this rank's network interfaces with those of |rank|, and how |device|
  // of the context uses them. Fails if the machine cannot be read.
  Result<PairingReport> pairing_report(int32_t rank, size_t device);
  // Returns the job's model of the links between hosts, which never changes; null if there is none.
  const topology::LinkModel* model();
  // Returns the reason why there is no link model.
  Status model_status();
  // Returns the route between devices of two ranks according to the link model, which must exist.
  topology::Route route(const RankDevice& from, const RankDevice& to);
  // Returns one end of a route according to the link model, which must exist. The names live as
  // long as the job.
  topology::LinkEnd end_of(const RankDevice& device);
  // Returns, by rank, whether the rank has the same host and the same declared cluster as this one.
  std::vector<bool> near_ranks();
  // Returns the number of devices in the rank's context.
  size_t device_count(int32_t rank);

 private:
  int in_job(int32_t rank) const { return communicator_.ranks()[static_cast<size_t>(rank)]; }

  Context& context_;
  const CommunicatorBase& communicator_;
  Job& job_;
};

}  // namespace hetcomm
