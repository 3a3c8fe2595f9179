// Defines the interface that every transport implements. Core accesses transports only through this
// interface and the abilities in abilities.h.
//
// A transport moves bytes between this process and its peers. Core handles tags, matching, ordering
// across connections, retries and device copies. Core holds the context's progress baton whenever
// it calls a Transport or an Endpoint, and upcalls run under the baton too, so a transport needs no
// lock for its state. The only exception is ReceiptSource::receipt(), which any thread may call. No
// call may block unless its comment allows it.
//
//   TransportFactory  checks whether the transport can be used on this machine, and creates it
//   Transport         connects to peers, and makes progress on all of its connections
//   Endpoint          one connection to one peer (a "rail"), which carries messages
//
// abilities.h declares the operations that only some transports support, such as put, get, regions
// and device memory. README.md describes how to add a transport.
//
// A peer can receive this transport's contact, and connect, before this rank has the job's id and
// list of members. The transport holds such a connection until start(), and then authenticates it.
//
// Only the lower rank of a pair connects. on_connected (lower rank) and on_accepted (higher rank)
// pass the endpoint to core, which sets the endpoint's handler before anything is delivered. The
// calls revoke(), release(), cancel() and close() never fail for lack of memory. If cancel() needs
// memory that it cannot get, the connection breaks. When a connection breaks, the endpoint first
// stops accessing memory, and then calls on_failed once. After that, every operation on the
// endpoint returns kPeerLost. Core destroys endpoints, but never inside an upcall of the same
// endpoint.
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

// EndpointHandler receives the events of one endpoint. Core implements it. These upcalls are made
// only from Transport::progress() and from the poller, never from inside a call that core makes on
// the same endpoint. Memory passed to an upcall is valid only during the upcall.
//
// The upcalls are not marked HETCOMM_UNDER_BATON here, so transports need no thread-safety
// annotations internally. Core's overrides are marked.
class EndpointHandler {
 public:
  // Reports that a message has arrived. |payload| is contiguous.
  virtual void on_message(const MessageHeader& header, ConstByteSpan payload) = 0;
  // Reports that a peer's put has written |length| bytes to the memory exposed with |cookie|.
  virtual void on_put(uint64_t cookie, uint64_t length) = 0;
  // Reports that |bulk| has completed with |code|, and that its local memory is no longer accessed.
  // The meaning of kOk for a put depends on Capabilities::lossless.
  virtual void on_bulk_complete(Bulk& bulk, Code code) = 0;
  // Reports the result of RegionMapper::map(). If |mapped| has no error, core can access region
  // |key| at the address in |mapped| until on_unmap or on_failed.
  virtual void on_mapped(const RemoteKey& key, const Result<MappedRegion>& mapped) = 0;
  // Reports that the peer withdraws region |key|. After the upcall returns, core no longer accesses
  // the region, except in copy operations that keep it mapped (MappedRegion::hold).
  virtual void on_unmap(const RemoteKey& key) = 0;
  // Reports that a send, put or get that returned kWouldBlock can be retried.
  virtual void on_writable() = 0;
  // Requests the result of the peer's ReceiptSource::receipt() for |stream|, because the transport
  // cannot distinguish a peer that does not read from a broken path. Core gets the receipt over
  // another path and passes it to DoubtResolver::resolve(). Until then the transport waits, and
  // repeats the request.
  virtual void on_doubt(const StreamId& stream) = 0;
  // Reports that the connection broke. The endpoint makes no further upcalls and no longer accesses
  // memory. |why| names the transport and the reason.
  virtual void on_failed(const Status& why) = 0;

 protected:
  ~EndpointHandler() = default;
};

class Endpoint {
 public:
  // Closes the connection. Once the destructor has returned, core's memory is no longer accessed,
  // and no upcalls are made. Core never destroys an endpoint inside one of the endpoint's upcalls.
  virtual ~Endpoint() = default;
  // Ends the peer's access to published regions over this connection. Does nothing in transports
  // without Capabilities::regions. Unlike the destructor, close() can be called from inside an
  // upcall. Afterwards core can only destroy the endpoint.
  virtual void close() HETCOMM_UNDER_BATON = 0;

