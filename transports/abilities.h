// Declares the interfaces for abilities that only some transports have.
//
// An Endpoint and a Transport return them as pointers. A pointer is null if the ability is missing.
// It does not change during the life of the endpoint or transport, so core requests it once and
// caches it. Calls follow the rules in transport.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "devices/device.h"
#include "src/base/baton_role.h"
#include "src/base/span.h"
#include "src/base/status.h"
#include "transports/types.h"

namespace hetcomm {

// --- abilities of an endpoint ----------------------------------------------------------------

// Starts writes to memory that the peer has exposed, or has published (Capabilities::regions).
class PutStarter {
 public:
  // Starts a put. kOk: the put was accepted, and on_bulk_complete follows. kWouldBlock: nothing was
  // started, and on_writable follows. Puts and messages are not ordered with respect to each other.
  virtual Code put(Bulk& bulk) HETCOMM_UNDER_BATON = 0;
  // Cancels an accepted put. Once cancel() has returned, the put's local memory is no longer
  // accessed and on_bulk_complete is not called. The peer may have received any part of the put.
  // Returns true if bytes in flight to a region may still arrive. The connection then breaks, and
  // on_failed follows.
  virtual bool cancel(Bulk& bulk) HETCOMM_UNDER_BATON = 0;

 protected:
  ~PutStarter() = default;
};

// Starts reads from the peer's memory. The rules of PutStarter apply.
class GetStarter {
 public:
  virtual Code get(Bulk& bulk) HETCOMM_UNDER_BATON = 0;
  virtual bool cancel(Bulk& bulk) HETCOMM_UNDER_BATON = 0;

 protected:
  ~GetStarter() = default;
};

class ImmediateReader {
 public:
  // Reads at most a few hundred KiB. The read is complete on return, and no upcall follows. Can be
  // called from inside an upcall. kCancelled: the peer has revoked the key.
  virtual Code get_now(Bulk& bulk) HETCOMM_UNDER_BATON = 0;

 protected:
  ~ImmediateReader() = default;
};

// Lets the peer use memory of this process.
class MemoryExposer {
 public:
  // Lets the peer write to |extents| (kPutTarget, with Capabilities::put) or read from them
  // (kGetSource, with Capabilities::get). Their memory must stay valid until revoke() or release().
  // The list itself need be valid only during the call. on_put reports |cookie|.
  virtual Result<RemoteKey> expose(Extents extents, Access access,
                                   uint64_t cookie) HETCOMM_UNDER_BATON = 0;
  // Ends the peer's access before it returns. The transport drops bytes that the peer still sends,
  // and the peer discards bytes that it still reads. A transport that can end the access only by
  // breaking the connection does so, and on_failed follows.
  virtual void revoke(const RemoteKey& key) HETCOMM_UNDER_BATON = 0;
  // Releases a key that the peer has finished using: all puts were reported, or the peer's core has
  // confirmed that it has read everything. A transport can rely on that and keep the memory
  // reachable for the next use. A transport that does not keep the memory revokes the key.
  virtual void release(const RemoteKey& key) HETCOMM_UNDER_BATON = 0;

 protected:
  ~MemoryExposer() = default;
};

class RegionMapper {
 public:
  // Requests that region |key| of the peer, which has |length| bytes, be mapped into this process.
  // on_mapped follows unless the connection breaks first. A region of a different length is not
  // mapped. Core requests each key only once.
  virtual void map(const RemoteKey& key, uint64_t length) HETCOMM_UNDER_BATON = 0;

 protected:
  ~RegionMapper() = default;
};

// Receives the peer's answer to on_doubt. Every endpoint that calls on_doubt has this ability.
class DoubtResolver {
 public:
  // Passes on the peer's receipt() for |stream|. If the receipt proves that the path is broken, the
  // connection fails later in the usual way.
  virtual void resolve(const StreamId& stream, const PathReceipt& receipt) HETCOMM_UNDER_BATON = 0;

