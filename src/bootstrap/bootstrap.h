// A bootstrap lets ranks find each other: it provides rank, size, secret, and an exchange of bytes.
// It is used only while a communicator is created, on the calling thread, and may block up to the
// deadline.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <hetcomm/bootstrap.h>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/bootstrap/rank_group.h"
#include "src/net/address.h"
#include "src/net/credentials.h"
#include "src/system/config.h"
#include "src/system/log.h"

namespace hetcomm {

class Relay;
class SurvivorFinder;

class Bootstrap {
 public:
  virtual ~Bootstrap() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Returns the local address of the connection to rank 0's store. The other ranks are reachable
  // through its network interface. The family is AF_UNSPEC if there is no such connection.
  virtual Address local_address() const = 0;
  // Returns whether all ranks are known to run on this host.
  virtual bool stays_on_host() const { return false; }
  // Sets the user's time limit, which later error texts name. It does not limit any call: each call
  // ends at its own deadline.
  virtual void set_time_limit(uint64_t limit_ns) = 0;
  // Returns the job's key: a digest of the configured secret, or, without one, the random key that
  // the job's store (or rank 0, through the exchange) handed out. If ranks have different secrets,
  // this call or the next allgather fails on all of them with kPermissionDenied.
  virtual Result<Secret> secret(uint64_t deadline_ns) = 0;
  // Returns the job's key without waiting if a secret is configured in this process. Returns
  // nothing otherwise.
  virtual std::optional<Secret> configured_key() const = 0;
  // Returns rank 0's |mine| on all ranks. Values from other ranks are ignored. |scope| has the same
  // meaning as for allgather(). Collective.
  virtual Result<std::vector<std::byte>> broadcast(const std::string& scope, ConstByteSpan mine,
                                                   uint64_t deadline_ns) = 0;
  // Gathers each rank's |mine| (at most 64 KiB), in rank order. |scope| names the exchange, for
  // example "world/epoch 0". Collective. If some ranks do not join by |deadline_ns|, fails with
  // kBootstrapFailed and names them.
  virtual Result<std::vector<std::vector<std::byte>>> allgather(const std::string& scope,
                                                                ConstByteSpan mine,
                                                                uint64_t deadline_ns) = 0;
  // Returns whether groups of ranks can exchange values. If not, as with an allgather callback,
  // allgather_among() and broadcast_among() fail with kUnsupported.
  virtual bool exchanges_by_groups() const = 0;
  // Gathers |mine| from the members of |group|, in rank order. This rank is a member. With step 1,
  // every rank belongs to exactly one of the groups that exchange values in |scope|. With a larger
  // step, only the members of |group| (the leaders) call this, and each of them has already
  // exchanged values with all ranks up to the next leader. The call fails if the members of |group|
  // have different secrets, so the exchanges of all groups and of the leaders together reveal any
  // disagreement.
  virtual Result<std::vector<std::vector<std::byte>>> allgather_among(const std::string& scope,
                                                                      const RankGroup& group,
                                                                      ConstByteSpan mine,
                                                                      uint64_t deadline_ns) = 0;
  // Returns the value of the first member of |group| to all its members.
  virtual Result<std::vector<std::byte>> broadcast_among(const std::string& scope,
                                                         const RankGroup& group, ConstByteSpan mine,
                                                         uint64_t deadline_ns) = 0;
  // Returns this rank's relay. In a large job it passes values on to other ranks
  // (digest_exchange.h).
  virtual Relay& relay() = 0;
  // Returns the object that finds the surviving ranks after a loss. Returns null for a bootstrap
  // from callbacks: its caller has to create a new bootstrap from the surviving ranks.
  virtual SurvivorFinder* survivor_finder() = 0;
};

// Determines which ranks of a bootstrap have survived after some were lost.
class SurvivorFinder {
 public:
  // Returns for each rank of the bootstrap whether it is now known to be lost.
  using FindLost = std::function<std::vector<bool>()>;

  // Returns a bootstrap of the surviving ranks, in their old order. All of them call this. The
  // result is ready once every rank has either called or been reported lost by a rank that called.
  // |find_lost| is called repeatedly, on this thread. |scope| has the same meaning as for
  // allgather(). The current bootstrap remains unchanged. Fails with kBootstrapFailed on all ranks
  // if a rank has neither called nor been lost by |deadline_ns|, and immediately if rank 0 is lost.
  virtual Result<std::unique_ptr<Bootstrap>> survivors(const std::string& scope,
                                                       const FindLost& find_lost,
                                                       uint64_t deadline_ns) = 0;

 protected:
  ~SurvivorFinder() = default;
};

// Creates a bootstrap from RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, or another launcher's
// variables (launch.h), and the TCP store (store.h).
Result<std::unique_ptr<Bootstrap>> bootstrap_from_environment(const Config& config, Log& log);
// Creates a bootstrap from the caller's put/get and/or allgather.
Result<std::unique_ptr<Bootstrap>> bootstrap_from_callbacks(
    const Config& config, Log& log, const hetcomm_bootstrap_options_t& options);

}  // namespace hetcomm
