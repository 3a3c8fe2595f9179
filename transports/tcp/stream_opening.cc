#include "transports/tcp/stream_opening.h"

#include <algorithm>

namespace hetcomm::tcp {

size_t StreamOpening::request(size_t count) {
  requested_ = true;
  count = std::min(count, kMaxBulkStreams);
  if (!initiator_) {
    note({.kind = StreamsNote::Kind::kWanted, .count = static_cast<uint8_t>(count)});
    return 0;
  }
  if (unavailable_) {
    note({.kind = StreamsNote::Kind::kUnavailable});
    return 0;
  }
  return std::max(count, least_);
}

const char* StreamOpening::take(const StreamsNote& note) {
  if (note.kind == StreamsNote::Kind::kWanted) {
    return initiator_ ? nullptr : "bulk streams wanted by the side that opens them";
  }
  if (initiator_) return "bulk streams refused by the side that does not open them";
  unavailable_ = true;
  return nullptr;
}

void StreamOpening::failed(bool others) {
  enough_ = true;
  if (others) return;
  unavailable_ = true;
  if (initiator_) note({.kind = StreamsNote::Kind::kUnavailable});
}

}  // namespace hetcomm::tcp
