// The types that the interfaces of transports use: extents, keys, regions, capabilities, bulks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "devices/device.h"
#include "src/base/span.h"

namespace hetcomm {

// Core's header of a message. A transport carries it as it is and does not look into it.
inline constexpr size_t kHeaderBytes = 32;
using MessageHeader = std::array<std::byte, kHeaderBytes>;

// The target of a connection: a rank, and one of its transports of the same kind.
struct Destination {
  int rank = 0;
  size_t transport = 0;  // its number among the peer's transports
  bool operator==(const Destination&) const = default;
};

// A view of |length| bytes of a list of extents, starting at |offset|. They are host memory, or
// placeholders of attached device memory (DeviceRange). The list outlives the view.
struct ExtentView {
  Extents extents;
  uint64_t offset = 0;
  uint64_t length = 0;
};

// Names memory that the other side exposed or published. Its transport makes the key, and core's
// messages carry it. Only the transport knows what the words mean. All words 0: no key. A transport
// treats a key from the wire as hostile.
struct RemoteKey {
  std::array<uint64_t, 3> words{};
  // Compares word by word, since the array's own comparison is a call.
  bool operator==(const RemoteKey& other) const {
    return words[0] == other.words[0] && words[1] == other.words[1] && words[2] == other.words[2];
  }
};

// The peer's use of exposed memory: it writes, or it reads.
enum class Access : uint8_t { kPutTarget, kGetSource };

// Memory of this process that |members| may reach at any time, until it is withdrawn.
struct Region {
  std::byte* address = nullptr;
  uint64_t length = 0;
  // Members may put to it.
  bool writable = false;
  // Members may get from it.
  bool readable = false;
  // Members that have mapped it may use the processor's atomic instructions on it.
  bool atomic = false;
  // File that |address| is a mapping of, which other processes may map too. -1: there is none. The
  // file stays open until withdraw() is called.
  int file = -1;
  uint64_t file_offset = 0;
  // Says for each rank whether the region is for it. A transport that hands memory over to single
  // peers asks this first. A transport whose keys work for all peers alike relies on core, which
  // tells the key to members only.
  std::vector<bool> members;

  bool is_for(int rank) const {
    const auto index = static_cast<size_t>(rank);
    return index < members.size() && members[index];
  }
};

// Memory of a device that connections reach directly. In extents and regions |placeholder| stands
// for it. The process has nothing at these addresses, so code that touches them by mistake faults.
struct DeviceRange {
  Device device;
  const void* address = nullptr;
  uint64_t length = 0;
  std::byte* placeholder = nullptr;
};

// A region of the peer that is mapped into this process for reading and writing. Only regions that
// grant every access are mapped.
struct MappedRegion {
  std::byte* address = nullptr;
  uint64_t length = 0;
  // The pages stay mapped while this or a copy of it exists, whatever happens to the connection.
  std::shared_ptr<const void> hold{};
};

// The abilities of an endpoint or a transport. Core checks them before use.
struct Capabilities {
  // Puts to exposed memory work.
  bool put = false;
  // Gets from exposed memory work.
  bool get = false;
  // get_now() takes about as long as copying the bytes does.
  bool gets_now = false;
  // Core uses get where put and get are possible. False: it measures which one is faster.
  bool prefers_get = false;
  // True: the target's endpoint reports each put with on_put. False: the initiator has to tell the
  // target when all data has arrived.
  bool target_sees_put = false;
  // True: messages and puts that were accepted arrive unless the peer dies, and a put completes at
  // the initiator as soon as its source was read. False: they may be lost with the connection while
  // the peer lives.
  bool lossless = false;
  // Put and get reach regions (RegionPublisher) as well, without the target's help. Such a put
  // completes when its bytes are in place, and is not reported to the target.
  bool regions = false;
  // Device memory can be attached (DeviceAttacher) if check_device() says so.
  bool device_memory = false;
  // Regions with a file can be mapped into the peer's process (RegionMapper).
  bool map = false;
  // No one in between can read or change the data: it does not leave the host, or it is encrypted
  // and both ends have proved their identity. HETCOMM_REQUIRE_TLS refuses transports without this.
  bool protected_in_transit = false;
  // The transport connects ranks of one host only.
  bool within_host = false;
  // Connecting to an address that no one has may block the transport for seconds.
  bool waits_for_addresses = false;
  // Largest number of extents of one expose().
  uint32_t max_exposed_extents = UINT32_MAX;
  // Longest payload of one message.
  uint32_t max_payload_bytes = 0;
  // Messages up to this size are better sent at once than after a request.
  uint64_t eager_limit_bytes = 0;
  // Preferred size of one put or get.
  uint64_t chunk_bytes = 0;
  // Estimated latency, for the choice of path.
  uint32_t latency_ns = 0;
  // Estimated rate of one direction, for the choice of path.
  uint64_t bandwidth_bytes_per_s = 0;
};

// One put or get. Core owns it, and keeps it and its local memory until on_bulk_complete is called,
// or until cancel() or the endpoint's destruction has returned. Until then the transport owns
// |next| and |scratch|.
struct Bulk {
  ExtentView local;
  RemoteKey key;
  uint64_t remote_offset = 0;
  bool high_priority = false;
  Bulk* next = nullptr;
  std::array<uint64_t, 4> scratch{};
};

// The fate of the data that this side has sent over a connection after its first message, or
// requested there by get. Messages and bulk data count separately.
enum class Passage : uint8_t {
  kNothing,  // there was none
  kPassed,   // some has arrived at the peer's host, which acknowledged it
  kBlocked,  // no message, or no bulk data, is known to have arrived
};

// Names one stream of a connection. Both sides use the same name.
struct StreamId {
  std::array<std::byte, 16> connection{};
  uint8_t index = 0;
  bool operator==(const StreamId& other) const = default;
};
// The amount of data that has arrived at the receiving end of a stream.
struct PathReceipt {
  // Time of the question, by the clock of the rank that asked. The answer is as old as that.
  uint64_t asked_ns = 0;
  // Bytes that the kernel has received on the stream since it began.
  uint64_t received_bytes = 0;
  // True: the process leaves bytes unread, and the kernel takes no more.
  bool full = false;
};

}  // namespace hetcomm
