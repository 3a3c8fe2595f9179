#include "src/core/communicator/split.h"

#include <algorithm>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "src/base/text.h"
#include "src/core/collectives/collectives.h"
#include "src/core/communicator/collective_calls.h"
#include "src/core/job/pending_channel.h"

namespace hetcomm {
namespace {

// The entry that each rank sends to the others.
struct SplitEntry {
  int32_t color;
  int32_t key;
  uint32_t channel;  // number of this rank's channel; 0 without a color
  int32_t code;      // a Code: why the rank cannot take part
};

// Returns the reason why collective operations are no longer possible; OK while they are.
Status check_collectives(Communicator& communicator) {
  const Engine::Baton baton(communicator.engine());
  const Channel& channel = communicator.channel();
  return channel.closed ? channel.aborted : channel.collectives_failed;
}

Status exchange_entries(Communicator& parent, const SplitEntry& mine,
                        std::vector<SplitEntry>* all) {
  try {
    all->resize(parent.ranks().size());
  } catch (const std::bad_alloc&) {
    const Engine::Baton baton(parent.engine());
    parent.collectives().fail(Code::kOutOfMemory, text_or_none([&] {
                                return fmt::format("split: rank {} is out of memory",
                                                   parent.rank());
                              }));
    return Code::kOutOfMemory;
  }
  const ByteSpan table = std::as_writable_bytes(std::span(*all));
  const hetcomm_buffer_t send = hetcomm_buffer_host(&mine, sizeof(mine));
  const hetcomm_buffer_t receive = hetcomm_buffer_host(table.data(), table.size());
  Status status = run_collective(parent, {.kind = collectives::Kind::kAllgather,
                                          .sends = &send,
                                          .send_count = 1,
                                          .receives = &receive,
                                          .receive_count = 1,
                                          .splits = true});
  if (!status.ok()) all->clear();
  return status;
}

// Makes the communicator of the ranks with |color|, ordered by their keys, over |channel|.
Result<std::unique_ptr<Communicator>> join(Communicator& parent, const std::vector<SplitEntry>& all,
                                           int32_t color, Channel& channel) {
  try {
    std::vector<size_t> chosen;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank].color == color) chosen.push_back(rank);
    }
    std::stable_sort(chosen.begin(), chosen.end(),
                     [&](size_t a, size_t b) { return all[a].key < all[b].key; });
    std::vector<MemberChannel> members;
    for (const size_t rank : chosen) {
      members.push_back({parent.ranks()[rank], all[rank].channel});
    }
    return parent.make_child(channel, std::move(members));
  } catch (const std::bad_alloc&) {
    return Status(Code::kOutOfMemory);
  }
}

}  // namespace

Result<std::unique_ptr<Communicator>> split(Communicator& parent, int32_t color, int32_t key,
                                            const Status& refused) {
  if (Status status = check_collectives(parent); !status.ok()) return status.annotate("split");
  PendingChannel pending(parent.shared_job());
  SplitEntry mine{color, key, 0, 0};
  Status own = refused;
  if (own.ok() && color != HETCOMM_NO_COLOR) {
    try {
      mine.channel = pending.open().id;
    } catch (const std::bad_alloc&) {
      own = Status(Code::kOutOfMemory);
    }
  }
  mine.code = static_cast<int32_t>(own.code());
  std::vector<SplitEntry> all;
  Status status = exchange_entries(parent, mine, &all);
  for (size_t rank = 0; rank < all.size() && status.ok(); ++rank) {
    const auto code = static_cast<Code>(all[rank].code);
    if (code == Code::kOk) continue;
    pending.close();
    return own.ok() ? Status(Code::kAborted, fmt::format("split: rank {}: {}: {}", rank,
                                                         code_name(code), code_text(code)))
                    : own;
  }
  if (!own.ok()) return own;
  if (!status.ok()) return status.annotate("split");
  if (pending.channel() == nullptr) return std::unique_ptr<Communicator>();
  auto made = join(parent, all, color, *pending.channel());
  if (made.ok()) pending.keep();
  return made;
}

}  // namespace hetcomm
