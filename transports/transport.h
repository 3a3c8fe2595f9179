// The one interface that all transports implement and that core knows.
//
// A transport moves bytes between this process and one peer. It knows nothing of tags, matching,
// ordering across connections, retries or the copies of devices: those are core's. Every call and
// every upcall happens under the context's progress baton, so no transport needs a lock of its own;
// none may block.
//
//   TransportFactory  probe: usable here, or why not; create: one Transport per communicator mesh
//   Transport         descriptor, start, reach, connect, progress, sleep
//   Endpoint          one connection to one peer (a "rail"): message, put, get, expose, revoke
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

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "devices/device.h"
#include "src/base/config.h"
#include "src/base/log.h"
#include "src/base/span.h"
#include "src/base/status.h"
#include "src/net/address.h"
#include "src/net/credentials.h"
#include "src/net/poller.h"

namespace hetcomm {

// Core's header of a message; opaque to transports, carried as it is.
inline constexpr size_t kHeaderBytes = 32;
using MessageHeader = std::array<std::byte, kHeaderBytes>;

// |length| bytes from |offset| on of a list of pieces of host memory, or of the windows of attached
// device memory (DeviceRange). The list outlives its use.
struct SegmentView {
  Segments segments;
  uint64_t offset = 0;
  uint64_t length = 0;
};

// Names memory that the other side exposed; made by its expose(), travels inside core's messages.
// All-zero means none. Its meaning is the transport's; a receiver treats a key from the wire as
// hostile.
struct RemoteKey {
  std::array<uint64_t, 3> words{};
  // Word by word: the array's own comparison is a call.
  bool operator==(const RemoteKey& other) const {
    return words[0] == other.words[0] && words[1] == other.words[1] && words[2] == other.words[2];
  }
};

enum class Access : uint8_t { kPutTarget, kGetSource };

// Memory of this process that |members| may reach at any time, until it is withdrawn.
struct Region {
  std::byte* address = nullptr;
  uint64_t length = 0;
  bool writable = false;  // by put
  bool readable = false;  // by get
  bool atomic = false;    // where it is mapped: by the processor's atomic instructions
  // The file that |address| is a mapping of, from |file_offset| on, where there is one: other
  // processes may map it too. Stays open until withdraw().
  int file = -1;
  uint64_t file_offset = 0;
  // By rank: whether the region is for it. A transport that hands memory over to single peers asks
  // this first. One whose keys work for all peers alike relies on who is told the key.
  std::vector<bool> members;

  bool is_for(int rank) const {
    const auto index = static_cast<size_t>(rank);
    return index < members.size() && members[index];
  }
};

// Memory of a device that connections shall reach by themselves. In segments and regions |window|
// stands for it: addresses of this process at which nothing lies, so that whoever touches them by
// mistake faults.
struct DeviceRange {
  Device device;
  const void* address = nullptr;
  uint64_t length = 0;
  std::byte* window = nullptr;
};

// Where a region of the peer lies in this process, to be read and written. Only regions that grant
// every access are mapped.
struct MappedRegion {
  std::byte* address = nullptr;
  uint64_t length = 0;
};

// What an endpoint's transport can do. Data, asked before use.
struct Capabilities {
  bool put = false;
  bool get = false;
  bool gets_now = false;     // get_now() works, and takes about as long as copying the bytes does
  bool prefers_get = false;  // where both are possible; else whichever is measured to be faster
  // The target's endpoint reports each put with on_put; otherwise the initiator has to say when all
  // is there.
  bool target_sees_put = false;
  // A put completes at the initiator as soon as the source was read; the data will arrive unless
  // the peer dies. False: it may still be lost with the connection while the peer lives.
  bool lossless = false;
  // Put and get reach regions (Transport::publish) as well, without the target's help. Such a put
  // completes when its bytes are in place, and is not reported to the target.
  bool regions = false;
  // Memory of devices can be attached (Transport::attach), where check_device() says so.
  bool device_memory = false;
  // Regions with a file can be mapped (Endpoint::map).
  bool map = false;
  // Nobody on the way can read or change what it sends: it does not leave the host, or it is
  // encrypted and both ends have proved who they are. HETCOMM_REQUIRE_TLS refuses others.
  bool protected_in_transit = false;
  // Connects ranks of one host only.
  bool within_host = false;
  uint32_t max_exposed_segments = UINT32_MAX;  // of one expose()
  uint32_t max_payload_bytes = 0;              // of one message
  uint64_t eager_limit_bytes = 0;              // messages up to this size are better sent at once
  uint64_t chunk_bytes = 0;                    // good size of one put or get
  uint32_t latency_ns = 0;                     // estimates, for the choice of path
  uint64_t bandwidth_bytes_per_s = 0;
};

// One put or get. Owned by core; it and the memory it names stay until on_bulk_complete or until
// cancel() or the endpoint's destruction has returned. |next| and |scratch| belong to the transport
// meanwhile.
struct Bulk {
  SegmentView local;
  RemoteKey key;
  uint64_t remote_offset = 0;
  bool high_priority = false;
  Bulk* next = nullptr;
  std::array<uint64_t, 4> scratch{};
};

// One stream of a connection, named alike by both sides.
struct StreamId {
  std::array<std::byte, 16> connection{};
  uint8_t index = 0;
  bool operator==(const StreamId& other) const = default;
};
// What has arrived at the receiving end of a stream.
struct PathReceipt {
  uint64_t asked_ns = 0;        // by the clock of who asked; the answer is as old as that
  uint64_t received_bytes = 0;  // by the kernel, since the beginning
  bool full = false;            // the process leaves them unread, and the kernel takes no more
};

class Endpoint;

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
  virtual void on_mapped(const RemoteKey& /*key*/, const Result<MappedRegion>& /*mapped*/) {}
  // The peer takes it back: on return it is not touched any more.
  virtual void on_unmap(const RemoteKey& /*key*/) {}
  // A send or put that was refused with kWouldBlock may be tried again.
  virtual void on_writable() = 0;
  // The transport cannot tell whether the peer does not read |stream| or its path is gone. The
  // peer's receipt() says which, and comes by another path. Until resolve() tells it, the transport
  // goes on waiting, and asks again.
  virtual void on_doubt(const StreamId& /*stream*/) {}
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
  // The peer reaches published regions over it no more, from now on. Unlike the destructor, which
  // is all that follows, also from inside of an upcall.
  virtual void close() {}

