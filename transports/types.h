// What the interfaces of transports speak of: segments, keys, regions, capabilities, bulks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "devices/device.h"
#include "src/base/span.h"

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
  bool gets_now = false;     // get_now() takes about as long as copying the bytes does
  bool prefers_get = false;  // where both are possible; else whichever is measured to be faster
  // The target's endpoint reports each put with on_put; otherwise the initiator has to say when all
  // is there.
  bool target_sees_put = false;
  // A put completes at the initiator as soon as the source was read; the data will arrive unless
  // the peer dies. False: it may still be lost with the connection while the peer lives.
  bool lossless = false;
  // Put and get reach regions (RegionPublisher) as well, without the target's help. Such a put
  // completes when its bytes are in place, and is not reported to the target.
  bool regions = false;
  // Memory of devices can be attached (DeviceAttacher), where check_device() says so.
  bool device_memory = false;
  // Regions with a file can be mapped (RegionMapper).
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

}  // namespace hetcomm
