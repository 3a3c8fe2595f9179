// Sends a large value to many ranks without a single sender for all of them. Each rank pulls the
// value from the previous rank and passes each piece on as soon as the piece arrives.
//
// All ranks get, through the store, the size of the value and a hash of the list of its pieces'
// hashes. The list of hashes is sent first, so that a rank can check each piece before it passes it
// on. A forged piece reaches only the ranks that request it from the rank that forged it.
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

// Identifies a value that is handed down the chain, by its size and by the hash of the list of its
// pieces' hashes.
struct Handout {
  uint64_t size = 0;
  Digest list_hash{};

  bool operator==(const Handout&) const = default;
  void encode(ByteWriter& writer) const;
  // Decodes a handout. Fails if its size is greater than kMaxHandout.
  static Result<Handout> decode(ByteReader& reader);
};

// The largest value that can be handed down. The list of its pieces' hashes fits into one value of
// a store.
inline constexpr uint64_t kMaxHandout = 64u << 20;

Handout handout_of(ConstByteSpan value);

// These return the keys under which relays serve the list of hashes and piece |index| of a handout.
std::string list_key(const Handout& handout);
std::string piece_key(const Handout& handout, size_t index);
// Returns the key that a reader requests last: the last piece's, or the list's if there are no
// pieces.
std::string last_key(const Handout& handout);

// A rank that may have the value, and the contact of its relay.
struct RelaySource {
  int rank = 0;
  RelayContact contact;
};

// Serves |value| to other ranks through |relay| until |until_ns|.
void offer(Relay& relay, ConstByteSpan value, uint64_t until_ns);
// Gets the value from the first of |sources| that has it, and passes each piece on. Moves on to the
// next source if a source is gone or silent, or has not sent everything within a third of the time.
// A source that sends wrong data is not used again. Fails at |deadline_ns|, or as soon as no source
// is left. The error text gives the reason for each source.
Result<std::vector<std::byte>> pull(Relay& relay, const Handout& handout,
                                    const std::vector<RelaySource>& sources, uint64_t deadline_ns);

}  // namespace hetcomm