  virtual void set_handler(EndpointHandler* handler) = 0;
  // What this connection can do; may be less than the transport's (no get where the kernel forbids
  // it).
  virtual const Capabilities& capabilities() const = 0;
  // Sends header and payload (at most max_payload_bytes) as one message, in order with the others.
  // Both are copied before it returns. kWouldBlock: no room; nothing was sent, on_writable will
  // follow.
  virtual Code send(const MessageHeader& header, const SegmentView& payload) = 0;
  // Starts writing to, or reading from, exposed memory of the peer. kOk: accepted, on_bulk_complete
  // follows. kWouldBlock as for send. Puts and messages are not ordered with each other.
  virtual Code put(Bulk& bulk) = 0;
  virtual Code get(Bulk& bulk) = 0;
  // A get that is over on return, of at most a few hundred KiB. kCancelled: the peer has revoked the
  // key. Also from inside of an upcall; none follows.
  virtual Code get_now(Bulk& /*bulk*/) { return Code::kUnsupported; }
  // Lets the peer write (kPutTarget) or read (kGetSource) |segments|, which stay valid until
  // revoke. The segment list itself is copied if needed. |cookie| comes back in on_put.
  virtual Result<RemoteKey> expose(Segments segments, Access access, uint64_t cookie) = 0;
  // On return the peer's access has ended: what it still sends is dropped, what it still reads it
  // discards. A transport that can end it only together with the connection does that; on_failed
  // follows.
  virtual void revoke(const RemoteKey& key) = 0;
  // The same, after the peer has made its last use of the key: all puts were reported, or its core
  // has said that it has read all. A transport may rely on that, and keep what the key names
  // reachable for the next time.
  virtual void release(const RemoteKey& key) { revoke(key); }
  // Asks for region |key| of the peer, of |length| bytes, to be mapped into this process; on_mapped
  // follows, unless the connection breaks first. A region of another length is not mapped. Once per
  // key.
  virtual void map(const RemoteKey& /*key*/, uint64_t /*length*/) {}
  // Takes back an accepted put or get. On return its local memory is quiet; on_bulk_complete will
  // not come. The peer may or may not have received (part of) it. True: what is under way to a
  // region may still arrive, so the connection breaks; on_failed follows.
  virtual bool cancel(Bulk& bulk) = 0;
  // What the peer's receipt() says of |stream|. A connection that this proves to be cut breaks,
  // later, as any other.
  virtual void resolve(const StreamId& /*stream*/, const PathReceipt& /*receipt*/) {}
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
  // What a peer needs to connect to this process; at most 1 KiB. Exchanged when the communicator is
  // created.
  virtual std::vector<std::byte> descriptor() const = 0;
  // The environment's credentials are complete: peers that connect are judged by them from now on.
  // Once, before connect() and publish().
  virtual Status start() = 0;
  // Whether the owner of |descriptor| (untrusted bytes) could be reached at all; the text says why
  // not. Does not block.
  virtual Status reach(ConstByteSpan descriptor) const = 0;
  // Starts connecting; on_connected follows exactly once, later, unless cancel_connect came first.
  // Has its own time limit.
  virtual void connect(int peer, ConstByteSpan descriptor) = 0;
  virtual void cancel_connect(int peer) = 0;
  // Lets every member of |region| that is, or gets, connected over this transport put to it and get
  // from it with the key. kUnsupported: this transport cannot, or not with these rights.
  virtual Result<RemoteKey> publish(const Region& /*region*/) { return Status(Code::kUnsupported); }
  // True when no peer reaches the region any more, and what they had under way there fails. False:
  // they have been told to let go; to be asked again.
  virtual bool withdraw(const RemoteKey& /*key*/) { return true; }
  // With Capabilities::device_memory: whether connections reach memory of |device| without copies
  // through the host. It is tried: memory counts as reachable when what was written to it has been
  // read back. The text says how, or why not, of each way. Blocks, for a few seconds at most, and
  // belongs before the first connection.
  virtual Status check_device(const Device& /*device*/) { return Status(Code::kUnsupported); }
  // From now on segments and regions inside of the range's window mean its memory, which stays
  // until detach(). Of devices that check_device() has found reachable.
  virtual Status attach(const DeviceRange& /*range*/) { return Status(Code::kUnsupported); }
  // Nothing of it is in use any more; on return the memory is not reached.
  virtual void detach(const std::byte* /*window*/) {}
  // What has arrived here on |stream| of a connection to |peer|. False: there is none, or the
  // transport asks no doubts. [any-thread], beside all other calls.
  virtual bool receipt(int /*peer*/, const StreamId& /*stream*/, PathReceipt* /*out*/) const {
    return false;
  }
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
