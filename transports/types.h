// Defines the types that the transport interfaces use: extents, keys, regions, capabilities, bulks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "devices/device.h"
#include "src/base/span.h"

namespace hetcomm {

// Core's header of a message. A transport carries it unchanged without interpreting it.
inline constexpr size_t kHeaderBytes = 32;
using MessageHeader = std::array<std::byte, kHeaderBytes>;

// The target of a connection: a rank, and one of its transports of the same kind.
struct Destination {
  int rank = 0;
  size_t transport = 0;  // index among the peer's transports of this kind
  bool operator==(const Destination&) const = default;
};

// A view of |length| bytes in a list of extents, starting at |offset|. Extents are host memory or
// placeholders of attached device memory (DeviceRange). The list must outlive the view.
struct ExtentView {
  Extents extents;
  uint64_t offset = 0;
  uint64_t length = 0;
};

// Identifies memory that the other side has exposed or published. The other side's transport
// creates the key, and core's messages carry it. Only the transport interprets the words. If all
// words are 0, there is no key. A transport treats a key that it receives as hostile.
struct RemoteKey {
  std::array<uint64_t, 3> words{};
  // Compares word by word, since the comparison of std::array compiles to a function call.
  bool operator==(const RemoteKey& other) const {
    return words[0] == other.words[0] && words[1] == other.words[1] && words[2] == other.words[2];
  }
};

// The way in which the peer uses exposed memory: as the target of puts or as the source of gets.
enum class Access : uint8_t { kPutTarget, kGetSource };

// Memory of this process that |members| can access at any time, until it is withdrawn.
struct Region {
  std::byte* address = nullptr;
  uint64_t length = 0;
  // Members may put to it.
  bool writable = false;
  // Members may get from it.
  bool readable = false;
  // Members that have mapped it may use the processor's atomic instructions on it.
  bool atomic = false;
  // The file that is mapped at |address| and that other processes can map too, or -1 if there is
  // none. The file stays open until withdraw() is called.
  int file = -1;
  uint64_t file_offset = 0;
  // One entry per rank: true if the rank may access the region. A transport that passes memory to
  // individual peers checks this first. A transport whose keys work for all peers relies on core,
  // which gives the key to members only.
  std::vector<bool> members;

  bool is_for(int rank) const {
    const auto index = static_cast<size_t>(rank);
    return index < members.size() && members[index];
  }
};

// Device memory that connections reach directly. In extents and regions it is represented by the
// addresses at |placeholder|. Nothing is mapped there, so code that accesses them by mistake
// faults.
struct DeviceRange {
  Device device;
  const void* address = nullptr;
  uint64_t length = 0;
  std::byte* placeholder = nullptr;
};

// A region of the peer that is mapped into this process for reading and writing. Only regions that
// grant every kind of access can be mapped.
struct MappedRegion {
  std::byte* address = nullptr;
  uint64_t length = 0;
  // Keeps the pages mapped while this object or a copy of it exists, even if the connection ends.
  std::shared_ptr<const void> hold{};
};

// The abilities of an endpoint or a transport. Core checks them before use.
struct Capabilities {
  // Puts to exposed memory are possible.
  bool put = false;
  // Gets from exposed memory are possible.
  bool get = false;
  // get_now() takes about as long as copying the bytes does.
  bool gets_now = false;
  // Core uses get if both put and get are possible. False: core measures which is faster.
  bool prefers_get = false;
  // The target's endpoint reports each put with on_put. False: the initiator has to notify the
  // target when all data has arrived.
  bool target_sees_put = false;
  // Accepted messages and puts arrive unless the peer dies, and a put completes at the initiator as
  // soon as its source has been read. False: they can be lost with the connection while the peer is
  // alive.
  bool lossless = false;
  // Put and get can also access regions (RegionPublisher), without the target's involvement. Such a
  // put completes when its bytes are in place, and is not reported to the target.
  bool regions = false;
  // Device memory can be attached (DeviceAttacher) if check_device() confirms it.
  bool device_memory = false;
  // Regions with a file can be mapped into the peer's process (RegionMapper).
  bool map = false;
  // No intermediary can read or change the data: it does not leave the host, or it is encrypted and
  // both ends have proved their identity. HETCOMM_REQUIRE_TLS rejects transports without this.
  bool protected_in_transit = false;
  // The transport connects only ranks on the same host.
  bool within_host = false;
  // Connecting to an address that no host uses can block the transport for seconds.
  bool waits_for_addresses = false;
  // Largest number of extents in one expose() call.
  uint32_t max_exposed_extents = UINT32_MAX;
  // Longest payload of one message.
  uint32_t max_payload_bytes = 0;
  // Messages up to this size are better sent immediately than after a request from the receiver.
  uint64_t eager_limit_bytes = 0;
  // Preferred size of one put or get.
  uint64_t chunk_bytes = 0;
  // Estimated latency, used for the choice of path.
  uint32_t latency_ns = 0;
  // Estimated rate of one direction, used for the choice of path.
  uint64_t bandwidth_bytes_per_s = 0;
};

// One put or get. Core owns it, and preserves it and its local memory until on_bulk_complete is
// called, or until cancel() or the endpoint's destructor returns. Until then the transport may use
// |next| and |scratch|.
struct Bulk {
  ExtentView local;
  RemoteKey key;
  uint64_t remote_offset = 0;
  bool high_priority = false;
  Bulk* next = nullptr;
  std::array<uint64_t, 4> scratch{};
};

// States whether data of a connection has arrived: the data that this side sent, or requested by
// get, after its first message. Messages and bulk data are considered separately.
enum class Passage : uint8_t {
  kNothing,  // there was no data after the first message
  kPassed,   // some data has arrived: the peer's host has acknowledged it
  kBlocked,  // data of one kind (messages or bulk) was sent, and none of it has arrived
};

// Identifies one stream of a connection. Both sides use the same value.
struct StreamId {
  std::array<std::byte, 16> connection{};
  uint8_t index = 0;
  bool operator==(const StreamId& other) const = default;
};
// The amount of data that has arrived at a stream's receiving end.
struct PathReceipt {
  // The time of the request, on the clock of the rank that requests the receipt. That rank treats
  // the answer as being as old as its request.
  uint64_t asked_ns = 0;
  // Bytes that the kernel has received on the stream since it was opened.
  uint64_t received_bytes = 0;
  // True if the kernel accepts no more data because the process leaves bytes unread.
  bool full = false;
};

}  // namespace hetcomm
