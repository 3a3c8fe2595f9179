// A rank sends another rank a note of its collective call when the call takes long, or when it
// refuses to make the call. The note goes over the control plane.
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
  // The number of times that the rank has refused the call; 0: it has made the call.
  uint32_t refusals = 0;
  uint64_t history = 0;  // Task::history()
  Call call;
  std::string why;  // reason for the refusal

  std::vector<std::byte> encode() const;
  // Decodes arbitrary bytes from a peer. Returns nothing if they are not a note.
  static std::optional<CallNote> decode(ConstByteSpan bytes);
};
inline constexpr size_t kMaxWhyBytes = 400;  // longest CallNote::why

}  // namespace hetcomm::collectives
