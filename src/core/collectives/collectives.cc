#include "src/core/collectives/collectives.h"

#include <algorithm>
#include <new>
#include <optional>

#include "src/base/baton_role.h"
#include "src/base/room.h"
#include "src/base/text.h"
#include "src/core/collectives/call_note.h"
#include "src/core/collectives/collective.h"
#include "src/core/collectives/team.h"
#include "src/core/collectives/variables.h"
#include "src/core/peer/wire/reason.h"

namespace hetcomm::collectives {

Collectives::Collectives(JobMember& communicator, Job& job, const Config& config)
    : communicator_(communicator),
      job_(job),
      checks_(config.number(variable::kCollectiveCheck) != 0),
      may_share_(config.number(variable::kCollectiveShared) != 0) {}

Collectives::~Collectives() {
  const Channel& channel = communicator_.channel();
  if (!has_failed() || told_) return;
  job_.log().warn(
      "communicator {}: its collective operations had failed, and none was called that would have "
      "told so: {}",
      channel.id, channel.collectives_failed.text());
}

std::unique_ptr<Collective> Collectives::take() {
  if (spare_.empty()) return std::make_unique<Collective>();
  std::unique_ptr<Collective> collective = std::move(spare_.back());
  spare_.pop_back();
  return collective;
}

void Collectives::recycle(std::unique_ptr<Collective> collective) {
  constexpr size_t kMaxSpare = 32;
  if (spare_.size() == kMaxSpare) return;
  collective->reset();
  try {
    spare_.push_back(std::move(collective));
  } catch (const std::bad_alloc&) {
    // The object is deleted instead of being kept for reuse.
  }
}

Team* Collectives::team_of(const std::vector<int32_t>& list) {
  if (const auto known = by_list_.find(list); known != by_list_.end()) return known->second;
  auto made = std::make_unique<Team>(*this, list);
  // The call fails if two lists have the same mark, which is very rare.
  const auto [mark, is_new] = by_mark_.emplace(made->mark(), made.get());
  if (!is_new) return nullptr;
  try {
    make_room(teams_);
    by_list_.emplace(list, made.get());
  } catch (const std::bad_alloc&) {
    by_mark_.erase(mark);
    throw;
  }
  teams_.push_back(std::move(made));
  Team& team = *teams_.back();
  std::erase_if(early_calls_, [&](const auto& early) HETCOMM_UNDER_BATON {
    const std::optional<CallNote> note = CallNote::decode(early.second);
    if (!note || note->team != team.hash()) return false;
    team.peer_says(early.first, *note);
    return true;
  });
  return &team;
}

void Collectives::refuse(std::string_view why) {
  const Channel& channel = communicator_.channel();
  if (!channel.collectives_failed.ok() || channel.closed) return;
  if (Team* team = team_of({}); team != nullptr) team->refuse(why);
}

Status Collectives::start(Operation& operation) {
  const Channel& channel = communicator_.channel();
  auto& composite = static_cast<Collective&>(*operation.composite);
  // team_of() passes notes that arrived early to a new team, which may then end all operations.
  Team* team = team_of(composite.list());
  if (!channel.collectives_failed.ok()) {
    note_told();
    return channel.collectives_failed.annotate(
        "the collective operations of the communicator have failed before");
  }
  if (team == nullptr) {
    return Status(Code::kUnsupported,
                  "this list of ranks has the same hash as an earlier one; list the ranks in "
                  "another order, or "
                  "split the communicator");
  }
  std::unique_ptr<Collective> collective(&composite);
  try {
    team->submit(collective);
  } catch (const std::bad_alloc&) {
    if (collective != nullptr)
      static_cast<void>(collective.release());  // the operation still owns it
    throw;
  }
  return {};
}

void Collectives::fail(Code code, std::string_view text) {
  const Status why = status_or_code(code, [&] { return std::string(text); });
  job_.members().fail_collectives(communicator_, reason_for_others(job_.rank(), why), true);
}

void Collectives::end(const Status& why) {
  for (size_t i = 0; i < teams_.size(); ++i) {
    teams_[i]->fail_all(why.code(), why.text());
  }
}

void Collectives::note_unexpected_message(int job_rank, uint64_t tag) {
  const auto found = by_mark_.find(Team::mark_of(tag));
  if (found != by_mark_.end()) found->second->note_unexpected_message(job_rank, tag);
}

void Collectives::peer_lost(int job_rank) {
  for (const auto& team : teams_) team->peer_lost(job_rank);
}

void Collectives::peer_calls(int job_rank, ConstByteSpan bytes) {
  constexpr size_t kMaxEarlyCalls = 256;
  const std::optional<CallNote> note = CallNote::decode(bytes);
  if (!note) return;
  const auto found = by_mark_.find(Team::mark_of_hash(note->team));
  if (found != by_mark_.end() && found->second->hash() == note->team) {
    found->second->peer_says(job_rank, *note);
    return;
  }
  if (early_calls_.size() < kMaxEarlyCalls) {
    early_calls_.emplace_back(job_rank, std::vector<std::byte>(bytes.begin(), bytes.end()));
  }
}

}  // namespace hetcomm::collectives