  // Sets the receiver of this endpoint's upcalls. Called once, before anything is delivered.
  virtual void set_handler(EndpointHandler* handler) HETCOMM_UNDER_BATON = 0;
  // Returns the capabilities of this connection, which can be fewer than those of its transport.
  // For example, the kernel may forbid get. They do not change during the endpoint's life.
  virtual const Capabilities& capabilities() const HETCOMM_UNDER_BATON = 0;
  virtual EndpointAbilities abilities() HETCOMM_UNDER_BATON = 0;
  // Sends |header| and |payload| (at most Capabilities::max_payload_bytes) as one message. Messages
  // of an endpoint arrive in the order in which they were sent. Both parts are copied before send()
  // returns. Returns kWouldBlock if the queue is full. In that case nothing was sent, and
  // on_writable follows.
  virtual Code send(const MessageHeader& header, const ExtentView& payload) HETCOMM_UNDER_BATON = 0;
  // Returns whether all accepted data has been sent.
  virtual bool flushed() const HETCOMM_UNDER_BATON = 0;
  // Returns the number of bytes of messages and puts that were passed to the network but not yet
  // acknowledged by the peer's host.
  virtual uint64_t unsent_bytes() const HETCOMM_UNDER_BATON { return 0; }
  // Returns whether data that was sent over this connection has arrived. Can also be called after
  // on_failed. Transports with Capabilities::lossless need not override this.
  virtual Passage passage() const HETCOMM_UNDER_BATON { return Passage::kNothing; }
  // Returns a text for users that explains why sent data has not arrived. The text is empty if no
  // reason is known. The function may make system calls.
  virtual std::string trouble() const HETCOMM_UNDER_BATON { return {}; }
  // Returns a one-line description of the connection for users, such as its addresses, mode and
  // number of streams.
  virtual std::string describe() const HETCOMM_UNDER_BATON = 0;
};

// TransportHandler receives the events of one transport. Core implements it. The rules of
// EndpointHandler apply.
class TransportHandler {
 public:
  // Reports the result of Transport::connect() to |destination|.
  virtual void on_connected(const Destination& destination,
                            Result<std::unique_ptr<Endpoint>> endpoint) = 0;
  // Passes a connection from |peer| to core. The peer has proved its identity. Core can reject the
  // connection by destroying |endpoint|.
  virtual void on_accepted(int peer, std::unique_ptr<Endpoint> endpoint) = 0;

 protected:
  ~TransportHandler() = default;
};

// A network interface of this host to which a transport can be bound.
struct BoundNic {
  std::string interface;  // such as "eth0"; empty if there is no such name
  std::string rdma_port;  // such as "mlx5_0:1"; empty if there is no RDMA device
  bool has_address = false;
  // True if another interface in use is in the same subnet. Routes cannot distinguish the two.
  bool shares_subnet = false;
  // The kernel's number of the nearest NUMA node.
  int numa_node = kAnyNumaNode;
};

// The environment in which a transport is created. The referenced objects outlive the transport.
struct TransportEnvironment {
  int rank = 0;
  int size = 1;
  // The job's secret and identity. The job's random id and the incarnations of its ranks are set by
  // the time Transport::start() is called.
  const Credentials& credentials;
  const Config& config;
  // Usable addresses of this host, best first. All transports of a job share this list.
  const ChosenInterfaces& interfaces;
  Log& log;
  // Polls the file descriptors whose events wake the context.
  Poller& poller;
  // The coarse clock, which the engine updates while it makes progress.
  const uint64_t& now_ns;
  TransportHandler& handler;
  // The index of this transport among the job's transports from the same factory.
  size_t instance = 0;
  // The interface to which the transport is bound. If null, the transport selects one.
  const BoundNic* nic = nullptr;
  // The NUMA node for buffers that a network interface accesses.
  int buffer_node = kAnyNumaNode;
  // The NUMA node for memory that other processes on this host write to and this rank reads.
  int inside_node = kAnyNumaNode;
};

// The duration of the context's next sleep. kShort is at most a small fraction of a millisecond.
// Before a short sleep, a transport can omit a costly fence. A peer's message may then fail to wake
// the thread, which delays the message by at most the duration of the sleep.
enum class Sleep : uint8_t { kShort, kLong };

