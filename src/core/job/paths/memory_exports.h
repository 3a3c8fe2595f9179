// Registered memories of a job: lets transports reach them, and says what other ranks need to know
// to use them. Under the baton.
#pragma once

#include <vector>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/job/membership/peer_directory.h"
#include "src/core/job/paths/job_transports.h"
#include "src/core/memory/chunk_pools.h"
#include "src/core/memory/registration.h"
#include "src/core/peer/pair_commons.h"
#include "src/net/credentials.h"

namespace hetcomm {

class MemoryExports final : public BlockPublisher {
 public:
  MemoryExports(PairCommons& commons, const JobTransports& transports, const PeerDirectory& peers,
                const Identity& identity)
      : commons_(commons), transports_(transports), peers_(peers), identity_(identity) {}
  MemoryExports(const MemoryExports&) = delete;
  MemoryExports& operator=(const MemoryExports&) = delete;

  // Gives |registration| its id, and lets the transports that can reach the memory do so.
  void publish(Registration& registration) HETCOMM_UNDER_BATON;
  // Does so for transports that could not when this was tried last. A rank that has imported the
  // memory before does not hear of it.
  void publish_again(Registration& registration) HETCOMM_UNDER_BATON;
  // Takes it back from the transports. True when no peer reaches it by a transport any more.
  bool withdraw(Registration& registration) HETCOMM_UNDER_BATON;
  // BlockPublisher
  Result<RemoteKey> publish_block(size_t transport, int reader,
                                  Region region) override HETCOMM_UNDER_BATON;
  bool withdraw_block(size_t transport, const RemoteKey& key) override HETCOMM_UNDER_BATON;
  ExportedMemory describe(const Registration& registration) const HETCOMM_UNDER_BATON;
  // Checks that |exported| is of this job, and puts its keys in the order of the owner's
  // transports.
  Status find_keys(const ExportedMemory& exported,
                   std::vector<RemoteKey>* keys) const HETCOMM_UNDER_BATON;

 private:
  void publish_missing(Registration& registration) HETCOMM_UNDER_BATON;

  PairCommons& commons_;
  const JobTransports& transports_;
  const PeerDirectory& peers_;
  const Identity& identity_;
};

}  // namespace hetcomm
