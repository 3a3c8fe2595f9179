// Defines the interface that every transport implements. Core uses nothing else of a transport.
//
// A transport moves bytes between this process and its peers. Tags, matching, ordering across
// connections, retries and device copies are left to core. Every call to a Transport or an
// Endpoint, and every upcall, happens under the context's progress baton, so a transport needs no
// lock for its state. The only exception is ReceiptSource::receipt(), which any thread may call. No
// call may block unless its comment allows it.
//
//   TransportFactory  probe: can it be used here? create: makes a Transport for a job
//   Transport         contact, start, reach, connect, progress, sleep
//   Endpoint          one connection to one peer (a "rail"): messages
//
// abilities.h has the interfaces for abilities that some transports lack (put, get, regions,
// devices). A Transport and an Endpoint return them as pointers. README.md describes how to add a
// transport.
//
// A peer may know the contact of a transport, and connect, before this rank knows the job's id and
// members. Such a connection waits until start(), after which the transport checks it.
//
// Only the lower rank of a pair connects. on_connected (lower rank) and on_accepted (higher rank)
// pass the endpoint to core, which sets its handler before anything is delivered. Calls that end
// something (revoke, release, cancel, close) never fail for lack of memory. If cancel() needs
// memory that it cannot get, the connection breaks. When a connection breaks, the endpoint first
// stops accessing memory, and then reports on_failed once. After that every call on the endpoint
// returns kPeerLost. Core destroys endpoints, but never inside an upcall of the same endpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/span.h"
#include "src/base/status.h"
#include "src/net/address.h"
#include "src/net/credentials.h"
#include "src/net/poller.h"
#include "src/system/config.h"
#include "src/system/log.h"
#include "src/system/numa_memory.h"
#include "transports/abilities.h"
#include "transports/types.h"

namespace hetcomm {

// EndpointHandler is core's side of one endpoint. Only Transport::progress() and the poller make
// these upcalls. A call that core makes on the same endpoint never does. Memory passed to an upcall
// is valid only during the upcall.
//
// Upcalls are not marked HETCOMM_UNDER_BATON here: core calls a transport only under the baton, so
// a transport needs no annotations inside. Core's overrides are marked. ReceiptSource::receipt() is
// the exception: any thread may call it, so a transport must protect the data that it reads with a
// lock.
class EndpointHandler {
 public:
  // Reports that a message has arrived. |payload| is contiguous.
  virtual void on_message(const MessageHeader& header, ConstByteSpan payload) = 0;
  // Reports that |length| bytes of a peer's put are complete in the memory exposed with |cookie|.
  virtual void on_put(uint64_t cookie, uint64_t length) = 0;
  // Reports that |bulk| has ended and that its local memory is no longer accessed. The meaning of
  // kOk for a put depends on Capabilities::lossless.
  virtual void on_bulk_complete(Bulk& bulk, Code code) = 0;
  // Reports the outcome of map(). If |mapped| has no error, region |key| can be used at the address
  // in |mapped| until on_unmap or on_failed.
  virtual void on_mapped(const RemoteKey& key, const Result<MappedRegion>& mapped) = 0;
  // Reports that the peer withdraws region |key|. After this upcall has returned, core no longer
  // accesses the region, except in copies that hold it (MappedRegion::hold).
  virtual void on_unmap(const RemoteKey& key) = 0;
  // Reports that a send, put or get that was refused with kWouldBlock may be retried.
  virtual void on_writable() = 0;
  // Requests the peer's receipt() for |stream|, since the transport cannot distinguish a peer that
  // does not read from a broken path. The receipt arrives by another path, and core passes it to
  // resolve(). Until then the transport keeps waiting and repeats the request.
  virtual void on_doubt(const StreamId& stream) = 0;
  // Reports that the connection broke. The endpoint makes no further upcalls and accesses no
  // memory. |why| names the transport and the reason.
  virtual void on_failed(const Status& why) = 0;

