// Declares interfaces for the optional abilities of endpoints and transports.
//
// Endpoint::abilities() and Transport::abilities() return one pointer per ability, which is null if
// the ability is missing. The pointers do not change during the life of the endpoint or transport,
// so core caches them. Calls to these interfaces follow the rules in transport.h.
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

// Starts writes (puts) to memory that the peer has exposed, or has published as a region
// (Capabilities::regions).
class PutStarter {
 public:
  // Starts a put. Returns kOk if the put was accepted; on_bulk_complete then follows. Returns
  // kWouldBlock if the put was not started; on_writable then follows. Puts and messages are not
  // ordered with respect to each other.
  virtual Code put(Bulk& bulk) HETCOMM_UNDER_BATON = 0;
  // Cancels an accepted put. Once cancel() has returned, the put's local memory is no longer
  // accessed, and on_bulk_complete is not called. The peer may have received any part of the put.
  // Returns true if bytes in flight may still reach the peer's memory. In that case the connection
  // breaks, and on_failed follows.
  virtual bool cancel(Bulk& bulk) HETCOMM_UNDER_BATON = 0;

 protected:
  ~PutStarter() = default;
};

// Starts reads (gets) from the peer's memory. The rules of PutStarter apply.
class GetStarter {
 public:
  virtual Code get(Bulk& bulk) HETCOMM_UNDER_BATON = 0;
  virtual bool cancel(Bulk& bulk) HETCOMM_UNDER_BATON = 0;

 protected:
  ~GetStarter() = default;
};

class ImmediateReader {
 public:
  // Reads |bulk| before it returns. No upcall follows. Core reads at most a few hundred KiB at a
  // time in this way, possibly from inside an upcall. Returns kCancelled if the peer has revoked
  // the key.
  virtual Code get_now(Bulk& bulk) HETCOMM_UNDER_BATON = 0;

 protected:
  ~ImmediateReader() = default;
};

// Gives the peer access to memory of this process.
class MemoryExposer {
 public:
  // Lets the peer write to |extents| (kPutTarget, requires Capabilities::put) or read from them
  // (kGetSource, requires Capabilities::get). The memory must stay valid until revoke() or
  // release(). The list itself must be valid only during the call. on_put reports |cookie|.
  virtual Result<RemoteKey> expose(Extents extents, Access access,
                                   uint64_t cookie) HETCOMM_UNDER_BATON = 0;
  // Ends the peer's access before it returns. The transport drops bytes that arrive from the peer
  // afterwards, and the peer discards bytes that it reads afterwards. If a transport can end the
  // access only by breaking the connection, it does so, and on_failed follows.
  virtual void revoke(const RemoteKey& key) HETCOMM_UNDER_BATON = 0;
  // Releases a key that the peer no longer uses: either all of its puts were reported, or the
  // peer's core has confirmed that it has read everything. A transport can keep the memory
  // registered for the next use, or revoke the key.
  virtual void release(const RemoteKey& key) HETCOMM_UNDER_BATON = 0;

 protected:
  ~MemoryExposer() = default;
};

class RegionMapper {
 public:
  // Starts to map the peer's region |key| of |length| bytes into this process. on_mapped follows
  // unless the connection breaks first. on_mapped reports an error if the region has a different
  // length. Core maps each key only once.
  virtual void map(const RemoteKey& key, uint64_t length) HETCOMM_UNDER_BATON = 0;

 protected:
  ~RegionMapper() = default;
};

// Receives the peer's answer to EndpointHandler::on_doubt. Every endpoint that calls on_doubt has
// this ability.
class DoubtResolver {
 public:
  // Reports the result of the peer's ReceiptSource::receipt() for |stream|. If it proves that the
  // path is broken, the connection fails after the call, and on_failed follows.
  virtual void resolve(const StreamId& stream, const PathReceipt& receipt) HETCOMM_UNDER_BATON = 0;

 protected:
  ~DoubtResolver() = default;
};

