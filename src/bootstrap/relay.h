// The relay of a rank: a small store in its own process, by which it passes on to the next rank
// what the one before has sent it (relay_chain.h). Only this rank puts values there; others can get
// them.
//
// It starts with the first exchange of a large job, and ends with the bootstrap. A value stays for
// as long as a rank of its exchange may wait for it.
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
#include "src/net/listening_place.h"
#include "src/system/clock.h"
#include "src/system/config.h"
#include "src/system/log.h"

namespace hetcomm {

// Where a rank's relay is, and what tells it from one of another process there.
struct RelayContact {
  ListeningPlace place;  // without addresses: the rank has no relay
  std::array<std::byte, 16> instance{};

  bool exists() const { return !place.addresses.empty(); }
  void encode(ByteWriter& writer) const;
  // Fails for input, which may be hostile, that is no contact.
  static Result<RelayContact> decode(ByteReader& reader);
};

// Used by one thread at a time.
class Relay {
 public:
  // |config| is copied; |log| outlives this.
  Relay(const Config& config, Log& log);
  // Waits a little for the ranks that are expected to ask.
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // The largest job in which every rank hears the value of each.
  int small_job() const;
  // Starts to listen, once, as |rank|. |route| as NetworkListener has it. A rank that cannot listen
  // logs why and goes without a relay.
  void start(const Secret& secret, int rank, const Address& route);
  const RelayContact& contact() const { return contact_; }

  // Others can get |value| until |until_ns|, and until the next call of this.
  void keep(std::string key, std::vector<std::byte> value, uint64_t until_ns);
  // |count| ranks will ask for |key|, and for nothing after it.
  void expect_readers(std::string key, size_t count);
  // A client of the relay of |rank|, which is at |contact|. Fails where it has none that this rank
  // can reach.
  Result<std::unique_ptr<StoreClient>> client_of(int rank, const RelayContact& contact) const;
  // Bytes that others got.
  uint64_t sent_bytes() const { return server_ ? server_->sent_bytes() : 0; }
  // Why this relay last dropped a connection of another rank; ok: it dropped none.
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
  std::map<std::string, uint64_t> kept_;  // when each key may be forgotten
  uint64_t next_expiry_ns_ = kForever;
  std::unique_ptr<StoreServer> server_;
};

}  // namespace hetcomm