 protected:
  ~EndpointHandler() = default;
};

class Endpoint {
 public:
  // Closes the connection. Once the destructor has returned, the endpoint no longer accesses core's
  // memory and makes no upcalls. Core does not call it from inside an upcall of this endpoint.
  virtual ~Endpoint() = default;
  // Ends the peer's access to published regions over this connection. Does nothing if there are no
  // regions. Unlike the destructor, close() can be called from inside an upcall. Afterwards core
  // can only destroy the endpoint.
  virtual void close() HETCOMM_UNDER_BATON = 0;

  // Sets the handler, which is core's side. Called once, before anything is delivered.
  virtual void set_handler(EndpointHandler* handler) HETCOMM_UNDER_BATON = 0;
  // Returns the capabilities of this connection. They can be fewer than those of its transport: for
  // example, the kernel may forbid get. They do not change during the endpoint's life.
  virtual const Capabilities& capabilities() const HETCOMM_UNDER_BATON = 0;
  virtual EndpointAbilities abilities() HETCOMM_UNDER_BATON = 0;
  // Sends header and payload (at most max_payload_bytes) as one message, in order with other
  // messages. Both are copied before send() returns. kWouldBlock: the queue is full, nothing was
  // sent, and on_writable follows.
  virtual Code send(const MessageHeader& header, const ExtentView& payload) HETCOMM_UNDER_BATON = 0;
  // Returns whether all accepted data has been sent.
  virtual bool flushed() const HETCOMM_UNDER_BATON = 0;
  // Returns the number of bytes of messages and puts that count as sent but have not been confirmed
  // to have arrived at the peer's host.
  virtual uint64_t unsent_bytes() const HETCOMM_UNDER_BATON { return 0; }
  // Returns whether data that was sent over this connection has arrived. Can be called after
  // on_failed, too. A connection that loses nothing while the peer is alive need not override this.
  virtual Passage passage() const HETCOMM_UNDER_BATON { return Passage::kNothing; }
  // Explains to users why sent data has not arrived, as far as the transport can tell. Empty: no
  // reason is known. May make system calls.
  virtual std::string trouble() const HETCOMM_UNDER_BATON { return {}; }
  // Describes the connection in one line for users: addresses, mode, streams.
  virtual std::string describe() const HETCOMM_UNDER_BATON = 0;
};

// TransportHandler is core's side of one transport. The rules of EndpointHandler apply.
class TransportHandler {
 public:
  // Reports the outcome of connect(|destination|).
  virtual void on_connected(const Destination& destination,
                            Result<std::unique_ptr<Endpoint>> endpoint) = 0;
  // Passes on a connection that |peer| has made. The peer has proved its identity. The connection
  // is closed if core destroys the endpoint.
  virtual void on_accepted(int peer, std::unique_ptr<Endpoint> endpoint) = 0;

 protected:
  ~TransportHandler() = default;
};

// A network interface of this host to which a transport can be bound.
struct BoundNic {
  std::string interface;  // e.g. "eth0"; empty if it has no name
  std::string rdma_port;  // e.g. "mlx5_0:1"; empty if it has none
  bool has_address = false;
  // Another interface in use is in the same subnet, so routes do not distinguish the two.
  bool shares_subnet = false;
  // The kernel's number of the nearest NUMA node.
  int numa_node = kAnyNumaNode;
};

// The environment in which a transport is created. The objects behind the references outlive the
// transport.
struct TransportEnvironment {
  int rank = 0;
  int size = 1;
  // The job's secret and identity. Its random id and the incarnations are known once
  // Transport::start() is called.
  const Credentials& credentials;
  const Config& config;
  // Usable addresses of this host, best first. Chosen once for all transports of a job.
  const ChosenInterfaces& interfaces;
  Log& log;
  // Watches the descriptors that wake the context.
  Poller& poller;
  // The coarse clock, which the engine sets while it makes progress.
  const uint64_t& now_ns;
  TransportHandler& handler;
  // The index of this transport among the factory's instances.
  size_t instance = 0;
  // The interface that the transport uses. If null, the transport chooses.
  const BoundNic* nic = nullptr;
  // The NUMA node for buffers that a network interface accesses.
  int buffer_node = kAnyNumaNode;
  // The NUMA node for memory that other processes on this host write and this rank reads.
  int inside_node = kAnyNumaNode;
};

// The duration of the sleep that the context begins. kShort is a small fraction of a millisecond.
// Before a short sleep a transport can omit a costly fence. If a peer's message then fails to wake
// the thread, it is delayed by at most the duration of the sleep.
enum class Sleep : uint8_t { kShort, kLong };

class Transport {
 public:
  virtual ~Transport() = default;

