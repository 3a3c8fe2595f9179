// TcpEndpoint is one connection to one peer. Stream 0 carries messages, bulk streams carry puts.
//
//   open --(a stream ends or breaks)--> closing --(all streams ended, or kLingerNs)--> failed
//   open or closing --(protocol error)--> failed
//   open --(the path is gone, path.h)--> closing --(no received data is left)--> failed
//
// A closing endpoint sends nothing, but receives the data that the peer sent before the stream
// ended. It then closes every socket, and on_failed is the last upcall. Bulks that have not
// completed by then are dropped without an upcall.
//
// stream_opening.h describes when bulk streams are opened. Puts wait until the first bulk stream is
// connected. If none can be opened, puts use stream 0 in fragments of kMaxFragmentBytes, between
// messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/net/address.h"
#include "src/system/clock.h"
#include "transports/tcp/bulk_queue.h"
#include "transports/tcp/exposure.h"
#include "transports/tcp/frame_reader.h"
#include "transports/tcp/stream.h"
#include "transports/tcp/stream_opening.h"
#include "transports/tcp/stream_set.h"
#include "transports/transport.h"

namespace hetcomm::tcp {

class TcpTransport;

// Identifies a connection. Both sides use the same |id|.
struct ConnectionName {
  int peer = 0;
  ConnectionId id{};
  bool initiator = false;  // this side connected, and connects further streams
};

class TcpEndpoint final : public Endpoint,
                          public PutStarter,
                          public MemoryExposer,
                          public DoubtResolver,
                          public FrameSink {
 public:
  TcpEndpoint(TcpTransport& transport, const ConnectionName& name, StreamSocket socket);
  ~TcpEndpoint() override;

  void set_handler(EndpointHandler* handler) override;
  const Capabilities& capabilities() const override;
  EndpointAbilities abilities() override { return {.puts = this, .exposer = this, .doubts = this}; }
  Code send(const MessageHeader& header, const ExtentView& payload) override;
  void close() override {}
  bool flushed() const override;
  uint64_t unsent_bytes() const override;
  Passage passage() const override;
  std::string trouble() const override;
  std::string describe() const override;

  Code put(Bulk& bulk) override;
  Result<RemoteKey> expose(Extents extents, Access access, uint64_t cookie) override;
  void revoke(const RemoteKey& key) override;
  void release(const RemoteKey& key) override { revoke(key); }
  bool cancel(Bulk& bulk) override;
  void resolve(const StreamId& stream, const PathReceipt& receipt) override;

  void on_message_frame(const MessageHeader& header, ConstByteSpan payload) override;
  void on_put_frame(uint64_t cookie, uint64_t length) override;
  const char* on_streams_frame(const StreamsNote& note) override;

  const ConnectionName& name() const { return name_; }
  const Address& peer_address() const { return peer_address_; }
  ExposureTable& exposures() { return exposures_; }

  // Adds a bulk stream that TcpTransport has connected or accepted. If connecting fails,
  // TcpTransport calls stream_unavailable() instead.
  void attach(size_t index, StreamSocket socket);
  void stream_unavailable(const Status& why);

  // --- for TcpStream. activate() and stream_ended() make no upcalls.
  void activate();
  // Reports that a stream has ended. |why| is the cause, or empty if the peer has closed the
  // stream. |cut| is true if the stream ended in the middle of a received frame.
  void stream_ended(std::string_view why, bool cut);
  // Breaks the connection and calls on_failed. Called only from inside progress() or the poller.
  void fail_protocol(const char* error);

  // Sends as much as possible, and makes the upcalls that are due, including on_failed. Returns the
  // number of actions.
  int progress();
  // Returns whether progress() must be called again without waiting for an event.
  bool has_work() const;
  // Prepares to rely on the poller for all events. Returns false if there is work to do
  // immediately.
  bool prepare_sleep();
  // Returns the time at which a closing endpoint stops waiting, or kForever in other states.
  uint64_t deadline_ns() const { return state_ == State::kClosing ? deadline_ns_ : kForever; }

  // Checks whether the peer's kernel is still acknowledging the data that was sent. Makes upcalls.
  // Returns false if nothing is in flight.
  bool watch_path();

  // The index in the transport's list of active endpoints.
  size_t active_index = kInactive;
  static constexpr size_t kInactive = SIZE_MAX;

 private:
  enum class State : uint8_t { kOpen, kClosing, kFailed };

  bool over_messages() const { return streams_.bulk_count() == 0 && opening_.unavailable(); }
  void request_streams(size_t count);
  void review_stream_count();
  bool has_buffered() const;
  int write_streams();
  int report();
  void note_sent();
  void path_gone(const TcpStream& stream);
  void break_off(std::string_view reason);
  int progress_closing();
  void fail();

  TcpTransport& transport_;
  const ConnectionName name_;
  EndpointHandler* handler_ = nullptr;
  State state_ = State::kOpen;
  bool want_writable_ = false;
  bool sent_ = false;       // data was sent since the last watch_path()
  bool unsettled_ = false;  // data was in flight at the last watch_path()
  bool gone_ = false;       // the path is gone
  uint64_t deadline_ns_ = 0;
  Status why_;
  Address peer_address_;
  ExposureTable exposures_;
  BulkQueue queue_;
  StreamOpening opening_;
  StreamSet<TcpStream> streams_;
};

}  // namespace hetcomm::tcp
