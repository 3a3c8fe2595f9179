// TcpTransport holds the listeners, the connections being established, and the state that all
// connections share.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/net/address.h"
#include "src/net/network_listener.h"
#include "src/net/tls.h"
#include "transports/tcp/buffer_pool.h"
#include "transports/tcp/connect_attempt.h"
#include "transports/tcp/endpoint.h"
#include "transports/tcp/exposure.h"
#include "transports/tcp/hot_set.h"
#include "transports/tcp/open_streams.h"
#include "transports/tcp/settings.h"
#include "transports/tcp/wire.h"
#include "transports/transport.h"

namespace hetcomm::tcp {

class TcpTransport final : public Transport,
                           public ReceiptSource,
                           public AcceptHandler,
                           public ConnectAttemptHandler {
 public:
  static Result<std::unique_ptr<TcpTransport>> create(const TransportEnvironment& environment);
  ~TcpTransport() override;

  const Capabilities& capabilities() const override { return settings_.capabilities; }
  TransportAbilities abilities() override { return {.receipts = this}; }
  std::vector<std::byte> contact() const override;
  Status start() override;
  Status reach(ConstByteSpan contact) const override;
  void connect(const Destination& destination, ConstByteSpan contact) override;
  void cancel_connect(const Destination& destination) override;
  int progress() override;
  bool prepare_sleep(Sleep sleep) override;
  bool may_sleep_on() const override;
  void finish_sleep() override {}
  uint64_t next_timer_ns() const override;

  bool receipt(int peer, const StreamId& stream, PathReceipt* out) const override {
    return open_streams_.receipt(peer, stream, out);
  }
  void on_accept(StreamSocket socket, const Hello& hello) override;
  void on_attempt_ended(ConnectAttempt& attempt, Result<StreamSocket> socket) override;

  // Shared by the endpoints and streams of this transport.
  Poller& poller() { return environment_.poller; }
  Log& log() { return environment_.log; }
  uint64_t now() const { return environment_.now_ns; }
  const Settings& settings() const { return settings_; }
  BufferPool& buffers() { return buffers_; }
  NonceSource& nonces() { return nonces_; }
  HotSet<TcpStream>& hot() { return hot_; }
  OpenStreams& open_streams() { return open_streams_; }
  // Returns the longest time for which a path can be silent before its connection is broken.
  uint64_t detection_ns() const { return settings_.detection_ns; }
  // Records that data was sent that the peer's kernel has to acknowledge.
  void note_sent() { watch_paths_ = true; }
  bool has_tls() const { return tls_ != nullptr; }
  // Returns the buffer for received bytes that have no final destination yet. Its contents are
  // consumed before TcpStream::receive() returns.
  ByteSpan scratch() { return {scratch_.get(), kScratchBytes}; }
  void set_socket_buffers(int fd) const;

  void add_endpoint(TcpEndpoint& endpoint);
  void remove_endpoint(TcpEndpoint& endpoint);
  // Lists |endpoint| as active, so that its progress() is called until it has no work.
  void activate(TcpEndpoint& endpoint);
  // Connects a further stream. attach() or stream_unavailable() of |endpoint| is called later,
  // never from inside this call.
  void open_stream(TcpEndpoint& endpoint, size_t index);
  bool is_opening_stream(const TcpEndpoint& endpoint) const;
  void cancel_streams(const TcpEndpoint& endpoint);

 private:
  // An attempt to connect one stream. |endpoint| is the connection to which the stream belongs, or
  // nullptr for the first stream of a new connection.
  struct Connecting {
    std::unique_ptr<ConnectAttempt> attempt;
    TcpEndpoint* endpoint = nullptr;
  };
  // A bulk stream that was accepted before the message stream of its connection, because the last
  // packet of that stream's handshake was late.
  struct EarlyStream {
    StreamName name;
    int peer = 0;
    StreamSocket socket;
    uint64_t expires_ns = 0;
  };
  static constexpr size_t kMaxEarly = 16;
  static constexpr size_t kScratchBytes = 128u << 10;

  TcpTransport(const TransportEnvironment& environment, std::shared_ptr<const TlsContext> tls);
  Status listen();
  // Returns the addresses in |contact| that can be reached from this host.
  Result<std::vector<Address>> reachable(ConstByteSpan contact) const;
  void begin(const Destination& destination, const StreamName& name, std::vector<Address> addresses,
             Status refused, TcpEndpoint* endpoint);
  TcpEndpoint* find(const ConnectionId& id, int peer);
  void accept_messages(int peer, const ConnectionId& id, StreamSocket socket);
  void accept_bulk(int peer, const StreamName& name, StreamSocket socket);
  int run_active();
  int run_timers();
  void watch_paths(uint64_t now);

  const TransportEnvironment environment_;
  const std::shared_ptr<const TlsContext> tls_;  // null if TLS is off
  const Settings settings_;
  BufferPool buffers_;
  NonceSource nonces_;
  HotSet<TcpStream> hot_;
  OpenStreams open_streams_;
  NumaMemory scratch_;
  LocalEnd local_end_;       // for connections to other hosts
  const LocalEnd anywhere_;  // for connections within this host
  std::unique_ptr<NetworkListener> listener_;
  std::vector<Connecting> connecting_;
  std::vector<EarlyStream> early_;  // oldest first
  std::vector<TcpEndpoint*> endpoints_;
  std::vector<TcpEndpoint*> active_;  // nullptr: removed; run_active() closes the gap
  uint64_t timers_checked_ns_ = 0;
  bool watch_paths_ = false;  // data may be unacknowledged
  // The time of the next check of all paths, or kForever if none is planned.
  uint64_t watch_at_ns_ = kForever;
};

}  // namespace hetcomm::tcp
