// The job's small TCP store: the server runs in rank 0's process, everybody (rank 0 too) is a
// client.
//
// Every connection proves a key first: that of the configured secret, or else one that everybody
// knows, which keeps accidental strays out. The identity is that of the job's MASTER_PORT, so that
// two jobs whose port ranges overlap do not take each other's store for their own. With TLS it goes
// around all of this, and the certificates say who may connect. An allgather
// over n ranks is n requests and n replies that share one buffer.
//
// A client that proved a key that everybody knows may be a stranger. Such sessions are bounded in
// number, and in time while no reply is owed to them (Bounds). Honest clients connect again when
// they need to.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/bootstrap/store_listeners.h"
#include "src/bootstrap/store_protocol.h"
#include "src/net/address.h"
#include "src/net/credentials.h"
#include "src/net/listening_place.h"
#include "src/net/stream_socket.h"
#include "src/net/tls.h"
#include "src/system/clock.h"
#include "src/system/config.h"
#include "src/system/log.h"

namespace hetcomm {

// Clients of a store without a secret keep a connection that they do not use for this time.
inline constexpr uint64_t kQuietNs = 10'000'000'000;

// Serves from a thread of its own until it is destroyed; then it tells those who wait that it
// closes, and lets replies that are under way leave, for a few seconds at most. |log| outlives it.
class StoreServer {
 public:
  // Bounds hold for sessions whose proof says nothing, because everybody knows the key.
  struct Bounds {
    size_t sessions = 0;               // at a time; beyond, the longest quiet one has to go
    uint64_t quiet_ns = 3 * kQuietNs;  // a session to which no reply is owed ends after this time
    uint64_t wait_ns = kForever;       // the longest that a request may wait
  };
  struct Options {
    Credentials credentials;
    Secret job_key{};              // what kJobKey hands out
    std::vector<Address> hosts;    // all of them are listened on, at one port
    std::vector<uint16_t> ports;   // the first that is free on all hosts is used
    std::optional<Bounds> bounds;  // set: everybody knows the key in |credentials|
    std::shared_ptr<const TlsContext> tls{};
    int ranks = 0;  // of the job; 0: unknown
    // Set: what to tell when the process has no descriptors left. The store keeps a spare one.
    std::optional<Status> exhausted{};
    // Set: a relay (relay.h), of |rank|. Clients can only get. It listens where transports do, as
    // |config| says, and not at |hosts|.
    struct Relay {
      const Config& config;
      Address route;  // as NetworkListener has it
      int32_t rank = 0;
    };
    std::optional<Relay> relay{};
  };
  static Result<std::unique_ptr<StoreServer>> start(Log& log, const Options& options);
  // The same with sockets that listen already; |options.hosts| do not count.
  static Result<std::unique_ptr<StoreServer>> start(Log& log, const Options& options,
                                                    StoreListeners listeners);
  ~StoreServer();

  // The first host's. No relay has one.
  const Address& address() const { return address_; }
  // Where a relay listens.
  const ListeningPlace& place() const { return place_; }
  // A relay's values, from any thread: keeps |value|, or forgets the value of |key|.
  void keep(std::string key, std::vector<std::byte> value);
  void forget(std::string key);
  // Tells wait_for_readers() how many clients are going to ask for |key|.
  void expect_readers(std::string key, size_t count);
  // Waits until they have asked, |time_ns| at most.
  void wait_for_readers(uint64_t time_ns);
  // Bytes of all replies that have left.
  uint64_t sent_bytes() const;
  // Why a relay last dropped a connection; ok: it dropped none. [any-thread]
  Status last_rejection() const;

 private:
  class Loop;
  explicit StoreServer(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
  Address address_;
  ListeningPlace place_;
  int owner_pid_;
};

// Blocking; used by one thread at a time. Connects when a call needs it, and again after a failure.
class StoreClient {
 public:
  struct Options {
    Credentials credentials;
    int rank = 0;
    std::vector<Address>
        addresses;  // where the store may be; foreign services among them are skipped
    // A connection that was quiet for longer is replaced before it is used. It is shorter than
    // the store's own bound, so that the store never closes one that is about to be used.
    uint64_t quiet_ns = kForever;
    std::shared_ptr<const TlsContext> tls{};
    // Set: not for rank 0's store, but for the relay of this rank. It listens already, so that a
    // refusal ends the search.
    std::optional<int32_t> relay{};
    // Shown to the store, which takes another process for a rank that it has served as a stranger.
    std::optional<StoreTicket> ticket{};