class Transport {
 public:
  virtual ~Transport() = default;

  // Returns the best capabilities that connections of this transport can have. Core uses them to
  // select a path before a connection exists.
  virtual const Capabilities& capabilities() const HETCOMM_UNDER_BATON = 0;
  virtual TransportAbilities abilities() HETCOMM_UNDER_BATON = 0;
  // Returns the data that a peer needs to connect to this process, at most 1 KiB. Ranks exchange
  // this data when the communicator is created.
  virtual std::vector<std::byte> contact() const HETCOMM_UNDER_BATON = 0;
  // Starts to authenticate connecting peers. Core calls this once, when the credentials in the
  // environment are complete, and before connect() and RegionPublisher::publish().
  virtual Status start() HETCOMM_UNDER_BATON = 0;
  // Returns OK if this transport may be able to connect to the process whose contact() returned
  // |contact|. The bytes are untrusted. Otherwise the text explains the reason, and kOutOfResources
  // means that a later call may succeed.
  virtual Status reach(ConstByteSpan contact) const HETCOMM_UNDER_BATON = 0;
  // Starts to connect to |destination|, whose contact() returned |contact|. on_connected is called
  // exactly once, after connect() has returned, unless cancel_connect() is called first. The
  // transport applies its own time limit. Connection attempts to several transports of one rank can
  // be in progress at once.
  virtual void connect(const Destination& destination,
                       ConstByteSpan contact) HETCOMM_UNDER_BATON = 0;
  // Cancels the attempt to connect to |destination|. on_connected is then not called.
  virtual void cancel_connect(const Destination& destination) HETCOMM_UNDER_BATON = 0;
  // Moves data and handles expired timers. Returns the number of actions performed, or 0 if there
  // was nothing to do.
  virtual int progress() HETCOMM_UNDER_BATON = 0;
  // Called before the context sleeps on the poller. From now on, arriving data must trigger an
  // event of the poller. Returns false if there is already work to do. In that case the context
  // must not sleep. finish_sleep() follows in both cases. Until then no other thread takes events
  // from the poller, since these events may have to wake the sleeping thread.
  virtual bool prepare_sleep(Sleep sleep) HETCOMM_UNDER_BATON = 0;
  // Returns whether the poller also wakes the sleeping thread for operations that were started
  // after prepare_sleep() returned true. If not, the context must stop sleeping, and call
  // finish_sleep() and progress().
  virtual bool may_sleep_on() const HETCOMM_UNDER_BATON = 0;
  // Undoes prepare_sleep(). Called whether or not the context slept.
  virtual void finish_sleep() HETCOMM_UNDER_BATON = 0;
  // Returns the time by which progress() must be called again, or kForever if there is none.
  virtual uint64_t next_timer_ns() const HETCOMM_UNDER_BATON = 0;
};

class TransportFactory {
 public:
  virtual ~TransportFactory() = default;

  // Returns the name by which users and peers refer to the transport. It has at most 12 characters,
  // since '#' and an instance number may be appended. The string has static storage.
  virtual std::string_view name() const = 0;
  // Returns OK if the transport can be used on this machine. The text then names the interfaces or
  // kernel features that were found. Otherwise the text explains the reason.
  virtual Status probe(const Config& config) const = 0;
  // Returns OK if a transport can be bound to |nic|, and the user's settings permit it. If several
  // interfaces qualify, each gets its own transport, and the transports share the load. The text of
  // a failure is the reason; it is empty if the transport never uses interfaces like |nic|.
  virtual Status check_nic(const Config& /*config*/, const BoundNic& /*nic*/) const {
    return Status(Code::kUnsupported, "");
  }
  // Returns whether the kernel's IP routes determine the path of the transport's connections.
  virtual bool follows_routes() const { return false; }
  // Returns the number of transports that a job should create if it binds none of them to an
  // interface. The transports share the load.
  virtual size_t instances(const Config& /*config*/) const { return 1; }
  // Creates a transport. A preceding call of probe() is not required. If probe() would fail, then
  // create() fails for the same reason.
  virtual Result<std::unique_ptr<Transport>> create(
      const TransportEnvironment& environment) const = 0;
};

}  // namespace hetcomm