// The abilities of an endpoint. A pointer other than |doubts| is non-null if and only if the
// endpoint has one of the capabilities in its comment. The pointers are valid as long as the
// endpoint exists.
struct EndpointAbilities {
  PutStarter* puts = nullptr;                 // Capabilities::put or regions
  GetStarter* gets = nullptr;                 // Capabilities::get or regions
  ImmediateReader* immediate_gets = nullptr;  // Capabilities::gets_now
  MemoryExposer* exposer = nullptr;           // Capabilities::put or get
  RegionMapper* mapper = nullptr;             // Capabilities::map
  DoubtResolver* doubts = nullptr;            // has no corresponding capability
};

// --- abilities of a transport ----------------------------------------------------------------

// Publishes memory that peers can access at any time. Transports with Capabilities::regions or
// Capabilities::map have this ability.
class RegionPublisher {
 public:
  // Gives the members of |region| access to it over all present and future connections of this
  // transport. They use the returned key for put and get (Capabilities::regions) or for mapping
  // (Capabilities::map). Fails with kUnsupported if the transport cannot grant this access.
  virtual Result<RemoteKey> publish(const Region& region) HETCOMM_UNDER_BATON = 0;
  // Withdraws a region. No further peer gets access to it, and its file is no longer used. Returns
  // true once no peer can access the region. Operations in flight to it then fail. Returns false if
  // peers have been asked to unmap the region and have not done so yet. Core then has to call
  // withdraw() again.
  virtual bool withdraw(const RemoteKey& key) HETCOMM_UNDER_BATON = 0;

 protected:
  ~RegionPublisher() = default;
};

// HangingCopy describes a device copy that did not complete in time. The copy may still access
// |bytes| bytes at |host|, so this memory is never freed. The receiver of this object must release
// |event| when the copy has completed.
struct HangingCopy {
  void* event = nullptr;  // null: no copy is hanging
  const void* host = nullptr;
  uint64_t bytes = 0;
};

// Lets connections access device memory directly. Transports with Capabilities::device_memory have
// this ability.
class DeviceAttacher {
 public:
  // Determines whether connections can access the memory of |device| without copies through the
  // host. The transport tests this by writing bytes to the memory and reading them back. The text
  // of the status gives the outcome of each method that was tried. kOutOfResources means that a
  // later test may have another outcome.
  //
  // The call usually blocks for milliseconds. If hardware does not respond, it blocks for 0.1 s per
  // method, or 0.5 s with HETCOMM_DEVICE_PATH=direct. If a device copy does not complete, the call
  // blocks for seconds and describes the copy in |*hanging|. Core calls this before it attaches the
  // first memory of |device|, possibly from inside an upcall.
  virtual Status check_device(const Device& device, HangingCopy* hanging) HETCOMM_UNDER_BATON = 0;
  // Makes extents and regions that use the range's placeholder addresses refer to the range's
  // device memory, which must stay valid until detach(). Core calls this only for devices for which
  // check_device() has returned OK.
  virtual Status attach(const DeviceRange& range) HETCOMM_UNDER_BATON = 0;
  // Detaches the range whose placeholder is |placeholder|. Once detach() has returned, the range's
  // memory is no longer accessed.
  virtual void detach(const std::byte* placeholder) HETCOMM_UNDER_BATON = 0;

 protected:
  ~DeviceAttacher() = default;
};

// Reports how much data has been received on a stream. Transports whose endpoints call on_doubt
// have this ability.
class ReceiptSource {
 public:
  // Sets |*out| to the amount of data that this process has received on |stream| of a connection to
  // |peer|. Returns false if the stream does not exist. [any-thread], concurrently with all other
  // calls.
  virtual bool receipt(int peer, const StreamId& stream, PathReceipt* out) const = 0;

 protected:
  ~ReceiptSource() = default;
};

// The abilities of a transport. A pointer other than |receipts| is non-null if and only if the
// transport has one of the capabilities in its comment. The pointers are valid as long as the
// transport exists.
struct TransportAbilities {
  RegionPublisher* regions = nullptr;       // Capabilities::regions or map
  DeviceAttacher* devices = nullptr;        // Capabilities::device_memory
  const ReceiptSource* receipts = nullptr;  // has no corresponding capability
};

}  // namespace hetcomm
