// A rank's relay is a small store in its own process, through which the rank passes values from the
// previous rank on to the next one (relay_chain.h). Only the rank itself puts values there. Other
// ranks can get them.
//
// The relay starts with the first exchange of a large job and ends with the bootstrap. It keeps a
// value as long as a rank of the exchange may still request it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/base/bytes.h"
#include "src/base/span.h"
#include "src/base/status.h"
#include "src/bootstrap/store.h"
#include "src/net/address.h"
#include "src/net/credentials.h"
#include "src/net/listening_host.h"
#include "src/system/clock.h"
#include "src/system/config.h"
#include "src/system/log.h"

namespace hetcomm {

// The addresses of a rank's relay, and a random number that distinguishes the relay from another
// process at these addresses.
struct RelayContact {
  ListeningHost host;  // no addresses: the rank has no relay
  std::array<std::byte, 16> instance{};

  bool exists() const { return !host.addresses.empty(); }
  void encode(ByteWriter& writer) const;
  // Fails if the input, which may be hostile, is not a contact.
  static Result<RelayContact> decode(ByteReader& reader);
};

// Runs the relay of this rank. Only one thread at a time may use it.
class Relay {
 public:
  // Copies |config|. |log| must outlive the relay.
  Relay(const Config& config, Log& log);
  // Waits for the ranks that expect_readers() has announced, for up to one second.
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // Returns the largest number of ranks of a small job, which uses no relays (HETCOMM_SMALL_JOB).
  int small_job() const;
  // Starts listening as |rank|. Only the first call has an effect. |route| is as in
  // choose_interfaces(). If the rank cannot listen, it logs the reason and has no relay.
  void start(const Secret& secret, int rank, const Address& route);
  const RelayContact& contact() const { return contact_; }

  // Serves |value| to other ranks until |until_ns|. The first call of keep() after that time drops
  // it.
  void keep(std::string key, std::vector<std::byte> value, uint64_t until_ns);
  // Announces that |count| ranks will request |key|, and that this is the last value they need.
  void expect_readers(std::string key, size_t count);
  // Returns a client for the relay of |rank| at |contact|. Fails if |rank| has no relay that this
  // rank can reach.
  Result<std::unique_ptr<StoreClient>> client_of(int rank, const RelayContact& contact) const;
  // Returns the number of bytes sent to other ranks.
  uint64_t sent_bytes() const { return server_ ? server_->sent_bytes() : 0; }
  // Returns the reason for which this relay last dropped another rank's connection, or OK if it has
  // dropped none.
  Status last_rejection() const { return server_ ? server_->last_rejection() : Status(); }

 private:
  Status try_start(const Address& route);
  void forget_old(uint64_t now);

  const Config config_;
  Log& log_;
  bool started_ = false;
  int rank_ = 0;
  Secret secret_;
  std::shared_ptr<const TlsContext> tls_;
  RelayContact contact_;
  std::map<std::string, uint64_t> kept_;  // by key: when its value can be dropped
  uint64_t next_expiry_ns_ = kForever;
  std::unique_ptr<StoreServer> server_;
};

}  // namespace hetcomm