    // Names the service that is looked for: "rank 0's store".
    std::string service() const;
  };
  StoreClient(Log& log, Options options);
  ~StoreClient();

  // The time limit that failures name. What ends a call is its deadline.
  void set_time_limit(uint64_t limit_ns) { limit_ns_ = limit_ns; }
  // Finds the store, which may start later. One that was found before is not waited for.
  Status connect(uint64_t deadline_ns);
  Status put(const std::string& key, ConstByteSpan value, uint64_t deadline_ns);
  // Waits for the key; TIMED_OUT when nobody puts it.
  Result<std::vector<std::byte>> get(const std::string& key, uint64_t deadline_ns);
  // The same, but the store waits for the key for |wait_ns|.
  Result<std::vector<std::byte>> get(const std::string& key, uint64_t wait_ns,
                                     uint64_t deadline_ns);
  // All ranks' values; BOOTSTRAP_FAILED names the ranks that did not come.
  Result<std::vector<std::vector<std::byte>>> gather(const std::string& scope, int size,
                                                     ConstByteSpan mine, uint64_t deadline_ns) {
    return gather(scope, options_.rank, Members::all(size), mine, deadline_ns);
  }
  // Gathers as |rank|, one of |members|.
  Result<std::vector<std::vector<std::byte>>> gather(const std::string& scope, int rank,
                                                     const Members& members, ConstByteSpan mine,
                                                     uint64_t deadline_ns);
  // The value of the first of |members|, of which this is |rank|; what the others say does not
  // count. Fails like a gather, for ranks that do not come.
  Result<std::vector<std::byte>> broadcast(const std::string& scope, int rank,
                                           const Members& members, ConstByteSpan mine,
                                           uint64_t deadline_ns);
  // One question of a round (SurvivorRounds), by a rank to which |lost| of all ranks are lost. The
  // ranks that are left; empty while that is open. |last|: the round fails if it is open now.
  Result<std::vector<bool>> survivors(const std::string& scope, const std::vector<bool>& lost,
                                      bool last, uint64_t deadline_ns);
  Result<Secret> job_key(uint64_t deadline_ns);
  // False after a call that did not reach the store, or got no reply.
  bool connected() const { return socket_.valid(); }
  // This side of the connection that was found first.
  const Address& local_address() const { return local_; }

 private:
  Result<StoreRequest> exchange_request(StoreOperation operation, const std::string& scope,
                                        int rank, const Members& members, ConstByteSpan mine,
                                        uint64_t deadline_ns) const;
  Result<std::vector<std::byte>> call(StoreRequest request, size_t reply_limit,
                                      uint64_t deadline_ns);
  Status refresh(uint64_t deadline_ns);
  Result<std::vector<std::byte>> exchange_again(StoreRequest request, size_t reply_limit,
                                                uint64_t deadline_ns);
  Result<std::vector<std::byte>> exchange(ConstByteSpan frame, size_t reply_limit,
                                          uint64_t deadline_ns);
  Status send_all(ConstByteSpan bytes, uint64_t deadline_ns);
  Status receive_all(ByteSpan bytes, uint64_t deadline_ns);
  Status failure(int error, std::string_view what) const;
  Status wait_for(short events, uint64_t deadline_ns);

  Log& log_;
  Options options_;
  StreamSocket socket_;
  uint64_t requests_ = 0;
  std::string peer_;
  Address local_;
  uint64_t limit_ns_ = 0;  // 0: none is known
  bool found_ = false;     // the store was, at some time
  StoreId id_{};           // of the store that was found
  uint64_t used_ns_ = 0;   // when the connection was last used
};

}  // namespace hetcomm
