// The one interface that all transports implement and that core knows.
//
// A transport moves bytes between this process and one peer. It knows nothing of tags, matching,
// ordering across connections, retries or the copies of devices: those are core's. Every call and
// every upcall happens under the context's progress baton, so no transport needs a lock of its own;
// none may block.
//
//   TransportFactory  probe: usable here, or why not; create: one Transport per communicator mesh
//   Transport         descriptor, start, reach, connect, progress, sleep
//   Endpoint          one connection to one peer (a "rail"): messages
//
// What not every transport can do (put, get, regions, devices) stands in abilities.h, in interfaces
// that a Transport and an Endpoint hand out as pointers. README.md says how to add a transport.
//
// Life of a transport: a peer may know its descriptor, and connect, before this rank knows which
// mesh it belongs to and who its members are. Such a connection waits, unjudged, until start().
//
// Life of a connection: only the lower rank of a pair connects. on_connected (initiator) and
// on_accepted (other side) hand the endpoint to core, which sets its handler before anything is
// delivered. What ends something (revoke, release, cancel, close) needs no memory, so that it
// cannot fail for want of it. When a connection breaks, the endpoint first makes itself quiet (no
// memory of anybody is touched any more), then reports on_failed once; after that every call on it
// returns kPeerLost. Core destroys endpoints, never inside an upcall of that endpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/config.h"
#include "src/base/log.h"
#include "src/base/span.h"
#include "src/base/status.h"
#include "src/net/address.h"
#include "src/net/credentials.h"
#include "src/net/poller.h"
#include "transports/abilities.h"
#include "transports/types.h"

namespace hetcomm {

// Core's side of one endpoint. Upcalls come from Transport::progress or the poller only, never from
// inside a call of core on that endpoint. No memory passed in lives beyond the call.
class EndpointHandler {
 public:
  // A message arrived. |payload| is contiguous.
  virtual void on_message(const MessageHeader& header, ConstByteSpan payload) = 0;
  // |length| bytes of a peer's put are complete in the memory that was exposed with |cookie|.
  virtual void on_put(uint64_t cookie, uint64_t length) = 0;
  // |bulk| has ended and its local memory is quiet. For a put see Capabilities::lossless.
  virtual void on_bulk_complete(Bulk& bulk, Code code) = 0;
  // Region |key| can be used as it says until on_unmap or on_failed; or why not.
  virtual void on_mapped(const RemoteKey& key, const Result<MappedRegion>& mapped) = 0;
  // The peer takes it back: on return it is not touched any more.
  virtual void on_unmap(const RemoteKey& key) = 0;
  // A send or put that was refused with kWouldBlock may be tried again.
  virtual void on_writable() = 0;
  // The transport cannot tell whether the peer does not read |stream| or its path is gone. The
  // peer's receipt() says which, and comes by another path. Until resolve() tells it, the transport
  // goes on waiting, and asks again.
  virtual void on_doubt(const StreamId& stream) = 0;
  // The connection broke; nothing will be delivered or touched any more. |why| names transport and
  // reason.
  virtual void on_failed(const Status& why) = 0;

 protected:
  ~EndpointHandler() = default;
};

class Endpoint {
 public:
  // Closes the connection. On return no memory of core is touched any more; no upcall follows.
  virtual ~Endpoint() = default;
  // From now on the peer reaches no published region over this connection. Unlike the destructor,
  // which is the only call that follows, also from inside of an upcall. Without regions it does
  // nothing.
  virtual void close() = 0;

