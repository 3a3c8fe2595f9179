// Lets each side of a connection map regions of the other side.
//
//   mapper                              owner
//     kWant (region)              -->     does the region exist, and is the mapper a member?
//                                 <--     kHere (length, the file) or kNone
//     ... loads and stores ...
//                                 <--     kLetGo (region)
//     kGone (region)              -->     the mapper can no longer access it
//
// Parcels have a fixed size and are sent over the connection's local socket. A process that has
// received the file can read and write all of it for as long as it keeps the file, since a
// read-only descriptor can be reopened for writing. Therefore the file is sent only to members, and
// only for regions that grant every kind of access.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>

#include "src/base/status.h"
#include "src/system/unique_fd.h"
#include "transports/shm/file_passing.h"
#include "transports/shm/wire.h"
#include "transports/transport.h"

namespace hetcomm::shm {

// The reason why a peer does not get a region. With kWithdrawn, the peer is not at fault.
enum class Refusal : uint8_t { kWithdrawn, kUnknown, kForeign };

// PublishedRegions records the regions that this process has published on one transport.
class PublishedRegions {
 public:
  // Adds |region|. kUnsupported: the region has no file, or it does not grant every kind of access.
  // A mapping cannot restrict access.
  Result<RemoteKey> add(const Region& region);
  // Returns the region if |peer| may map it. Otherwise returns null and sets |*refusal|.
  const Region* find(uint64_t id, int peer, Refusal* refusal) const;
  // Prevents further peers from mapping the region.
  void close(uint64_t id);
  void erase(uint64_t id);

  static uint64_t id_of(const RemoteKey& key) { return key.words[0]; }
  static RemoteKey key_of(uint64_t id) { return RemoteKey{{id, 0, 0}}; }

 private:
  struct Entry {
    Region region;
    bool closed = false;
  };
  uint64_t last_ = 0;
  std::unordered_map<uint64_t, Entry> regions_;
};

// A mapping of a peer's region.
class Mapping {
 public:
  // Maps the part of |file| that |here| describes. Fails unless this part has the requested
  // |length|.
  static Result<Mapping> create(const UniqueFd& file, const Parcel& here, uint64_t length);
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();
  std::byte* address() const { return base_ == nullptr ? nullptr : base_ + skip_; }

 private:
  std::byte* base_ = nullptr;
  uint64_t size_ = 0;
  uint64_t skip_ = 0;
};

// Sends and receives the parcels of one connection.
class ParcelPort {
 public:
  explicit ParcelPort(int socket) : socket_(socket) {}

  // Sends |parcel|, or queues it until flush(). The caller keeps ownership of |file|.
  Status send(const Parcel& parcel, int file = -1);
  Status flush();
  bool waiting() const { return !waiting_.empty(); }
  // Returns the number of answers that wait because the socket is full. Each of them may hold a
  // descriptor.
  size_t answers_waiting() const { return answers_waiting_; }
  // Receives the next parcel, or returns kPending if there is none. |*file| is the file that
  // arrived with it. A file that arrives without |file_expected| is an error.
  Status receive(bool file_expected, Parcel* out, UniqueFd* file);

 private:
  struct Waiting {
    Parcel parcel;
    UniqueFd file;
  };
  Status send_now(const Parcel& parcel, int file) const;

  int socket_;
  std::deque<Waiting> waiting_;
  size_t answers_waiting_ = 0;
  Incoming incoming_;
};

}  // namespace hetcomm::shm
