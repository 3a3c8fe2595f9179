// StoreServer and StoreClient are the job's small TCP store. The server runs in rank 0's process,
// and every rank, including rank 0, is a client.
//
// Every connection first proves a key. It is made from the configured secret, or is a publicly
// known key that only keeps accidental connections out. Both sides also compare an identity made of
// the job's MASTER_PORT and name. The identity keeps jobs whose port ranges overlap from using each
// other's store. With TLS on, all of this goes through TLS, and the certificates decide who may
// connect. An allgather over n ranks is n requests and n replies that share one buffer.
//
// A client that proved only a publicly known key may be a stranger. Bounds limits the number of
// such sessions, and how long each may stay idle. Honest clients reconnect when they need to.
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
#include "src/net/listening_host.h"
#include "src/net/stream_socket.h"
#include "src/net/tls.h"
#include "src/system/clock.h"
#include "src/system/config.h"
#include "src/system/log.h"

namespace hetcomm {

// A client of a store without a secret replaces a connection that has been idle for this time.
inline constexpr uint64_t kQuietNs = 10'000'000'000;

// Serves from its own thread until it is destroyed. The destructor tells waiting clients that the
// store is closing, and sends pending replies for a few seconds at most. |log| must outlive the
// server.
class StoreServer {
 public:
  // Limits on sessions whose proof is worthless because the key is publicly known.
  struct Bounds {
    size_t sessions = 0;               // maximum number; one more ends the longest idle one
    uint64_t quiet_ns = 3 * kQuietNs;  // a session to which no reply is owed ends after this time
    uint64_t wait_ns = kForever;       // the longest that a request may wait
  };
  struct Options {
    Credentials credentials;
    Secret job_key{};              // the key sent in reply to kJobKey
    std::vector<Address> hosts;    // the server listens on all of them, on the same port
    std::vector<uint16_t> ports;   // the first that is free on all hosts is used
    std::optional<Bounds> bounds;  // set if the key in |credentials| is publicly known
    std::shared_ptr<const TlsContext> tls{};
    int ranks = 0;  // number of ranks in the job; 0: unknown
    // If set, clients get this answer when the process has no file descriptors left. The store
    // keeps a spare descriptor to send it.
    std::optional<Status> exhausted{};
    // If set, the server is the relay (relay.h) of |rank|. Clients can only get values. It listens
    // on the interfaces that |config| selects for transports, and not at |hosts|.
    struct Relay {
      const Config& config;
      Address route;  // as in choose_interfaces()
      int32_t rank = 0;
    };
    std::optional<Relay> relay{};
  };
  static Result<std::unique_ptr<StoreServer>> start(Log& log, const Options& options);
  // Starts a server with sockets that already listen. Ignores |options.hosts|.
  static Result<std::unique_ptr<StoreServer>> start(Log& log, const Options& options,
                                                    StoreListeners listeners);
  ~StoreServer();

  // Returns the address on which the server listens at its first host. A relay has none.
  const Address& address() const { return address_; }
  // Returns the addresses at which a relay listens.
  const ListeningHost& host() const { return host_; }
  // These set or drop the value of |key| in a relay. [any-thread]
  void keep(std::string key, std::vector<std::byte> value);
  void forget(std::string key);
  // Announces that |count| clients will request |key|, for wait_for_readers().
  void expect_readers(std::string key, size_t count);
  // Waits for at most |time_ns| until the clients announced by expect_readers() have sent their
  // requests.
  void wait_for_readers(uint64_t time_ns);
  // Returns the total size of all replies that were sent.
  uint64_t sent_bytes() const;
  // Returns the reason for which a relay last dropped a connection, or OK if it has dropped none.
  // [any-thread]
  Status last_rejection() const;

 private:
  class Loop;
  explicit StoreServer(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
  Address address_;
  ListeningHost host_;
  int owner_pid_;
};

// StoreClient is a client of the store with blocking calls. Only one thread at a time may use it.
// It connects when a call needs a connection, and reconnects after a failure.
class StoreClient {
 public:
  struct Options {
    Credentials credentials;
    int rank = 0;
    std::vector<Address> addresses;  // where the store may be; other services there are skipped
    // A connection that was idle for longer is replaced before use. This is shorter than the
    // store's own limit, so that the store never closes a connection that is about to be used.
    uint64_t quiet_ns = kForever;
    std::shared_ptr<const TlsContext> tls{};
    // If set, the client connects to the relay of this rank instead of rank 0's store. A relay is
    // already listening, so the search ends once an attempt at each address has failed.
    std::optional<int32_t> relay{};
    // The client presents this ticket to the store. After the store has served a rank, it rejects a
    // process that claims the same rank with another ticket.
    std::optional<StoreTicket> ticket{};

    // Returns the name of the service for error texts, such as "rank 0's store".
    std::string service() const;
  };
  StoreClient(Log& log, Options options);
  ~StoreClient();

  // Sets the time limit that error texts name. A call still ends at its deadline.
  void set_time_limit(uint64_t limit_ns) { limit_ns_ = limit_ns; }
  // Connects to the store. Waits for a store that starts later, but not for one that was found
  // before and is gone.
  Status connect(uint64_t deadline_ns);
  Status put(const std::string& key, ConstByteSpan value, uint64_t deadline_ns);
  // Waits until a client has put the value of |key|. Fails with TIMED_OUT if none does.
  Result<std::vector<std::byte>> get(const std::string& key, uint64_t deadline_ns);
  // Like get() above, but the store waits for the key for only |wait_ns|.
  Result<std::vector<std::byte>> get(const std::string& key, uint64_t wait_ns,
                                     uint64_t deadline_ns);
  // Returns the values of all ranks. Fails with BOOTSTRAP_FAILED, naming the ranks, if some do not
  // join.
  Result<std::vector<std::vector<std::byte>>> gather(const std::string& scope, int size,
                                                     ConstByteSpan mine, uint64_t deadline_ns) {
    return gather(scope, options_.rank, Members::all(size), mine, deadline_ns);
  }
  // Gathers the values of |members|. This client takes part as member |rank|.
  Result<std::vector<std::vector<std::byte>>> gather(const std::string& scope, int rank,
                                                     const Members& members, ConstByteSpan mine,
                                                     uint64_t deadline_ns);
  // Returns the value of the first of |members|. This client takes part as member |rank|. Values of
  // other members are ignored. Fails like gather() if ranks do not join.
  Result<std::vector<std::byte>> broadcast(const std::string& scope, int rank,
                                           const Members& members, ConstByteSpan mine,
                                           uint64_t deadline_ns);
  // Queries the store once for the surviving ranks, in the round named |scope| (SurvivorRounds).
  // Reports the ranks in |lost| as lost. The result is empty while the round is undecided. With
  // |last|, the call fails a round that is still undecided.
  Result<std::vector<bool>> survivors(const std::string& scope, const std::vector<bool>& lost,
                                      bool last, uint64_t deadline_ns);
  Result<Secret> job_key(uint64_t deadline_ns);
  // Returns false after a call that did not reach the store or got no reply.
  bool connected() const { return socket_.valid(); }
  // Returns the local address of the first connection to the store, with port 0.
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
  uint64_t limit_ns_ = 0;  // the time limit that error texts name; 0: unknown
  bool found_ = false;     // the store has been found at least once
  StoreId id_{};           // id of the store that was found
  uint64_t used_ns_ = 0;   // when the connection was last used
};

}  // namespace hetcomm