 protected:
  ~DoubtResolver() = default;
};

// Each pointer is non-null exactly if the endpoint has one of the capabilities in its comment. It
// is valid as long as the endpoint exists.
struct EndpointAbilities {
  PutStarter* puts = nullptr;                 // Capabilities::put or regions
  GetStarter* gets = nullptr;                 // Capabilities::get or regions
  ImmediateReader* immediate_gets = nullptr;  // Capabilities::gets_now
  MemoryExposer* exposer = nullptr;           // Capabilities::put or get
  RegionMapper* mapper = nullptr;             // Capabilities::map
  DoubtResolver* doubts = nullptr;            // no capability announces this ability
};

// --- abilities of a transport ----------------------------------------------------------------

// Publishes memory that peers can reach at any time. Transports with Capabilities::regions or ::map
// have this ability.
class RegionPublisher {
 public:
  // Lets every member of |region| that is or becomes connected over this transport access the
  // region with the returned key: by put and get (Capabilities::regions) or by mapping
  // (Capabilities::map). kUnsupported: the transport cannot grant these rights.
  virtual Result<RemoteKey> publish(const Region& region) HETCOMM_UNDER_BATON = 0;
  // Withdraws a region. No further peer receives it, and its file is no longer used. Returns true
  // once no peer can reach the region; operations in flight to it then fail. Returns false if peers
  // have been asked to unmap it. Core then has to call again.
  virtual bool withdraw(const RemoteKey& key) HETCOMM_UNDER_BATON = 0;

 protected:
  ~RegionPublisher() = default;
};

// HangingCopy describes a device copy that did not complete in time. The copy may still access
// |bytes| bytes at |host|, so they are never freed. The holder of this object releases |event| when
// the copy has completed.
struct HangingCopy {
  void* event = nullptr;  // null: no copy is hanging
  const void* host = nullptr;
  uint64_t bytes = 0;
};

// Makes device memory directly reachable for connections. Transports with
// Capabilities::device_memory have this ability.
class DeviceAttacher {
 public:
  // Determines whether connections can reach the memory of |device| without copies through the
  // host. The transport tests this: memory is reachable if bytes written to it can be read back.
  // The text states for each method how it works or why it does not. OUT_OF_RESOURCES: a later test
  // may give another result. The call usually blocks for milliseconds. If hardware does not answer,
  // it blocks for 0.1 s per method, or 0.5 s with HETCOMM_DEVICE_PATH=direct. If a device copy does
  // not complete, it blocks for seconds and sets |*hanging| to that copy. Core calls this before it
  // attaches the first memory of |device|, possibly from inside an upcall.
  virtual Status check_device(const Device& device, HangingCopy* hanging) HETCOMM_UNDER_BATON = 0;
  // Makes extents and regions inside the range's placeholder refer to the range's memory, which
  // must stay valid until detach(). Core calls this only for devices that check_device() has found
  // reachable.
  virtual Status attach(const DeviceRange& range) HETCOMM_UNDER_BATON = 0;
  // Ends the use of the range. Once detach() has returned, the transport no longer accesses the
  // memory.
  virtual void detach(const std::byte* placeholder) HETCOMM_UNDER_BATON = 0;

 protected:
  ~DeviceAttacher() = default;
};

// Reports how much data has been received. Transports whose endpoints call on_doubt have this
// ability.
class ReceiptSource {
 public:
  // Reports how much data this process has received on |stream| of a connection to |peer|. Returns
  // false if the stream does not exist. [any-thread], concurrently with all other calls.
  virtual bool receipt(int peer, const StreamId& stream, PathReceipt* out) const = 0;

 protected:
  ~ReceiptSource() = default;
};

// Each pointer is non-null exactly if the transport has one of the capabilities in its comment. It
// is valid as long as the transport exists.
struct TransportAbilities {
  RegionPublisher* regions = nullptr;       // Capabilities::regions or map
  DeviceAttacher* devices = nullptr;        // Capabilities::device_memory
  const ReceiptSource* receipts = nullptr;  // no capability announces this ability
};

}  // namespace hetcomm
