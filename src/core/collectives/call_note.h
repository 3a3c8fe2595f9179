// A rank sends another one a note of its collective call when that takes long, or when it refuses
// to make the call. The note goes over the control plane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/base/span.h"
#include "src/core/collectives/call.h"

namespace hetcomm::collectives {

struct CallNote {
  uint64_t team = 0;
  uint64_t sequence = 0;
  // 0: it has made the call. Else it refuses this one, so many times by now.
  uint32_t refusals = 0;
  Call call;
  std::string why;  // it refuses

  std::vector<std::byte> encode() const;
  // The bytes of a peer are believed for nothing; none where they are no note.
  static std::optional<CallNote> decode(ConstByteSpan bytes);
};
inline constexpr size_t kMostWhy = 400;  // bytes of |why|

}  // namespace hetcomm::collectives
