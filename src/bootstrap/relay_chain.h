// Sends a large value to many ranks without a single sender for all of them. Each rank pulls it
// from the previous one and passes each piece on as soon as it arrives.
//
// All ranks know, through the store, the size of the value and a hash of the list of its pieces'
// hashes. The list is sent first, so that each piece is checked before it is passed on. A forged
// piece thus reaches only the ranks that ask its forger.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/bytes.h"
#include "src/base/span.h"
#include "src/base/status.h"
#include "src/bootstrap/relay.h"
#include "src/net/hash.h"

namespace hetcomm {

// A value that is handed down the chain.
struct Handout {
  uint64_t size = 0;
  Digest list_hash{};

  bool operator==(const Handout&) const = default;
  void encode(ByteWriter& writer) const;
  // Fails for a size greater than kMaxHandout.
  static Result<Handout> decode(ByteReader& reader);
};

// The largest value. Its list of pieces fits into one value of a store.
inline constexpr uint64_t kMaxHandout = 64u << 20;

Handout handout_of(ConstByteSpan value);

// Return the relay keys of a handout: for the list, for piece |index|, and for the last request.
std::string list_key(const Handout& handout);
std::string piece_key(const Handout& handout, size_t index);
std::string last_key(const Handout& handout);

// A rank that may have the value and will pass it on.
struct RelaySource {
  int rank = 0;
  RelayContact contact;
};

// Keeps |value| in |relay| for others until |until_ns|.
void offer(Relay& relay, ConstByteSpan value, uint64_t until_ns);
// Gets the value from the first of |sources| that has it, and passes each piece on. If a source is
// gone, silent, or slower than a third of the time, the next source is asked. A source that sends
// wrong data is not asked again. Fails at |deadline_ns|, or as soon as no source is left. The text
// gives the reason for each source.
Result<std::vector<std::byte>> pull(Relay& relay, const Handout& handout,
                                    const std::vector<RelaySource>& sources, uint64_t deadline_ns);

}  // namespace hetcomm
