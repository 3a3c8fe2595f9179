// The job's small TCP store: the server runs in rank 0's process, everybody (rank 0 too) is a
// client.
//
// Every connection proves a key first: that of the configured secret, or else one that everybody
// knows, which keeps accidental strays out. The identity is that of the job's MASTER_PORT, so that
// two jobs whose port ranges overlap do not take each other's store for their own. With TLS it goes
// around all of this, and the certificates say who may connect. An allgather
// over n ranks is n requests and n replies that share one buffer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/base/log.h"
#include "src/base/status.h"
#include "src/bootstrap/store_protocol.h"
#include "src/net/address.h"
#include "src/net/credentials.h"
#include "src/net/stream_socket.h"
#include "src/net/tls.h"

namespace hetcomm {

// Serves from a thread of its own until it is destroyed; then it tells those who wait that it
// closes, and lets replies that are under way leave, for a few seconds at most. |log| outlives it.
class StoreServer {
 public:
  struct Options {
    Credentials credentials;
    Secret job_key{};                // what kJobKey hands out
    std::vector<Address> addresses;  // the first that can be bound is used
    std::shared_ptr<const TlsContext> tls{};
  };
  static Result<std::unique_ptr<StoreServer>> start(Log& log, const Options& options);
  ~StoreServer();

  const Address& address() const { return address_; }

 private:
  class Loop;
  explicit StoreServer(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
  Address address_;
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
    std::shared_ptr<const TlsContext> tls{};
  };
  StoreClient(Log& log, Options options);
  ~StoreClient();

  // Finds the store, which may start later.
  Status connect(uint64_t deadline_ns);
  Status put(const std::string& key, ConstByteSpan value, uint64_t deadline_ns);
  // Waits for the key; TIMED_OUT when nobody puts it.
  Result<std::vector<std::byte>> get(const std::string& key, uint64_t deadline_ns);
  // All ranks' values; BOOTSTRAP_FAILED names the ranks that did not come.
  Result<std::vector<std::vector<std::byte>>> gather(const std::string& scope, int size,
                                                     ConstByteSpan mine, uint64_t deadline_ns);
  Result<Secret> job_key(uint64_t deadline_ns);

 private:
  Result<std::vector<std::byte>> call(const StoreRequest& request, size_t reply_limit,
                                      uint64_t deadline_ns);
  Result<std::vector<std::byte>> exchange(ConstByteSpan frame, size_t reply_limit,
                                          uint64_t deadline_ns);
  Status send_all(ConstByteSpan bytes, uint64_t deadline_ns);
  Status receive_all(ByteSpan bytes, uint64_t deadline_ns);
  Status failure(int error, std::string_view what) const;
  Status wait_for(short events, uint64_t deadline_ns);

  Log& log_;
  const Options options_;
  StreamSocket socket_;
  std::string peer_;
};

}  // namespace hetcomm
