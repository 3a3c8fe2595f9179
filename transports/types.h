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

// Where a connection leads: to a rank, and to which of its transports of the same kind.
struct Destination {
  int rank = 0;
  size_t transport = 0;  // its number among the peer's transports
  bool operator==(const Destination&) const = default;
};

// A view of |length| bytes from |offset| on of a list of extents. They are host memory, or
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

// Says how the peer may use exposed memory: it writes, or it reads.
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

// Memory of a device that connections shall reach by themselves. In extents and regions
// |placeholder| stands for it. Nothing lies at these addresses of the process, so code that touches
// them by mistake faults.
struct DeviceRange {
  Device device;
  const void* address = nullptr;
  uint64_t length = 0;
  std::byte* placeholder = nullptr;
};

// A region of the peer that is mapped into this process, to be read and written. Only regions that
// grant every access are mapped.
struct MappedRegion {
  std::byte* address = nullptr;
  uint64_t length = 0;
  // The pages stay mapped while this or a copy of it exists, whatever happens to the connection.
  std::shared_ptr<const void> hold{};
};

// Says what an endpoint or a transport can do. Core asks before use.
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
  // target when all is there.
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
  // Nobody on the way can read or change what is sent: it does not leave the host, or it is
  // encrypted and both ends have proved who they are. HETCOMM_REQUIRE_TLS refuses transports
  // without this.
  bool protected_in_transit = false;
  // The transport connects ranks of one host only.
  bool within_host = false;
  // To connect to an address that nobody has may hold the transport up for seconds.
  bool waits_for_addresses = false;
  // Largest number of extents of one expose().
  uint32_t max_exposed_extents = UINT32_MAX;
  // Longest payload of one message.
  uint32_t max_payload_bytes = 0;
  // Messages up to this size are better sent at once than after a request.
  uint64_t eager_limit_bytes = 0;
  // Good size of one put or get.
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

// Says what became of the data that this side has sent over a connection behind its first message,
// or asked for there by get. Messages and bulk data count each for itself.
enum class Passage : uint8_t {
  kNothing,  // there was none
  kPassed,   // some has arrived at the peer's host, which acknowledged it
  kBlocked,  // of all messages, or of all bulk data, nothing has arrived as far as is known
};

// Names one stream of a connection. Both sides use the same name.
struct StreamId {
  std::array<std::byte, 16> connection{};
  uint8_t index = 0;
  bool operator==(const StreamId& other) const = default;
};
// Tells how much has arrived at the receiving end of a stream.
struct PathReceipt {
  // Time of the question, by the clock of the rank that asked. The answer is as old as that.
  uint64_t asked_ns = 0;
  // Bytes that the kernel has received on the stream since it began.
  uint64_t received_bytes = 0;
  // True: the process leaves bytes unread, and the kernel takes no more.
  bool full = false;
};

}  // namespace hetcomm
