// The memory that one endpoint has exposed to its peer, and the tokens that name it.
//
// A token is a slot, the slot's generation and a random nonce. Generations of a slot only grow and
// a slot whose generations are used up is retired, so a token never names anything but the memory
// it was made for.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "src/base/extent_cursor.h"
#include "src/base/span.h"
#include "src/base/status.h"
#include "transports/tcp/wire.h"

namespace hetcomm::tcp {

// Random numbers from the kernel, drawn many at a time so that exposing costs no system call.
class NonceSource {
 public:
  Result<uint64_t> next();

 private:
  std::array<uint64_t, 64> pool_{};
  size_t left_ = 0;
};

struct Exposure {
  std::vector<iovec> extents;  // keeps its capacity, so that re-use of a slot does not allocate
  uint64_t size_bytes = 0;
  uint64_t cookie = 0;
  uint64_t nonce = 0;
  uint32_t generation = 0;
  bool live = false;
  ExtentCursor cursor;  // where the last put ended: most puts come in order
};

class ExposureTable {
 public:
  // Copies |extents|.
  Result<RemoteKey> add(Extents extents, uint64_t cookie, NonceSource& nonces);
  // Returns the slot that was freed; kNone when |key| names nothing live.
  uint32_t remove(const RemoteKey& key);

  enum class Verdict : uint8_t {
    kLive,
    kRevoked,      // was valid once: not the peer's fault
    kNeverIssued,  // the peer made it up
    kOutOfRange,
  };
  // Judges a put frame of |length| bytes with these untrusted fields.
  Verdict check(const PutTarget& target, uint32_t length) const;
  // A live slot, as found by check().
  Exposure& at(uint32_t slot) { return slots_[slot]; }

  static constexpr uint32_t kNone = UINT32_MAX;

 private:
  std::vector<Exposure> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace hetcomm::tcp
