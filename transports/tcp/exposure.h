// ExposureTable records the memory that one endpoint has exposed to its peer, and issues the tokens
// that identify this memory.
//
// A token consists of a slot, the slot's generation and a random nonce. The generation increases
// each time that the slot is used, and a slot that has used up its generations is retired.
// Therefore a token always refers to the memory for which it was issued.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "src/base/extent_cursor.h"
#include "src/base/span.h"
#include "src/base/status.h"
#include "transports/tcp/wire.h"

namespace hetcomm::tcp {

// Draws random numbers from the kernel in batches, so that most exposures cost no system call.
class NonceSource {
 public:
  Result<uint64_t> next();

 private:
  std::array<uint64_t, 64> pool_{};
  size_t left_ = 0;
};

struct Exposure {
  std::vector<iovec> extents;  // keeps a small capacity, so reuse of a slot rarely allocates
  uint64_t size_bytes = 0;
  uint64_t cookie = 0;
  uint64_t nonce = 0;
  uint32_t generation = 0;
  bool live = false;
  ExtentCursor cursor;  // end of the last put, where the next usually starts
};

class ExposureTable {
 public:
  // Exposes the memory in |extents|. The list is copied. kOutOfResources: too much is exposed.
  Result<RemoteKey> add(Extents extents, uint64_t cookie, NonceSource& nonces);
  // Removes the entry that |key| identifies. Returns the freed slot, or kNone if there is no such
  // entry.
  uint32_t remove(const RemoteKey& key);

  enum class Verdict : uint8_t {
    kLive,
    kRevoked,      // was valid before, so the peer is not at fault
    kNeverIssued,  // forged by the peer
    kOutOfRange,
  };
  // Checks the untrusted |target| of a put frame of |length| bytes.
  Verdict check(const PutTarget& target, uint32_t length) const;
  // Returns the exposure in |slot|, which check() has found to be live.
  Exposure& at(uint32_t slot) { return slots_[slot]; }

  static constexpr uint32_t kNone = UINT32_MAX;

 private:
  std::vector<Exposure> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace hetcomm::tcp
