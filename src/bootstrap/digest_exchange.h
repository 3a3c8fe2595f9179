// Gathers the cards of all ranks into one digest, which all ranks get. A card is one rank's
// description of itself.
//
// In a small job every rank receives every card. In a large job of n ranks, one process would have
// to send n x n cards, so the exchange has four steps:
//   1. The ranks of a block (about sqrt(n)/2 of them) exchange their cards.
//   2. The leader of each block makes a part from the block's cards. The leaders exchange the
//      parts, and each of them makes the same digest from them.
//   3. Rank 0 broadcasts the size and the hash of the digest, or the reason why there is none.
//   4. In each block the digest is passed from rank to rank (relay_chain.h).
// No process sends more than about n x sqrt(n) cards, and each rank sends the digest once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/bootstrap/bootstrap.h"

namespace hetcomm {

// Makes one digest of the cards of all ranks. All functions are pure: the same input gives the same
// bytes or the same failure on every rank.
class DigestMaker {
 public:
  virtual ~DigestMaker() = default;
  // Makes one block's part from |cards|, which belong to ranks |first|, |first| + 1, ...
  virtual Result<std::vector<std::byte>> part(
      int first, const std::vector<std::vector<std::byte>>& cards) const = 0;
  // Makes the digest of all ranks from the parts of all blocks, in the order of their ranks.
  virtual Result<std::vector<std::byte>> digest(
      const std::vector<std::vector<std::byte>>& parts) const = 0;
};

// Gathers |card| from every rank and returns the digest of all cards, which is the same on each
// rank. Collective. If |maker| fails or a rank does not join by |deadline_ns|, the call fails on
// all ranks with the same text. If all ranks have joined but one of them cannot get the digest, the
// call fails only on that rank.
Result<std::vector<std::byte>> exchange_digest(Bootstrap& bootstrap, const std::string& scope,
                                               ConstByteSpan card, const DigestMaker& maker,
                                               uint64_t deadline_ns);
// Distributes rank 0's |mine| (64 MiB at most) to all ranks. In a large job, a value of more than
// 256 bytes is passed from one block leader to the next, and from each leader through its block.
// Collective. Fails like exchange_digest().
Result<std::vector<std::byte>> hand_down(Bootstrap& bootstrap, const std::string& scope,
                                         ConstByteSpan mine, uint64_t deadline_ns);

// Returns the reason for which this rank's relay last dropped another rank's connection, or OK if
// it has dropped none.
Status last_refused_reader(Bootstrap& bootstrap);

// Returns the ranks per block in a large job of |size| ranks: a power of two near sqrt(size)/2.
int block_size_of(int size);

}  // namespace hetcomm