  virtual void set_handler(EndpointHandler* handler) = 0;
  // What this connection can do; may be less than the transport's (no get where the kernel forbids
  // it). The same for the endpoint's life.
  virtual const Capabilities& capabilities() const = 0;
  virtual EndpointAbilities abilities() = 0;
  // Sends header and payload (at most max_payload_bytes) as one message, in order with the others.
  // Both are copied before it returns. kWouldBlock: no room; nothing was sent, on_writable will
  // follow.
  virtual Code send(const MessageHeader& header, const SegmentView& payload) = 0;
  // True when nothing accepted is waiting to leave.
  virtual bool flushed() const = 0;
  // One line for people: addresses, mode, streams.
  virtual std::string describe() const = 0;
};

// Core's side of one transport; the same rules as for EndpointHandler.
class TransportHandler {
 public:
  // The outcome of connect(|peer|).
  virtual void on_connected(int peer, Result<std::unique_ptr<Endpoint>> endpoint) = 0;
  // |peer| (proved) has connected. Not keeping the endpoint closes it.
  virtual void on_accepted(int peer, std::unique_ptr<Endpoint> endpoint) = 0;

 protected:
  ~TransportHandler() = default;
};

// What a transport is made of; the references outlive it.
struct TransportEnvironment {
  int rank = 0;
  int size = 1;
  const Credentials& credentials;  // the mesh and incarnations: from Transport::start() on
  const Config& config;
  Log& log;
  Poller& poller;          // for descriptors that wake the context
  const uint64_t& now_ns;  // coarse clock, refreshed before every progress()
  TransportHandler& handler;
  size_t instance = 0;  // which of the factory's instances this is
  Address route{};      // of this host, leads to the other ranks; none where that is not known
};

// kShort: for a small fraction of a millisecond at most. A transport may then leave out a costly
// fence: a wake-up that is lost to the race with a peer's message costs no more than that.
enum class Sleep : uint8_t { kShort, kLong };

class Transport {
 public:
  virtual ~Transport() = default;

  // What connections of this transport can do at best, for the choice of path before there is one.
  virtual const Capabilities& capabilities() const = 0;
  virtual TransportAbilities abilities() = 0;
  // What a peer needs to connect to this process; at most 1 KiB. Exchanged when the communicator is
  // created.
  virtual std::vector<std::byte> descriptor() const = 0;
  // The environment's credentials are complete: peers that connect are judged by them from now on.
  // Once, before connect() and RegionPublisher::publish().
  virtual Status start() = 0;
  // Whether the owner of |descriptor| (untrusted bytes) could be reached at all; the text says why
  // not. Does not block.
  virtual Status reach(ConstByteSpan descriptor) const = 0;
  // Starts connecting; on_connected follows exactly once, later, unless cancel_connect came first.
  // Has its own time limit.
  virtual void connect(int peer, ConstByteSpan descriptor) = 0;
  virtual void cancel_connect(int peer) = 0;
  // Moves data without blocking and handles expired timers. Returns the number of things done (0:
  // idle).
  virtual int progress() = 0;
  // Before the context sleeps on the poller: arranges that every arrival wakes it. False: there is
  // work already, do not sleep. finish_sleep() is called after waking (and after a false); until
  // then nobody takes events from the poller, which may be what wakes the sleeper.
  virtual bool prepare_sleep(Sleep sleep) = 0;
  // Between a prepare_sleep() that returned true and finish_sleep(), after calls of endpoints:
  // whether what they began is announced too. False: somebody has to finish the sleep and
  // progress().
  virtual bool may_sleep_on() const = 0;
  virtual void finish_sleep() = 0;
  // When progress() has to run at the latest, absolute; kForever if never.
  virtual uint64_t next_timer_ns() const = 0;
};

class TransportFactory {
 public:
  virtual ~TransportFactory() = default;

  virtual std::string_view name() const = 0;
  // Usable on this machine? The text says why not, or, with kOk, what was found.
  virtual Status probe(const Config& config) const = 0;
  // How many transports it makes for one communicator, one for each network interface that shall
  // share the load. Instance i connects to instance i of the peer.
  virtual size_t instances(const Config& /*config*/) const { return 1; }
  // Needs no probe() before; where that fails it fails for the same reason.
  virtual Result<std::unique_ptr<Transport>> create(
      const TransportEnvironment& environment) const = 0;
};

}  // namespace hetcomm
