// A Claim records the memory that one execution reads and writes. It rejects memory in which a byte
// of a destination is written twice, belongs to a source, or belongs to another pending execution
// of the plan. Two cases are allowed: elements that keep their addresses within one execution, and
// executions that are ordered by one stream.
//
// Ranges are compared first, in ascending order. Where ranges overlap, their boxes are compared
// element by element (reshard/memory_rule.h). If all buffers have the addresses of the previous
// claim, the comparison within the execution is skipped.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include <hetcomm/memory.h>

#include "reshard/memory_rule.h"
#include "src/base/status.h"
#include "src/reshard/program.h"

namespace hetcomm {
class UserStream;
}  // namespace hetcomm

namespace hetcomm::reshard {

class Claim {
 public:
  // |program| outlives this object. The constructor may throw std::bad_alloc, the other functions
  // do not.
  explicit Claim(const Program& program);
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  // Sets the buffers of all tensors. The caller has checked that they are long enough. |stream| is
  // the stream that orders the execution, or null if there is none. Fails with kInvalidArgument and
  // sets |*text| if the buffers overlap.
  Code locate(const hetcomm_buffer_t* sources, const hetcomm_buffer_t* destinations,
              const UserStream* stream, std::string* text);
  // Returns whether this execution and that of |other| can run concurrently. If not, |*text|
  // describes the overlap.
  bool is_apart_from(const Claim& other, std::string* text) const;

 private:
  // The address of a buffer, in host memory or in a device allocation.
  struct Base {
    uint64_t device = 0;  // 0: host memory, which counts as a single allocation
    uint64_t allocation = 0;
    uint64_t offset = 0;
    bool operator==(const Base&) const = default;
  };
  // The range of a buffer that boxes use.
  struct Use {
    Base base;
    uint64_t begin = 0;
    uint64_t end = 0;
    uint32_t tensor = 0;
    bool is_destination = false;
  };
  // Uses whose ranges can still overlap with later uses in memory order.
  using Open = std::vector<const Use*>;

  static Base base_of(const hetcomm_buffer_t& buffer);
  template <typename Call>
  void for_each(Call&& use) const;
  const Footprint& boxes_of(const Use& use) const;
  Meeting find_meeting(const Use& one, const Use& other) const;
  bool is_apart(std::string* text);

  const Program& program_;
  const UserStream* stream_ = nullptr;
  std::vector<Base> bases_;  // sources first
  bool is_known_ = false;    // true if the buffers at |bases_| are known not to overlap
  std::vector<Use> uses_;    // in memory order
  Open open_sources_;
  Open open_destinations_;
};

// Claims holds the claims of the pending executions of a plan. [any-thread]
class Claims {
 public:
  // May throw std::bad_alloc. The other functions do not.
  explicit Claims(size_t most) { claims_.reserve(most); }

  // Adds |claim|, which stays valid until leave(). There must be fewer than |most| claims. If
  // |claim| overlaps another one, fails with kInvalidArgument, sets |*text|, and does not add the
  // claim.
  Code enter(const Claim& claim, std::string* text);
  // Removes |claim|, if it was added.
  void leave(const Claim& claim);

 private:
  std::mutex mutex_;
  std::vector<const Claim*> claims_;
};

}  // namespace hetcomm::reshard
