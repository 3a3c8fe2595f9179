// Converts words of the command line to layouts for resharding, for hetcomm_bench and hetcomm_info.
// A case is the layout of the source and the layout of the destination.
//
// A word is DxS[rR][pP]: a tensor [batch, sequence, hidden] on D * S ranks whose batch is cut into
// D pieces and whose sequence is cut into S pieces (HetAuto, appendix E). With R replicas, or as a
// sum of P terms, the number of ranks is multiplied by R or P.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetcomm/hetcomm.h>

namespace tools {

struct ReshardSide {
  uint64_t batch = 1;
  uint64_t sequence = 1;
  uint64_t replicas = 1;
  uint64_t terms = 1;
  uint64_t ranks() const { return batch * sequence * replicas * terms; }
  bool operator==(const ReshardSide&) const = default;
};

struct ReshardCase {
  ReshardSide source;
  ReshardSide destination;
};

// Parses the layout |word|. Returns "", or an error text.
std::string parse_side(const std::string& word, ReshardSide* side);
// Parses a case such as "4x1:1x4r2". Returns "", or an error text.
std::string parse_case(const std::string& word, ReshardCase* reshard_case);
std::string word_of(const ReshardSide& side);
std::string word_of(const ReshardCase& reshard_case);

// Returns the cases of all pairs of different layouts DxS with D * S = |ranks|.
std::vector<ReshardCase> all_cases(uint64_t ranks);

inline constexpr const char* kStrategies[] = {
    "auto", "direct", "leader", "gather_p2p_scatter", "sendrecv_allgather", "bsr"};
// Returns the number of the strategy called |name|, or -1 if there is none.
int32_t strategy_number(const std::string& name);

// Returns batch, sequence and hidden for about |bytes| bytes in float32. Batch and sequence are 16,
// so that layouts can cut each of them into up to 16 pieces.
std::vector<uint64_t> shape_for(uint64_t bytes);

// Owns the handle of a layout.
class LayoutHandle {
 public:
  // |ranks| has one entry for each rank of |side|. Throws std::runtime_error if the layout is
  // invalid.
  LayoutHandle(const std::vector<uint64_t>& shape, const ReshardSide& side,
               const std::vector<int32_t>& ranks);
  LayoutHandle(const LayoutHandle&) = delete;
  LayoutHandle& operator=(const LayoutHandle&) = delete;
  ~LayoutHandle();
  const hetcomm_layout_t* get() const { return handle_; }
  uint64_t elements(int32_t rank) const;
  // Returns the layout as a JSON document.
  std::string json() const;

 private:
  hetcomm_layout_t* handle_ = nullptr;
};

// Returns a question for hetcomm_draft_reshard(): |strategy| moves a float32 tensor from one layout
// to the other.
nlohmann::json draft_question(const LayoutHandle& source, const LayoutHandle& destination,
                              const std::string& strategy);

// Returns ranks |first| to |first| + |count| - 1.
std::vector<int32_t> ranks_from(int32_t first, uint64_t count);

}  // namespace tools
