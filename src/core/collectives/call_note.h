// CallNote describes a rank's collective call to another rank. A rank sends it over the control
// plane in three cases: the call takes long, the other rank seems to have made a different call, or
// the rank refuses to make the call.
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
  // The number of times that the rank has refused the call, or 0 if it has made the call.
  uint32_t refusals = 0;
  uint64_t history = 0;  // Task::history()
  Call call;
  std::string why;  // the reason for the refusal

  std::vector<std::byte> encode() const;
  // Decodes arbitrary bytes from a peer. Returns std::nullopt if they are not a note.
  static std::optional<CallNote> decode(ConstByteSpan bytes);
};
inline constexpr size_t kMaxWhyBytes = 400;  // maximum length of CallNote::why

}  // namespace hetcomm::collectives
