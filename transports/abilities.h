// What some transports can do and others cannot, in interfaces of their own.
//
// An Endpoint and a Transport hand them out as pointers. A pointer is null where the ability is
// missing, and is the same, and valid, for the life of the endpoint or transport. Whoever uses an
// ability keeps the pointer and does not ask for it again at each operation. The rules for calls
// are those of transport.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "devices/device.h"
#include "src/base/span.h"
#include "src/base/status.h"
#include "transports/types.h"

namespace hetcomm {

// --- abilities of an endpoint ----------------------------------------------------------------

// Starts writing to memory of the peer that it has exposed, or published where
// Capabilities::regions.
class PutStarter {
 public:
  // kOk: accepted, on_bulk_complete follows. kWouldBlock as for Endpoint::send. Puts and messages
  // are not ordered with each other.
  virtual Code put(Bulk& bulk) = 0;
  // Takes back an accepted put. On return its local memory is quiet; on_bulk_complete will not
  // come. The peer may or may not have received (part of) it. True: what is under way to a region
  // may still arrive, so the connection breaks; on_failed follows.
  virtual bool cancel(Bulk& bulk) = 0;

 protected:
  ~PutStarter() = default;
};

// Starts reading memory of the peer, by the rules of PutStarter.
class GetStarter {
 public:
  virtual Code get(Bulk& bulk) = 0;
  virtual bool cancel(Bulk& bulk) = 0;

 protected:
  ~GetStarter() = default;
};

class ImmediateReader {
 public:
  // A get that is over on return, of at most a few hundred KiB. kCancelled: the peer has revoked
  // the key. Also from inside of an upcall; none follows.
  virtual Code get_now(Bulk& bulk) = 0;

 protected:
  ~ImmediateReader() = default;
};

// Lets the peer use memory of this process.
class MemoryExposer {
 public:
  // Lets the peer write (kPutTarget, with Capabilities::put) or read (kGetSource, with
  // Capabilities::get) |segments|, which stay valid until revoke. The segment list itself is copied
  // if needed. |cookie| comes back in on_put.
  virtual Result<RemoteKey> expose(Segments segments, Access access, uint64_t cookie) = 0;
  // On return the peer's access has ended: what it still sends is dropped, what it still reads it
  // discards. A transport that can end it only together with the connection does that; on_failed
  // follows.
  virtual void revoke(const RemoteKey& key) = 0;
  // The same, after the peer has made its last use of the key: all puts were reported, or its core
  // has said that it has read all. A transport may rely on that, and keep what the key names
  // reachable for the next time. One that has no use for it revokes the key.
  virtual void release(const RemoteKey& key) = 0;

 protected:
  ~MemoryExposer() = default;
};

class RegionMapper {
 public:
  // Asks for region |key| of the peer, of |length| bytes, to be mapped into this process; on_mapped
  // follows, unless the connection breaks first. A region of another length is not mapped. Once per
  // key.
  virtual void map(const RemoteKey& key, uint64_t length) = 0;

 protected:
  ~RegionMapper() = default;
};

// For endpoints that ask by on_doubt.
class DoubtResolver {
 public:
  // What the peer's receipt() says of |stream|. A connection that this proves to be cut breaks,
  // later, as any other.
  virtual void resolve(const StreamId& stream, const PathReceipt& receipt) = 0;

 protected:
  ~DoubtResolver() = default;
};

// Each pointer is set exactly where the endpoint's capabilities say so, and is valid as long as the
// endpoint.
struct EndpointAbilities {
  PutStarter* puts = nullptr;                 // put, or regions
  GetStarter* gets = nullptr;                 // get, or regions
  ImmediateReader* immediate_gets = nullptr;  // gets_now
  MemoryExposer* exposer = nullptr;           // put, or get
  RegionMapper* mapper = nullptr;             // map
  DoubtResolver* doubts = nullptr;            // no capability tells of it
};

// --- abilities of a transport ----------------------------------------------------------------

// Memory that peers reach at any time. With Capabilities::regions or ::map.
class RegionPublisher {
 public:
  // Lets every member of |region| that is, or gets, connected over this transport put to it and get
  // from it with the key. kUnsupported: this transport cannot grant these rights.
  virtual Result<RemoteKey> publish(const Region& region) = 0;
  // True when no peer reaches the region any more, and what they had under way there fails. False:
  // they have been told to let go; to be asked again.
  virtual bool withdraw(const RemoteKey& key) = 0;

 protected:
  ~RegionPublisher() = default;
};

// Memory of devices that connections reach by themselves. With Capabilities::device_memory.
class DeviceAttacher {
 public:
  // Whether connections reach memory of |device| without copies through the host. It is tried:
  // memory counts as reachable when what was written to it has been read back. The text says how,
  // or why not, of each way. Blocks, for a few seconds at most, and belongs before the first
  // connection.
  virtual Status check_device(const Device& device) = 0;
  // From now on segments and regions inside of the range's window mean its memory, which stays
  // until detach(). Only for devices that check_device() has found reachable.
  virtual Status attach(const DeviceRange& range) = 0;
  // Core uses nothing of the range any more. On return the memory is not reached.
  virtual void detach(const std::byte* window) = 0;

 protected:
  ~DeviceAttacher() = default;
};

// For transports whose endpoints ask by on_doubt.
class ReceiptSource {
 public:
  // What has arrived here on |stream| of a connection to |peer|. False: there is none.
  // [any-thread], beside all other calls.
  virtual bool receipt(int peer, const StreamId& stream, PathReceipt* out) const = 0;

 protected:
  ~ReceiptSource() = default;
};

// Each pointer is set exactly where the transport's capabilities say so, and is valid as long as
// the transport.
struct TransportAbilities {
  RegionPublisher* regions = nullptr;       // regions, or map
  DeviceAttacher* devices = nullptr;        // device_memory
  const ReceiptSource* receipts = nullptr;  // no capability tells of it
};

}  // namespace hetcomm
