// Abilities that some transports have and others lack, in interfaces of their own.
//
// An Endpoint and a Transport hand them out as pointers. A pointer is null where the ability is
// missing. It stays the same for the life of the endpoint or transport, so core asks for it once
// and keeps it. The rules for calls are those of transport.h.
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

// Writes to memory that the peer has exposed, or published with Capabilities::regions.
class PutStarter {
 public:
  // Starts a put. kOk: accepted, and on_bulk_complete follows. kWouldBlock: nothing was started,
  // and on_writable will follow. Puts and messages are not ordered with each other.
  virtual Code put(Bulk& bulk) HETCOMM_UNDER_BATON = 0;
  // Takes back an accepted put. On return its local memory is quiet, and on_bulk_complete will not
  // come. The peer may have received any part of it. True: bytes in flight to a region may still
  // arrive, so the connection breaks, and on_failed follows.
  virtual bool cancel(Bulk& bulk) HETCOMM_UNDER_BATON = 0;

 protected:
  ~PutStarter() = default;
};

// Starts reading memory of the peer, by the rules of PutStarter.
class GetStarter {
 public:
  virtual Code get(Bulk& bulk) HETCOMM_UNDER_BATON = 0;
  virtual bool cancel(Bulk& bulk) HETCOMM_UNDER_BATON = 0;

 protected:
  ~GetStarter() = default;
};

class ImmediateReader {
 public:
  // Reads at most a few hundred KiB. The read is complete on return, and no upcall follows. It may
  // be called from inside an upcall. kCancelled: the peer has revoked the key.
  virtual Code get_now(Bulk& bulk) HETCOMM_UNDER_BATON = 0;

 protected:
  ~ImmediateReader() = default;
};

// Lets the peer use memory of this process.
class MemoryExposer {
 public:
  // Lets the peer write (kPutTarget, with Capabilities::put) or read (kGetSource, with
  // Capabilities::get) |extents|, which stay valid until revoke or release. The list of extents is
  // valid during the call only. on_put passes |cookie| back.
  virtual Result<RemoteKey> expose(Extents extents, Access access,
                                   uint64_t cookie) HETCOMM_UNDER_BATON = 0;
  // Ends the peer's access before it returns: the transport drops the bytes that the peer still
  // sends, and the peer discards those that it still reads. A transport that can end the access
  // only together with the connection does that, and on_failed follows.
  virtual void revoke(const RemoteKey& key) HETCOMM_UNDER_BATON = 0;
  // Returns a key that the peer has used for the last time: all puts were reported, or its core has
  // said that it has read everything. A transport may rely on that, and keep the memory reachable
  // for the next use. A transport that does not keep it revokes the key.
  virtual void release(const RemoteKey& key) HETCOMM_UNDER_BATON = 0;

 protected:
  ~MemoryExposer() = default;
};

class RegionMapper {
 public:
  // Asks for region |key| of the peer, of |length| bytes, to be mapped into this process. on_mapped
  // follows unless the connection breaks first. A region of another length is not mapped. Core asks
  // once per key.
  virtual void map(const RemoteKey& key, uint64_t length) HETCOMM_UNDER_BATON = 0;

 protected:
  ~RegionMapper() = default;
};

// Endpoints that call on_doubt have this.
class DoubtResolver {
 public:
  // Passes on the peer's receipt() of |stream|. If it proves that the connection is cut, the
  // connection breaks later in the usual way.
  virtual void resolve(const StreamId& stream, const PathReceipt& receipt) HETCOMM_UNDER_BATON = 0;

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
  // Lets every member of |region| that is or becomes connected over this transport put to it and
  // get from it with the key. kUnsupported: the transport cannot grant these rights.
  virtual Result<RemoteKey> publish(const Region& region) HETCOMM_UNDER_BATON = 0;
  // Withdraws a region: no further peer gets it, and its file is no longer used. True: no peer
  // reaches it either, and operations in flight to it fail. False: the peers have been told to let
  // go, and core has to ask again.
  virtual bool withdraw(const RemoteKey& key) HETCOMM_UNDER_BATON = 0;

 protected:
  ~RegionPublisher() = default;
};

// A copy of a device that has not ended in time. It may touch |bytes| bytes at |host|, which are
// kept permanently. The holder releases |event| when the copy has completed.
struct HangingCopy {
  void* event = nullptr;  // null: no event
  const void* host = nullptr;
  uint64_t bytes = 0;
};

// Memory of devices that connections reach directly. With Capabilities::device_memory.
class DeviceAttacher {
 public:
  // Says whether connections reach memory of |device| without copies through the host. The
  // transport tries it: memory is reachable if bytes that were written to it are read back. The
  // text says for each way how it works or why not. OUT_OF_RESOURCES: a later trial may end
  // differently. The call blocks for milliseconds, or for 0.1 s per way where hardware does not
  // answer. It blocks for seconds where a copy of the device does not end; |*hanging| is then that
  // copy. Core makes the call before the first memory of |device| is attached, also from inside
  // upcalls.
  virtual Status check_device(const Device& device, HangingCopy* hanging) HETCOMM_UNDER_BATON = 0;
  // From now on extents and regions inside the range's placeholder mean its memory, which stays
  // until detach(). Core calls it only for devices that check_device() has found reachable.
  virtual Status attach(const DeviceRange& range) HETCOMM_UNDER_BATON = 0;
  // Core no longer uses the range. After the return the transport no longer reaches the memory.
  virtual void detach(const std::byte* placeholder) HETCOMM_UNDER_BATON = 0;

 protected:
  ~DeviceAttacher() = default;
};

// Transports whose endpoints call on_doubt have this.
class ReceiptSource {
 public:
  // Reports how much has arrived here on |stream| of a connection to |peer|. False: there is no
  // such stream. [any-thread], concurrently with all other calls.
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
