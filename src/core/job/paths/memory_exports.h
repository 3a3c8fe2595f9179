// Makes the registered memories of a job accessible to its transports, and provides the information
// that other ranks need to use them. Callers hold the baton.
#pragma once

#include <vector>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/job/membership/peer_directory.h"
#include "src/core/job/paths/job_transports.h"
#include "src/core/memory/chunk_pools.h"
#include "src/core/memory/registration.h"
#include "src/core/peer/pair_services.h"
#include "src/net/credentials.h"

namespace hetcomm {

class MemoryExports final : public BlockPublisher {
 public:
  MemoryExports(DataServices& data, SlotTable<Registration>& registrations, Log& log, int rank,
                const JobTransports& transports, const PeerDirectory& peers,
                const Identity& identity)
      : data_(data),
        registrations_(registrations),
        log_(log),
        rank_(rank),
        transports_(transports),
        peers_(peers),
        identity_(identity) {}
  MemoryExports(const MemoryExports&) = delete;
  MemoryExports& operator=(const MemoryExports&) = delete;

  // Gives |registration| its id, and registers it with the transports that can reach the memory.
  void publish(Registration& registration) HETCOMM_UNDER_BATON;
  // Registers the memory with transports for which this has failed before. Ranks that have already
  // imported the memory do not use these transports for it.
  void publish_again(Registration& registration) HETCOMM_UNDER_BATON;
  // Withdraws the registration from the transports. Returns whether it has been withdrawn from all
  // of them, so no peer can access the memory directly.
  bool withdraw(Registration& registration) HETCOMM_UNDER_BATON;
  // BlockPublisher
  Result<RemoteKey> publish_block(size_t transport, int reader,
                                  Region region) override HETCOMM_UNDER_BATON;
  bool withdraw_block(size_t transport, const RemoteKey& key) override HETCOMM_UNDER_BATON;
  ExportedMemory describe(const Registration& registration) const HETCOMM_UNDER_BATON;
  // Checks that |exported| belongs to this job, and returns its keys in the order of the owner's
  // transports.
  Status find_keys(const ExportedMemory& exported,
                   std::vector<RemoteKey>* keys) const HETCOMM_UNDER_BATON;

 private:
  void publish_missing(Registration& registration) HETCOMM_UNDER_BATON;

  DataServices& data_;
  SlotTable<Registration>& registrations_;
  Log& log_;
  const int rank_;  // rank of this process in the job
  const JobTransports& transports_;
  const PeerDirectory& peers_;
  const Identity& identity_;
};

}  // namespace hetcomm
