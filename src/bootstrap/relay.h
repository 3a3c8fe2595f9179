// A rank's relay is a small store in its own process. Through the relay the rank passes values from
// the previous rank on to the next one (relay_chain.h). Only this rank puts values there; others
// can get them.
//
// The relay starts with the first exchange of a large job and ends with the bootstrap. It keeps a
// value as long as a rank of the exchange may wait for the value.
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

// The addresses of a rank's relay, and a random number that distinguishes it from another process
// there.
struct RelayContact {
  ListeningHost host;  // no addresses: the rank has no relay
  std::array<std::byte, 16> instance{};

  bool exists() const { return !host.addresses.empty(); }
  void encode(ByteWriter& writer) const;
  // Fails if the input, which may be hostile, is not a contact.
  static Result<RelayContact> decode(ByteReader& reader);
};

// Relay runs the relay of this rank. One thread uses it at a time.
class Relay {
 public:
  // Copies |config|. |log| must outlive the relay.
  Relay(const Config& config, Log& log);
  // Waits for the ranks that expect_readers() has announced, for up to one second.
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // Returns the size of the largest job that is small, which means that it uses no relays
  // (HETCOMM_SMALL_JOB).
  int small_job() const;
  // Starts listening as |rank|. Only the first call has an effect. |route| is as in
  // NetworkListener. A rank that cannot listen logs the reason and has no relay.
  void start(const Secret& secret, int rank, const Address& route);
  const RelayContact& contact() const { return contact_; }

  // Serves |value| to others until |until_ns|. The first call of keep() after that time drops it.
  void keep(std::string key, std::vector<std::byte> value, uint64_t until_ns);
  // Announces that |count| ranks will ask for |key|, and that this is the last value that they
  // need.
  void expect_readers(std::string key, size_t count);
  // Returns a client for the relay of |rank| at |contact|. Fails if |rank| has no relay that this
  // rank can reach.
  Result<std::unique_ptr<StoreClient>> client_of(int rank, const RelayContact& contact) const;
  // Returns the number of bytes sent to others.
  uint64_t sent_bytes() const { return server_ ? server_->sent_bytes() : 0; }
  // Returns why this relay last dropped another rank's connection; OK if it has dropped none.
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
  std::map<std::string, uint64_t> kept_;  // by key: when its value may be dropped
  uint64_t next_expiry_ns_ = kForever;
  std::unique_ptr<StoreServer> server_;
};

}  // namespace hetcomm
