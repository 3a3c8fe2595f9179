// The one interface that all transports implement and that core knows.
//
// A transport moves bytes between this process and its peers. It knows nothing of tags, matching,
// ordering across connections, retries or the copies of devices: core does these. Every call and
// every upcall happens under the context's progress baton, unless its comment says otherwise, so a
// transport needs no lock of its own. No call may block unless its comment allows it.
//
//   TransportFactory  probe: says whether it can be used here; create: makes a Transport for a job
//   Transport         contact, start, reach, connect, progress, sleep
//   Endpoint          one connection to one peer (a "rail"): messages
//
// abilities.h has the interfaces for abilities that some transports lack (put, get, regions,
// devices). A Transport and an Endpoint hand them out as pointers. README.md says how to add a
// transport.
//
// Life of a transport: a peer may know its contact, and connect, before this rank knows the id and
// the members of the job. Such a connection waits until start() and is checked then.
//
// Life of a connection: only the lower rank of a pair connects. on_connected (lower rank) and
// on_accepted (other side) hand the endpoint to core, which sets its handler before anything is
// delivered. Calls that end something (revoke, release, cancel, close) need no memory, so lack of
// memory cannot make them fail. When a connection breaks, the endpoint first stops touching memory,
// and then reports on_failed once. After that every call on it returns kPeerLost. Core destroys
// endpoints, never inside an upcall of that endpoint.
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

// Core's side of one endpoint. Only Transport::progress and the poller make these upcalls, never a
// call of core on that endpoint. Memory that is passed in is valid during the upcall only.
//
// Upcalls do not say HETCOMM_UNDER_BATON here: core calls a transport under the baton only, so that
// a transport needs no annotations inside. Core's overrides say it. ReceiptSource::receipt() is the
// exception; a transport protects by other means the data that this call shares with the
// transport's threads.
class EndpointHandler {
 public:
  // Reports that a message has arrived. |payload| is contiguous.
  virtual void on_message(const MessageHeader& header, ConstByteSpan payload) = 0;
  // Reports that |length| bytes of a peer's put are complete in the memory that was exposed with
  // |cookie|.
  virtual void on_put(uint64_t cookie, uint64_t length) = 0;
  // Reports that |bulk| has ended and that its local memory is no longer accessed.
  // Capabilities::lossless says what kOk means for a put.
  virtual void on_bulk_complete(Bulk& bulk, Code code) = 0;
  // Answers map(): region |key| can be used at the address in |mapped| until on_unmap or on_failed,
  // or |mapped| says why it cannot.
  virtual void on_mapped(const RemoteKey& key, const Result<MappedRegion>& mapped) = 0;
  // Reports that the peer withdraws region |key|. After its return core no longer touches the
  // region, except in copies that hold it (MappedRegion::hold).
  virtual void on_unmap(const RemoteKey& key) = 0;
  // Reports that a send, put or get that was refused with kWouldBlock may be retried.
  virtual void on_writable() = 0;
  // Asks for the peer's receipt() of |stream|: the transport cannot tell a peer that does not read
  // from a path that is gone. The receipt comes by another path, and core passes it to resolve().
  // Until then the transport keeps waiting, and asks again.
  virtual void on_doubt(const StreamId& stream) = 0;
  // Reports that the connection broke. The endpoint no longer delivers or touches anything. |why|
  // names transport and reason.
  virtual void on_failed(const Status& why) = 0;

 protected:
  ~EndpointHandler() = default;
};

class Endpoint {
 public:
  // Closes the connection. After the return the endpoint no longer touches core's memory, and no
  // upcall follows. Core does not call it from inside an upcall of this endpoint.
  virtual ~Endpoint() = default;
  // Ends the peer's access to published regions over this connection. It may be called from inside
  // an upcall, unlike the destructor, which is the only call that follows. Without regions it does
  // nothing.
  virtual void close() HETCOMM_UNDER_BATON = 0;

  // Sets core's side, once, before anything is delivered.
  virtual void set_handler(EndpointHandler* handler) HETCOMM_UNDER_BATON = 0;
  // Says what this connection can do, which may be less than its transport can: no get where the
  // kernel forbids it. The answer does not change while the endpoint lives.
  virtual const Capabilities& capabilities() const HETCOMM_UNDER_BATON = 0;
  virtual EndpointAbilities abilities() HETCOMM_UNDER_BATON = 0;
  // Sends header and payload (at most max_payload_bytes) as one message, in order with the others.
  // Both are copied before it returns. kWouldBlock: there is no room, nothing was sent, and
  // on_writable will follow.
  virtual Code send(const MessageHeader& header, const ExtentView& payload) HETCOMM_UNDER_BATON = 0;
  // Says whether everything that was accepted has left.
  virtual bool flushed() const HETCOMM_UNDER_BATON = 0;
  // Bytes of messages and puts that count as sent, without confirmed arrival at the peer's host.
  virtual uint64_t unsent_bytes() const HETCOMM_UNDER_BATON { return 0; }
  // Says what became of the data, also after on_failed. A connection that loses nothing while the
  // peer lives need not override this.
  virtual Passage passage() const HETCOMM_UNDER_BATON { return Passage::kNothing; }
  // Explains to people why sent data has not arrived, as far as the transport knows. Empty: it
  // knows no reason. The call may make system calls.
  virtual std::string trouble() const HETCOMM_UNDER_BATON { return {}; }
  // Describes the connection in one line for people: addresses, mode, streams.
  virtual std::string describe() const HETCOMM_UNDER_BATON = 0;
};