  // Returns the best capabilities that connections of this transport can have. Core uses them to
  // choose a path before there is a connection.
  virtual const Capabilities& capabilities() const HETCOMM_UNDER_BATON = 0;
  virtual TransportAbilities abilities() HETCOMM_UNDER_BATON = 0;
  // Returns the bytes that a peer needs to connect to this process, at most 1 KiB. Ranks exchange
  // them when the communicator is created.
  virtual std::vector<std::byte> contact() const HETCOMM_UNDER_BATON = 0;
  // Reports that the environment's credentials are complete. From then on the transport checks
  // connecting peers against them. Core calls this once, before connect() and
  // RegionPublisher::publish().
  virtual Status start() HETCOMM_UNDER_BATON = 0;
  // Returns OK if the owner of |contact| (untrusted bytes) can be reached at all. Otherwise the
  // text explains the reason. kOutOfResources: it may become reachable later.
  virtual Status reach(ConstByteSpan contact) const HETCOMM_UNDER_BATON = 0;
  // Starts to connect to |destination|, whose contact() returned |contact|. on_connected is called
  // exactly once, after this call has returned, unless cancel_connect() is called first. The
  // transport applies its own time limit. Several connects to one rank, with different
  // destinations, can be in progress at once.
  virtual void connect(const Destination& destination,
                       ConstByteSpan contact) HETCOMM_UNDER_BATON = 0;
  // Cancels connect(|destination|). on_connected is not called.
  virtual void cancel_connect(const Destination& destination) HETCOMM_UNDER_BATON = 0;
  // Moves data and handles expired timers. Returns the number of actions, or 0 if there was nothing
  // to do.
  virtual int progress() HETCOMM_UNDER_BATON = 0;
  // Arranges that every arrival wakes the context, which is about to sleep on the poller. Returns
  // false if there is work already, in which case the context must not sleep. finish_sleep()
  // follows in both cases. Until then no other thread takes events from the poller, since these
  // events may have to wake the sleeping thread.
  virtual bool prepare_sleep(Sleep sleep) HETCOMM_UNDER_BATON = 0;
  // Returns whether the poller also wakes the sleeping thread for operations that were started
  // since prepare_sleep() returned true. If not, a thread has to call finish_sleep() and
  // progress().
  virtual bool may_sleep_on() const HETCOMM_UNDER_BATON = 0;
  // Ends prepare_sleep(), whether or not the context slept.
  virtual void finish_sleep() HETCOMM_UNDER_BATON = 0;
  // Returns the time by which progress() has to run, or kForever if there is none.
  virtual uint64_t next_timer_ns() const HETCOMM_UNDER_BATON = 0;
};

class TransportFactory {
 public:
  virtual ~TransportFactory() = default;

  // Returns the name of the transport for users and peers. It has at most 12 characters, since '#'
  // and an instance number may be appended. The storage is static.
  virtual std::string_view name() const = 0;
  // Returns OK, with a text that describes what was found, if the transport can be used on this
  // machine. Otherwise the text explains the reason.
  virtual Status probe(const Config& config) const = 0;
  // Returns whether a transport can be bound to |nic| and the user has not excluded this. If
  // several interfaces qualify, each gets its own transport, and the transports share the load.
  virtual bool can_use(const Config& /*config*/, const BoundNic& /*nic*/) const { return false; }
  // Returns whether the transport's connections follow IP routes.
  virtual bool follows_routes() const { return false; }
  // Returns how many transports a job should create if no interfaces are known by name. The
  // transports share the load.
  virtual size_t instances(const Config& /*config*/) const { return 1; }
  // Creates a transport. A preceding probe() is not required. If probe() fails, create() fails for
  // the same reason.
  virtual Result<std::unique_ptr<Transport>> create(
      const TransportEnvironment& environment) const = 0;
};

}  // namespace hetcomm
