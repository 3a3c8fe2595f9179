// Sends a large value to many ranks without one place that sends it to all. Each rank pulls it from
// the previous one and passes each piece on as soon as it arrives.
//
// All ranks know, through the store, the size of the value and a hash. It is the hash of the list
// of the hashes of the pieces. The list comes first, so that each piece is checked before it is
// passed on. A forged piece thus reaches only the ranks that ask its forger.
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

// A value that is handed down.
struct Handout {
  uint64_t size = 0;
  Digest list_hash{};

  bool operator==(const Handout&) const = default;
  void encode(ByteWriter& writer) const;
  // Fails for a size beyond kMaxHandout.
  static Result<Handout> decode(ByteReader& reader);
};

// The largest value: the list of its pieces is a value of a store.
inline constexpr uint64_t kMaxHandout = 64u << 20;

Handout handout_of(ConstByteSpan value);

// Keys of a handout at relays: of the list, of piece |index|, and of the last request.
std::string list_key(const Handout& handout);
std::string piece_key(const Handout& handout, size_t index);
std::string last_key(const Handout& handout);

// A rank that may have the value, and will pass it on.
struct RelaySource {
  int rank = 0;
  RelayContact contact;
};

// Keeps |value| in |relay| for others until |until_ns|.
void offer(Relay& relay, ConstByteSpan value, uint64_t until_ns);
// Gets the value from the first of |sources| that has it, and passes each piece on. After a source
// that is gone, silent, or slower than a third of the time, the next one is asked. A source that
// sends wrong data is not asked again. Fails at |deadline_ns|, or as soon as no source is left. The
// text says what is wrong with each.
Result<std::vector<std::byte>> pull(Relay& relay, const Handout& handout,
                                    const std::vector<RelaySource>& sources, uint64_t deadline_ns);

}  // namespace hetcomm
