#include "src/core/peer/transfer/reshard_notes.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "src/base/text.h"

namespace hetcomm {
namespace {

constexpr size_t kPieceBytes = 64;  // maximum text in one protocol message
constexpr uint64_t kMaxExecution = uint64_t{1} << 48;

}  // namespace

void ReshardNotes::send(const ReshardNote& note) {
  const size_t size = std::min(note.text.size(), ReshardBoard::kMaxText);
  for (size_t at = 0; at < size; at += kPieceBytes) {
    association_.send_protocol(MessageKind::kReshardText, 0, 0, note.text.data() + at,
                               std::min(kPieceBytes, size - at));
  }
  association_.send_protocol(MessageKind::kReshardNote, note.tag,
                             static_cast<uint64_t>(note.action), &note.body, sizeof(note.body));
}

void ReshardNotes::receive_text(ConstByteSpan payload) {
  if (payload.size() > kPieceBytes || text_.size() + payload.size() > ReshardBoard::kMaxText) {
    association_.violated("text of a note that is too long");
    return;
  }
  text_.append(reinterpret_cast<const char*>(payload.data()), payload.size());
}

void ReshardNotes::receive(const WireHeader& header, ConstByteSpan payload) {
  ReshardNote note{.action = static_cast<ReshardAction>(header.value),
                   .tag = header.tag,
                   .body = {},
                   .text = printable(std::exchange(text_, {}))};
  if (!decode_body(payload, &note.body) || header.value == 0 ||
      header.value >= static_cast<uint64_t>(ReshardAction::kPastLast) ||
      note.body.execution > kMaxExecution || note.body.number == ReshardBoard::kUnknown) {
    association_.violated("note about a plan that means nothing");
    return;
  }
  Channel* const channel = channels_.find(note.body.channel);
  if (channel == nullptr || channel->closed) return;
  std::vector<ReshardBoard::Answer> answers;
  if (!channel->plans.receive(association_.rank(), note, &answers)) {
    association_.violated("too many notes about plans that nobody here has made");
    return;
  }
  for (const ReshardBoard::Answer& answer : answers) send(answer.note);
}

}  // namespace hetcomm
