#include "reshard/copy_turns.h"

#include <algorithm>
#include <cstddef>

#include "reshard/capped.h"

namespace hetcomm::reshard {

uint64_t CopyTurns::take(const Layout& source, const Layout& destination, uint64_t element_bytes,
                         uint64_t count) {
  std::map<uint32_t, int> first_of;  // keyed by copy
  for (const Part& part : source.parts) first_of.try_emplace(part.copy, part.rank);
  if (first_of.size() <= 1) return 0;
  std::vector<int> ranks;
  for (const auto& [copy, rank] : first_of) ranks.push_back(rank);
  std::vector<uint64_t>& sent = sent_[ranks];
  sent.resize(ranks.size());
  const auto turn = static_cast<size_t>(std::min_element(sent.begin(), sent.end()) - sent.begin());
  std::map<uint32_t, size_t> number_of;  // keyed by copy of the destination
  for (const Part& part : destination.parts) {
    const size_t number = number_of[part.copy]++;
    uint64_t& bytes = sent[(part.copy + number + turn) % sent.size()];
    const uint64_t own = capped_product(clip(destination, part).elements(), element_bytes);
    bytes = capped_sum(bytes, capped_product(own, count));
  }
  return turn;
}

}  // namespace hetcomm::reshard
