#include "src/reshard/talk.h"

#include <fmt/core.h>

#include "src/base/text.h"

namespace hetcomm::reshard {
namespace {

constexpr size_t kMaxLabels = 1u << 16;  // bounds the labels of executions that never start here

}  // namespace

Status GivenUp::status() const {
  const bool refused = code == Code::kMismatch;
  return status_or_code(refused ? Code::kMismatch : Code::kAborted, [&] {
    return fmt::format("rank {} has {} redistribution #{} ({}): {}", origin,
                       refused ? "refused" : "given up", execution, code_name(code), text);
  });
}

ReshardTalk::ReshardTalk(Communicator& communicator, ReshardTalkClient& client,
                         ReshardBoard::Terms terms, std::vector<int> peers)
    : communicator_(communicator),
      client_(client),
      terms_(std::move(terms)),
      peers_(std::move(peers)) {}

void ReshardTalk::enter() { communicator_.channel().plans.add(*this, terms_); }

uint32_t ReshardTalk::number_with(int rank) const {
  return communicator_.channel().plans.number_of(*this, rank);
}

void ReshardTalk::catch_up() {
  ReshardBoard& board = communicator_.channel().plans;
  for (const ReshardBoard::Answer& answer : board.catch_up(*this)) send(answer.rank, answer.note);
}

void ReshardTalk::close() {
  ReshardBoard& board = communicator_.channel().plans;
  for (const int peer : peers_) {
    if (board.was_told(*this, peer)) send(peer, note_to(peer, ReshardAction::kGone));
  }
  board.remove(*this);
}

void ReshardTalk::introduce() {
  if (is_introduced_) return;
  is_introduced_ = true;
  for (const int peer : peers_) send(peer, note_to(peer, ReshardAction::kStarted));
}

void ReshardTalk::tell(const GivenUp& given_up, int but) {
  for (const int peer : peers_) {
    if (peer == but) continue;
    ReshardNote note = note_to(peer, ReshardAction::kGivenUp);
    note.body.execution = given_up.execution;
    note.body.code = static_cast<int32_t>(given_up.code);
    note.body.origin = given_up.origin;
    note.text = text_or_none([&] { return given_up.text; });
    send(peer, note);
  }
}

void ReshardTalk::tell(uint64_t execution, const Label& label) {
  for (const int peer : peers_) {
    ReshardNote note = note_to(peer, ReshardAction::kLabelled);
    note.body.execution = execution;
    note.body.step = label.step;
    note.body.micro_batch = label.micro_batch;
    send(peer, note);
  }
}

const Label* ReshardTalk::told(int rank, uint64_t execution) const {
  const auto found = labels_.find({execution, rank});
  return found == labels_.end() ? nullptr : &found->second;
}

const std::pair<const std::pair<uint64_t, int>, Label>* ReshardTalk::find_other(
    uint64_t execution, const Label& own) const {
  auto each = labels_.lower_bound({execution, 0});
  while (each != labels_.end() && each->first.first == execution && each->second == own) ++each;
  return each != labels_.end() && each->first.first == execution ? &*each : nullptr;
}

void ReshardTalk::forget_labels(uint64_t execution) {
  labels_.erase(labels_.lower_bound({execution, 0}), labels_.lower_bound({execution + 1, 0}));
}

std::string ReshardTalk::lacking() const {
  std::string text;
  for (const auto& [rank, others] : lacking_) {
    text += fmt::format("; rank {} has no plan with tag {} and rank {}; {}",
                        communicator_.rank_of(rank), terms_.tag, communicator_.rank(), others);
  }
  return text;
}

void ReshardTalk::peer_differs(int rank, uint64_t content) {
  const Status why = status_or_code(Code::kMismatch, [&]() HETCOMM_UNDER_BATON {
    return fmt::format(
        "rank {} has made another plan than rank {} ({:016x} and {:016x}): layouts, the order of "
        "their strides, types or options differ",
        communicator_.rank_of(rank), communicator_.rank(), content, terms_.content);
  });
  client_.plan_differs(rank, why);
}

void ReshardTalk::peer_lacks(int rank, std::string_view others) {
  if (others.empty()) {
    lacking_.erase(rank);
  } else {
    lacking_[rank] = std::string(others);
  }
}

void ReshardTalk::peer_says(int rank, const ReshardNote& note) {
  if (note.action == ReshardAction::kGivenUp) {
    client_.peer_gave_up(rank, {.execution = note.body.execution,
                                .code = static_cast<Code>(note.body.code),
                                .origin = note.body.origin,
                                .text = note.text});
    return;
  }
  if (labels_.size() >= kMaxLabels) return;
  labels_[{note.body.execution, rank}] = {note.body.step, note.body.micro_batch};
  client_.label_came(note.body.execution);
}

ReshardNote ReshardTalk::note_to(int rank, ReshardAction action) const {
  ReshardNote note{.action = action, .tag = terms_.tag, .body = {}, .text = {}};
  note.body.channel = communicator_.channel_at(rank);
  note.body.reply_channel = communicator_.id();
  note.body.number = number_with(rank);
  note.body.older = communicator_.channel().plans.note_told(*this, rank);
  note.body.content = terms_.content;
  return note;
}

void ReshardTalk::send(int rank, const ReshardNote& note) {
  communicator_.job().pair(rank).traffic().reshard_notes().send(note);
}

}  // namespace hetcomm::reshard
