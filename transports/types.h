// Defines the types that the transport interfaces use, such as keys, regions and capabilities.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "devices/device.h"
#include "src/base/span.h"

namespace hetcomm {

// The header of a message. Core writes and reads it. Transports carry it without interpreting it.
inline constexpr size_t kHeaderBytes = 32;
using MessageHeader = std::array<std::byte, kHeaderBytes>;

// The target of a connection attempt: one transport of a rank, of the same kind as the local one.
struct Destination {
  int rank = 0;
  size_t transport = 0;  // index among the peer's transports of this kind
  bool operator==(const Destination&) const = default;
};

// A view of |length| bytes in a list of extents, starting at |offset|. An extent is host memory, or
// a range of placeholder addresses of attached device memory (DeviceRange). The list must outlive
// the view.
struct ExtentView {
  Extents extents;
  uint64_t offset = 0;
  uint64_t length = 0;
};

// Identifies memory that a process has exposed or published to its peers. The transport of that
// process creates the key, and core sends it to the peers. Only transports interpret the words. All
// words are 0 if there is no key. Transports must validate every key that they receive.
struct RemoteKey {
  std::array<uint64_t, 3> words{};
  // Compares word by word, since comparing the arrays would compile to a function call.
  bool operator==(const RemoteKey& other) const {
    return words[0] == other.words[0] && words[1] == other.words[1] && words[2] == other.words[2];
  }
};

// Specifies whether the peer uses exposed memory as the target of puts or as the source of gets.
enum class Access : uint8_t { kPutTarget, kGetSource };

// Memory of this process that the ranks in |members| can access at any time until it is withdrawn.
struct Region {
  std::byte* address = nullptr;
  uint64_t length = 0;
  // Members may write to the region by put.
  bool writable = false;
  // Members may read from the region by get.
  bool readable = false;
  // Members that have mapped the region may use the processor's atomic instructions on it.
  bool atomic = false;
  // The file that is mapped at |address| and that other processes can map too, or -1 if there is no
  // such file. The descriptor stays open until RegionPublisher::withdraw() is called.
  int file = -1;
  uint64_t file_offset = 0;
  // One entry per rank, true if the rank may access the region. Transports with Capabilities::map
  // check the entry before they pass the file to a peer. For other transports, core can leave the
  // list empty. Their keys work for all peers, so core sends the key to members only.
  std::vector<bool> members;

  bool is_for(int rank) const {
    const auto index = static_cast<size_t>(rank);
    return index < members.size() && members[index];
  }
};

// Device memory that connections access directly. Extents and regions refer to it by the addresses
// at |placeholder|. These addresses are reserved but inaccessible, so code that accesses them by
// mistake faults.
struct DeviceRange {
  Device device;
  const void* address = nullptr;
  uint64_t length = 0;
  std::byte* placeholder = nullptr;
};

// A region of the peer that is mapped into this process for reading and writing. A region can be
// mapped only if it grants every kind of access.
struct MappedRegion {
  std::byte* address = nullptr;
  uint64_t length = 0;
  // Keeps the pages mapped while this pointer or a copy of it exists, even if the connection ends.
  std::shared_ptr<const void> hold{};
};

// The capabilities of an endpoint or a transport. Core checks them before it uses an ability.
struct Capabilities {
  // Puts to exposed memory are possible.
  bool put = false;
  // Gets from exposed memory are possible.
  bool get = false;
  // Immediate reads are possible (ImmediateReader). They take about as long as copying the bytes.
  bool gets_now = false;
  // Core should prefer get where both put and get are possible. If false, core measures which of
  // the two is faster.
  bool prefers_get = false;
  // The target's endpoint reports each put with on_put. If false, the initiator has to notify the
  // target when all data has arrived.
  bool target_sees_put = false;
  // Accepted messages and puts arrive unless the peer dies, and a put completes at the initiator as
  // soon as its source has been read. If false, messages and puts can be lost when the connection
  // breaks, even if the peer is alive.
  bool lossless = false;
  // Put and get can also access regions (RegionPublisher), without the target's involvement. A put
  // to a region completes when its bytes are in the target's memory. It is not reported by on_put.
  bool regions = false;
  // Memory of a device can be attached (DeviceAttacher) if check_device() succeeds for the device.
  bool device_memory = false;
  // Regions with a file can be mapped into the peer's process (RegionMapper).
  bool map = false;
  // No intermediary can read or change the data, because it does not leave the host, or because it
  // is encrypted and both ends have proved their identity. HETCOMM_REQUIRE_TLS rejects transports
  // without this capability.
  bool protected_in_transit = false;
  // The transport connects only ranks on the same host.
  bool within_host = false;
  // An attempt to connect to an address that no host uses can delay the transport for seconds.
  bool waits_for_addresses = false;
  // The largest number of extents that one call of MemoryExposer::expose() accepts.
  uint32_t max_exposed_extents = UINT32_MAX;
  // The maximum payload of one message.
  uint32_t max_payload_bytes = 0;
  // For messages up to this size, sending immediately is better than waiting for the receiver's
  // request.
  uint64_t eager_limit_bytes = 0;
  // The preferred size of one put or get.
  uint64_t chunk_bytes = 0;
  // The estimated latency. Core uses it to select a path.
  uint32_t latency_ns = 0;
  // The estimated rate in one direction. Core uses it to select a path.
  uint64_t bandwidth_bytes_per_s = 0;
};

// One put or get. Core owns the object, and keeps it and its local memory valid until
// on_bulk_complete is called, or until cancel() or the endpoint's destructor returns. Until then,
// the transport can use |next| and |scratch| for its own purposes.
struct Bulk {
  ExtentView local;
  RemoteKey key;
  uint64_t remote_offset = 0;
  bool high_priority = false;
  Bulk* next = nullptr;
  std::array<uint64_t, 4> scratch{};
};

// Specifies whether data has arrived over a connection. The data is what this side sent, or
// requested by get, after its first message. Messages and bulk data are considered separately.
enum class Passage : uint8_t {
  kNothing,  // there was no data after the first message, or nothing is known about its arrival
  kPassed,   // some data has arrived, since the peer's host has acknowledged it
  kBlocked,  // messages or bulk data were sent, and no data of that kind has arrived
};

// Identifies one stream of a connection. Both sides use the same value for a stream.
struct StreamId {
  std::array<std::byte, 16> connection{};
  uint8_t index = 0;
  bool operator==(const StreamId& other) const = default;
};
// The amount of data that has arrived at the receiving end of a stream.
struct PathReceipt {
  // The time at which the receipt was requested, on the clock of the requesting rank. That rank
  // takes it as the time of the counts below, which are in fact newer.
  uint64_t asked_ns = 0;
  // The number of bytes that the kernel has received on the stream since it was opened.
  uint64_t received_bytes = 0;
  // True if the kernel accepts no more data, because the process has not read earlier data.
  bool full = false;
};

}  // namespace hetcomm
