// Communicator: barrier and split, which are collective operations that the caller waits for.
#include <algorithm>

#include "src/base/text.h"
#include "src/core/collectives/collectives.h"
#include "src/core/collectives/task.h"
#include "src/core/communicator/communicator.h"
#include "src/core/job/context.h"
#include "src/core/job/pending_channel.h"

namespace hetcomm {

// Each rank tells this to the others.
struct Communicator::SplitEntry {
  int32_t color;
  int32_t key;
  uint32_t channel;  // number of this rank's; 0 without a color
  int32_t code;      // a Code: why it cannot take part
};

// The other ranks wait for this one: what keeps it from taking part ends the operation on them too.
Status Communicator::run_collective(const collectives::Arguments& arguments) {
  Operation* operation = nullptr;
  std::string text;
  Code code = Code::kOutOfMemory;
  try {
    code = post_collective(arguments, &operation, &text);
  } catch (const std::bad_alloc&) {
  }
  if (code != Code::kOk) {
    if (text.empty()) text = code_text(code);
    const Engine::Baton baton(engine_);
    collectives_->fail(code, text_or_none([&] { return fmt::format("rank {}: {}", rank_, text); }));
    return Status(code, std::move(text));
  }
  // It ends by itself at its deadline; its memory is quiet only then.
  engine_.wait(kForever, [operation] { return operation->state() == OperationState::kComplete; });
  Status status;
  if (operation->outcome.code != Code::kOk) {
    status = Status(operation->outcome.code, operation->outcome.text
                                                 ? *operation->outcome.text
                                                 : std::string(code_text(operation->outcome.code)));
  }
  engine_.pool().recycle(operation);
  return status;
}

Status Communicator::barrier(uint64_t timeout_ns) {
  hetcomm_collective_options_t options{};
  options.struct_size = sizeof(options);
  options.timeout_ns = timeout_ns;
  return run_collective({.kind = collectives::Kind::kBarrier, .options = &options})
      .annotate("barrier");
}

Result<std::unique_ptr<Communicator>> Communicator::split(int32_t color, int32_t key,
                                                          const Status& refused) {
  if (Status status = check_collectives(); !status.ok()) return status.annotate("split");
  PendingChannel pending(job_);
  SplitEntry mine{color, key, 0, static_cast<int32_t>(refused.code())};
  if (refused.ok() && color != HETCOMM_NO_COLOR) {
    try {
      mine.channel = pending.open().id;
    } catch (const std::bad_alloc&) {
      mine.code = static_cast<int32_t>(Code::kOutOfMemory);
    }
  }
  std::vector<SplitEntry> all;
  Status status = exchange_split(mine, &all);
  for (size_t rank = 0; rank < all.size() && status.ok(); ++rank) {
    const auto code = static_cast<Code>(all[rank].code);
    if (code == Code::kOk) continue;
    pending.close();
    return refused.ok() ? Status(code, fmt::format("split: rank {} cannot take part: {}", rank,
                                                   code_text(code)))
                        : refused;
  }
  if (!refused.ok()) return refused;
  if (!status.ok()) return status.annotate("split");
  if (pending.channel() == nullptr) return std::unique_ptr<Communicator>();
  auto made = join_split(all, color, *pending.channel());
  if (made.ok()) pending.keep();
  return made;
}

Status Communicator::check_collectives() {
  const Engine::Baton baton(engine_);
  return channel().closed ? channel().aborted : channel().collectives_failed;
}

Status Communicator::exchange_split(const SplitEntry& mine, std::vector<SplitEntry>* all) {
  try {
    all->resize(ranks().size());
  } catch (const std::bad_alloc&) {
    const Engine::Baton baton(engine_);
    collectives_->fail(Code::kOutOfMemory, text_or_none([&] {
                         return fmt::format("split: rank {} has no memory", rank_);
                       }));
    return Code::kOutOfMemory;
  }
  const ByteSpan table = std::as_writable_bytes(std::span(*all));
  const hetcomm_buffer_t send = hetcomm_buffer_host(&mine, sizeof(mine));
  const hetcomm_buffer_t receive = hetcomm_buffer_host(table.data(), table.size());
  Status status = run_collective({.kind = collectives::Kind::kAllgather,
                                  .sends = &send,
                                  .send_count = 1,
                                  .receives = &receive,
                                  .receive_count = 1,
                                  .splits = true});
  if (!status.ok()) all->clear();
  return status;
}

// Makes the communicator of the ranks of |color|, in the order of their keys, over |channel|.
Result<std::unique_ptr<Communicator>> Communicator::join_split(const std::vector<SplitEntry>& all,
                                                               int32_t color, Channel& channel) {
  try {
    std::vector<size_t> chosen;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank].color == color) chosen.push_back(rank);
    }
    std::stable_sort(chosen.begin(), chosen.end(),
                     [&](size_t a, size_t b) { return all[a].key < all[b].key; });
    std::vector<Member> members;
    for (const size_t rank : chosen) members.push_back({ranks()[rank], all[rank].channel});
    return std::unique_ptr<Communicator>(
        new Communicator(context_, job_, channel, std::move(members), this, options_));
  } catch (const std::bad_alloc&) {
    return Status(Code::kOutOfMemory);
  }
}

}  // namespace hetcomm
