// Communicator: barrier and split, made of messages on the collective channel.
#include <algorithm>

#include "src/core/communicator.h"
#include "src/core/context.h"

namespace hetcomm {
namespace {

constexpr uint64_t kRoundBits = 8;

// A split under way on this rank, with the channel that other ranks may use before it is done here.
class SplitUnderWay {
 public:
  SplitUnderWay(Mesh& mesh, bool joins) : mesh_(mesh) {
    const Engine::Baton baton(mesh_.engine());
    if (joins) channel_ = &mesh_.open_channel();
    mesh_.split_begins();
  }
  SplitUnderWay(const SplitUnderWay&) = delete;
  SplitUnderWay& operator=(const SplitUnderWay&) = delete;
  ~SplitUnderWay() {
    const Engine::Baton baton(mesh_.engine());
    if (channel_ != nullptr) mesh_.close_channel(*channel_);
    mesh_.split_ends();
  }
  // Null for a rank that gets no communicator.
  Channel* channel() const { return channel_; }
  // The communicator has it.
  void keep_channel() { channel_ = nullptr; }

 private:
  Mesh& mesh_;
  Channel* channel_ = nullptr;
};

}  // namespace

struct Communicator::SplitEntry {
  int32_t color;
  int32_t key;
  uint32_t channel;  // number of this rank's; 0 without a color
};

Status Communicator::collective_post(OperationKind kind, int32_t rank, uint64_t tag, ByteSpan bytes,
                                     uint64_t deadline_ns, Operation** out) {
  const uint64_t now = now_ns();
  hetcomm_operation_options_t options{};
  options.struct_size = sizeof(options);
  options.timeout_ns = deadline_ns == kForever ? HETCOMM_TIMEOUT_INFINITE
                                               : (deadline_ns > now ? deadline_ns - now : 1);
  const hetcomm_buffer_t buffer = hetcomm_buffer_host(bytes.data(), bytes.size());
  std::string text;
  const Code code = post({.kind = kind,
                          .peer = rank,
                          .tag = tag,
                          .ignore = 0,
                          .buffers = &buffer,
                          .count = 1,
                          .options = &options,
                          .collective = true},
                         out, &text);
  return code == Code::kOk ? Status() : Status(code, std::move(text));
}

Status Communicator::collective_wait(Operation* operation) {
  // It ends by itself at its deadline; its memory is quiet only then.
  engine_.wait(kForever, [operation] { return operation->state() == OperationState::kComplete; });
  Status status;
  if (operation->code != Code::kOk) {
    status = Status(operation->code, operation->text ? *operation->text : "");
  }
  engine_.pool().recycle(operation);
  return status;
}

Status Communicator::collective_send(int32_t rank, uint64_t tag, ConstByteSpan bytes,
                                     uint64_t deadline_ns) {
  Operation* operation = nullptr;
  const ByteSpan writable(const_cast<std::byte*>(bytes.data()), bytes.size());
  HETCOMM_RETURN_IF_ERROR(
      collective_post(OperationKind::kSend, rank, tag, writable, deadline_ns, &operation));
  return collective_wait(operation);
}

Status Communicator::collective_receive(int32_t rank, uint64_t tag, ByteSpan bytes,
                                        uint64_t deadline_ns) {
  Operation* operation = nullptr;
  HETCOMM_RETURN_IF_ERROR(
      collective_post(OperationKind::kReceive, rank, tag, bytes, deadline_ns, &operation));
  return collective_wait(operation);
}

Status Communicator::check_open() {
  const Engine::Baton baton(engine_);
  return channel_->closed ? channel_->aborted : Status();
}

// Dissemination: in round k every rank tells the one 2^k after it that all 2^k before it have
// entered.
Status Communicator::barrier(uint64_t timeout_ns) {
  const uint64_t timeout = timeout_ns == 0 ? default_timeout_ns_ : timeout_ns;
  const uint64_t deadline = deadline_after(now_ns(), timeout);
  if (Status status = check_open(); !status.ok()) return status.annotate("barrier");
  const uint64_t tag = ++collectives_ << kRoundBits;
  uint64_t round = 0;
  for (int32_t distance = 1; distance < size(); distance *= 2, ++round) {
    const int32_t to = (rank_ + distance) % size();
    const int32_t from = (rank_ + size() - distance) % size();
    Operation* receive = nullptr;
    Status status =
        collective_post(OperationKind::kReceive, from, tag + round, {}, deadline, &receive);
    if (!status.ok()) return status.annotate("barrier");
    status = collective_send(to, tag + round, {}, deadline);
    const Status received = collective_wait(receive);
    if (!status.ok()) return status.annotate("barrier");
    if (!received.ok()) return received.annotate("barrier");
  }
  return {};
}

// Through rank 0, which hands the table to all.
Status Communicator::exchange_split(const SplitEntry& mine, std::vector<SplitEntry>* all,
                                    uint64_t deadline_ns) {
  const uint64_t tag = ++collectives_ << kRoundBits;
  all->assign(ranks_.size(), SplitEntry{});
  const ByteSpan table = std::as_writable_bytes(std::span(*all));
  if (rank_ != 0) {
    HETCOMM_RETURN_IF_ERROR(
        collective_send(0, tag, std::as_bytes(std::span(&mine, 1)), deadline_ns));
    return collective_receive(0, tag + 1, table, deadline_ns);
  }
  (*all)[0] = mine;
  for (int32_t rank = 1; rank < size(); ++rank) {
    const ByteSpan entry =
        table.subspan(static_cast<size_t>(rank) * sizeof(SplitEntry), sizeof(SplitEntry));
    HETCOMM_RETURN_IF_ERROR(collective_receive(rank, tag, entry, deadline_ns));
  }
  for (int32_t rank = 1; rank < size(); ++rank) {
    HETCOMM_RETURN_IF_ERROR(collective_send(rank, tag + 1, table, deadline_ns));
  }
  return {};
}

Result<std::unique_ptr<Communicator>> Communicator::split(int32_t color, int32_t key) {
  if (Status status = check_open(); !status.ok()) return status.annotate("split");
  SplitUnderWay split(*mesh_, color != HETCOMM_NO_COLOR);
  Channel* const channel = split.channel();
  std::vector<SplitEntry> all;
  const uint64_t deadline = deadline_after(now_ns(), default_timeout_ns_);
  const SplitEntry mine{color, key, channel != nullptr ? channel->id : 0};
  if (Status status = exchange_split(mine, &all, deadline); !status.ok()) {
    return status.annotate("split");
  }
  if (channel == nullptr) return std::unique_ptr<Communicator>();
  std::vector<size_t> chosen;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].color == color) chosen.push_back(rank);
  }
  std::stable_sort(chosen.begin(), chosen.end(),
                   [&](size_t a, size_t b) { return all[a].key < all[b].key; });
  std::vector<Member> members;
  for (const size_t rank : chosen) members.push_back({ranks_[rank], all[rank].channel});
  std::unique_ptr<Communicator> made(
      new Communicator(context_, mesh_, *channel, std::move(members), this, options_));
  split.keep_channel();
  return made;
}

}  // namespace hetcomm