// Core's side of one transport. The rules are those of EndpointHandler.
class TransportHandler {
 public:
  // Reports the outcome of connect(|destination|).
  virtual void on_connected(const Destination& destination,
                            Result<std::unique_ptr<Endpoint>> endpoint) = 0;
  // Hands over a connection that |peer| has made. The peer has proved its identity. If core does
  // not keep the endpoint, it is closed.
  virtual void on_accepted(int peer, std::unique_ptr<Endpoint> endpoint) = 0;

 protected:
  ~TransportHandler() = default;
};

// A network interface of this host that a transport may be bound to.
struct BoundNic {
  std::string interface;  // "eth0"; empty: it has no name
  std::string rdma_port;  // "mlx5_0:1"; empty: it has none
  bool has_address = false;
  // Another interface in use is in the same subnet, so routes do not tell them apart.
  bool shares_subnet = false;
  // The NUMA node near it, by the kernel's number.
  int numa_node = kAnyNumaNode;
};

// Everything that a transport is created with. The references outlive the transport.
struct TransportEnvironment {
  int rank = 0;
  int size = 1;
  // Secret and identity of the job. Its random id and the incarnations are known from
  // Transport::start() on.
  const Credentials& credentials;
  const Config& config;
  // Addresses of this host that may be used, best first; chosen once for all transports of a job.
  const ChosenInterfaces& interfaces;
  Log& log;
  // Watches the descriptors that wake the context.
  Poller& poller;
  // Coarse clock. The engine sets it while it makes progress.
  const uint64_t& now_ns;
  TransportHandler& handler;
  // Number of this transport among the factory's instances.
  size_t instance = 0;
  // The interface that it uses; null: it chooses.
  const BoundNic* nic = nullptr;
  // NUMA nodes near its memory: buffers that a network interface reads and writes, and memory that
  // other processes of this host fill for this rank to read.
  int buffer_node = kAnyNumaNode;
  int inside_node = kAnyNumaNode;
};

// The length of the sleep that the context begins. kShort is a small fraction of a millisecond. A
// transport may then leave out a costly fence, since a wake-up that is lost in a race with a peer's
// message costs no more than that.
enum class Sleep : uint8_t { kShort, kLong };

class Transport {
 public:
  virtual ~Transport() = default;

  // Says what connections of this transport can do at best. Core uses this to choose a path before
  // there is a connection.
  virtual const Capabilities& capabilities() const HETCOMM_UNDER_BATON = 0;
  virtual TransportAbilities abilities() HETCOMM_UNDER_BATON = 0;
  // Returns the bytes that a peer needs to connect to this process, at most 1 KiB. Ranks exchange
  // them when the communicator is created.
  virtual std::vector<std::byte> contact() const HETCOMM_UNDER_BATON = 0;
  // Reports that the environment's credentials are complete. From now on the transport checks
  // connecting peers against them. Core calls it once, before connect() and
  // RegionPublisher::publish().
  virtual Status start() HETCOMM_UNDER_BATON = 0;
  // Says whether the owner of |contact| (untrusted bytes) could be reached at all. The text says
  // why not. kOutOfResources: it may be reached later.
  virtual Status reach(ConstByteSpan contact) const HETCOMM_UNDER_BATON = 0;
  // Starts to connect to |destination|, whose contact() gave |contact|. on_connected follows
  // exactly once, after the call has returned, unless cancel_connect comes first. The transport has
  // its own time limit for it. Connects to several destinations of one rank may be in progress at
  // once.
  virtual void connect(const Destination& destination,
                       ConstByteSpan contact) HETCOMM_UNDER_BATON = 0;
  // Ends connect(|destination|). on_connected will not come.
  virtual void cancel_connect(const Destination& destination) HETCOMM_UNDER_BATON = 0;
  // Moves data and handles expired timers. Returns the number of things done; 0: there was nothing
  // to do.
  virtual int progress() HETCOMM_UNDER_BATON = 0;
  // Arranges that every arrival wakes the context, which is about to sleep on the poller. False:
  // there is work already, so it must not sleep. finish_sleep() follows in both cases. Until then
  // no one takes events from the poller, since these events may have to wake the sleeper.
  virtual bool prepare_sleep(Sleep sleep) HETCOMM_UNDER_BATON = 0;
  // Says whether the sleeper is also woken for things that calls of endpoints have begun since
  // prepare_sleep() returned true. False: someone has to finish the sleep and call progress().
  virtual bool may_sleep_on() const HETCOMM_UNDER_BATON = 0;
  // Ends prepare_sleep(), after a sleep or in place of one.
  virtual void finish_sleep() HETCOMM_UNDER_BATON = 0;
  // Returns the latest time at which progress() has to run; kForever: there is none.
  virtual uint64_t next_timer_ns() const HETCOMM_UNDER_BATON = 0;
};

class TransportFactory {
 public:
  virtual ~TransportFactory() = default;

  // Returns the name by which users and peers know the transport. It has at most 12 characters,
  // since '#' and the number of an instance may follow. Static storage.
  virtual std::string_view name() const = 0;
  // Says whether the transport can be used on this machine. The text says why not, or, with kOk,
  // what was found.
  virtual Status probe(const Config& config) const = 0;
  // Says whether a transport can be bound to |nic|, and the user has not excluded that. Where there
  // are several such interfaces each gets a transport of its own, and they share the load.
  virtual bool can_use(const Config& /*config*/, const BoundNic& /*nic*/) const { return false; }
  // Says whether its connections follow IP routes.
  virtual bool follows_routes() const { return false; }
  // Returns the number of transports for one job where no interfaces are known by name: as many as
  // the transport finds fit to share the load.
  virtual size_t instances(const Config& /*config*/) const { return 1; }
  // Makes a transport, with or without a preceding probe(). Where probe() fails, this fails for the
  // same reason.
  virtual Result<std::unique_ptr<Transport>> create(
      const TransportEnvironment& environment) const = 0;
};

}  // namespace hetcomm
