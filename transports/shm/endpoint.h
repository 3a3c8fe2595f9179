// ShmEndpoint is one connection through shared memory.
//
// Messages and pieces of puts share one FIFO per direction. Gets read the peer's memory. All
// time-consuming work happens in progress(), in bounded steps.
//
//   open --(the socket ended or failed)--> draining --(FIFO empty)--> failed
//     \---------------(the peer violated the protocol)------------------>/
//
// A draining endpoint still delivers entries that the peer has published. An endpoint that fails
// withdraws its sources, drops its targets and bulks, unmaps the peer's regions, and then calls
// on_failed.
#pragma once

#include <string>
#include <string_view>

#include "transports/shm/bulk_queue.h"
#include "transports/shm/exposure.h"
#include "transports/shm/peer_reader.h"
#include "transports/shm/region_exchange.h"
#include "transports/shm/ring.h"
#include "transports/shm/setup.h"
#include "transports/shm/wake.h"
#include "transports/transport.h"

namespace hetcomm::shm {

class ShmTransport;

// Returns the best capabilities that a connection with |geometry| can have.
Capabilities shm_capabilities(const Config& config, const Geometry& geometry);

class ShmEndpoint final : public Endpoint, private Watcher {
 public:
  // |transport| must outlive the endpoint.
  static Result<std::unique_ptr<ShmEndpoint>> create(ShmTransport& transport, int peer,
                                                     Connection connection);
  ~ShmEndpoint() override;

  void set_handler(EndpointHandler* handler) override { handler_ = handler; }
  const Capabilities& capabilities() const override { return capabilities_; }
  EndpointAbilities abilities() override;
  Code send(const MessageHeader& header, const ExtentView& payload) override;
  void close() override {}
  bool flushed() const override { return puts_.empty(); }
  std::string describe() const override;

  // --- for ShmTransport

  // Returns whether there is nothing to do. This costs one load of a word that the peer writes when
  // it sends.
  bool idle() const { return !busy_ && !consumer_.ready(); }
  int progress();
  // Makes the peer ring the bell when it publishes entries, or frees ring space that this side
  // waits for. After the transport's fence, has_work() shows whether the peer had already done so.
  void announce_sleep();
  bool has_work();
  bool may_sleep_on();
  void end_sleep();
  bool peer_fences() const { return bell_.fences(); }
  // Requests that the peer unmap region |id|. Returns true if the peer has, or is about to have, a
  // mapping of it.
  bool ask_to_let_go(uint64_t id);

 private:
  // One progress() copies at most about this many bytes in each direction, so that other endpoints
  // are served too. Each message or piece counts as kEntryCost additional bytes.
  static constexpr int64_t kCopyBudget = 256 << 10;
  static constexpr int64_t kEntryCost = 4 << 10;
  // One progress() delivers no further entry after a message of at least this size, or after one
  // for which get_now() has read as much. The receiver can then post its next receive before later
  // data is delivered, which avoids a copy.
  static constexpr uint32_t kLongMessage = 16 << 10;
  // A side initially uses only kFirstRingBytes of its ring, or as much as its first message needs.
  // It uses the whole ring after its first put, after a message that does not fit, or after
  // kFewMessages messages have gone through the ring. A fast sequence of messages is slower if only
  // a part of the ring is used.
  static constexpr uint32_t kFewMessages = 32;
  static constexpr uint64_t kFirstRingBytes = 16 << 10;

  // The abilities are in a separate object, because their vtable pointers would push members that
  // short messages use into further cache lines.
  class Bulks final : public PutStarter,
                      public GetStarter,
                      public ImmediateReader,
                      public MemoryExposer,
                      public RegionMapper {
   public:
    explicit Bulks(ShmEndpoint& endpoint) : endpoint_(endpoint) {}
    Code put(Bulk& bulk) override { return endpoint_.put(bulk); }
    Code get(Bulk& bulk) override { return endpoint_.get(bulk); }
    Code get_now(Bulk& bulk) override { return endpoint_.get_now(bulk); }
    bool cancel(Bulk& bulk) override { return endpoint_.cancel(bulk); }
    Result<RemoteKey> expose(Extents extents, Access access, uint64_t cookie) override {
      return endpoint_.expose(extents, access, cookie);
    }
    void revoke(const RemoteKey& key) override { endpoint_.revoke(key); }
    void release(const RemoteKey& key) override { endpoint_.revoke(key); }
    void map(const RemoteKey& key, uint64_t length) override { endpoint_.map(key, length); }

   private:
    ShmEndpoint& endpoint_;
  };

  ShmEndpoint(ShmTransport& transport, int peer, Connection connection);
  Code put(Bulk& bulk);
  Code get(Bulk& bulk);
  Code get_now(Bulk& bulk);
  Result<RemoteKey> expose(Extents extents, Access access, uint64_t cookie);
  void revoke(const RemoteKey& key);
  void map(const RemoteKey& key, uint64_t length);
  bool cancel(Bulk& bulk);
  void on_events(uint32_t events) override;
  void peer_went();
  void receive_parcels();
  // Updates the endpoint's state after parcels were sent or received.
  void note_exchange();

  Code grow_ring(uint64_t bytes);
  Code refuse(uint64_t room);
  bool waits_for_room() const { return want_room_ || !puts_.empty(); }
  Code send_by_ring(const MessageHeader& header, const ExtentView& payload);
  int receive();
  bool deliver(uint32_t kind_and_length);
  bool deliver_message(const FifoSlot& slot, SlotKind kind, uint32_t length);
  bool deliver_put(const FifoSlot& slot, bool last, uint32_t length);
  uint64_t next_piece_bytes() const;
  int pump_puts();
  bool publish_piece(Bulk& bulk, uint64_t length);
  int pump_gets();
  void publish_consumed();
  void stop_watching();
  void hang_up();
  void violated(std::string_view what);
  void fail(const Status& why);

  // The members used by idle() and short messages come first.
  Consumer consumer_;
  bool busy_ = false;  // progress() has work even if no slot arrives
  bool failed_ = false;
  bool draining_ = false;
  uint64_t read_now_ = 0;   // bytes that get_now() has read while the current entry is handled
  bool want_room_ = false;  // a send was refused, so on_writable has to follow
  EndpointHandler* handler_ = nullptr;
  Producer producer_;
  Bell bell_;
  uint64_t wanted_room_ = 0;
  uint32_t ring_messages_ = 0;  // counts up to kFewMessages
  BulkQueue puts_;

  TargetTable targets_;
  SourceTable sources_;
  Side& mine_;
  Connection connection_;
  PeerReader reader_;
  RegionExchange regions_;
  Capabilities capabilities_;
  ShmTransport& transport_;
  int peer_;
  Bulks bulks_{*this};
};

}  // namespace hetcomm::shm
