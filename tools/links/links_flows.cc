#include "tools/links/links_flows.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <deque>

#include "tools/common/session.h"

namespace tools {
namespace {

constexpr int kSlots = 8;  // messages of one transfer in flight
constexpr uint64_t kFirstBytes = 16u << 10;
constexpr uint64_t kMaxBytes = 4u << 20;
constexpr uint64_t kMaxBytesOfRank = 64u << 20;  // limit for all receive buffers of a rank
constexpr uint64_t kDataTag = 1;
constexpr uint64_t kLatencyTag = 2;

int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Chooses the message size of one sender. The size doubles, up to a maximum, while a window of
// messages takes less than 100 ms, or while doubling increases the rate by more than 20 %.
class MessageSize {
 public:
  MessageSize(uint64_t most, int64_t started_ns) : most_(most), window_began_(started_ns) {}

  uint64_t bytes() const { return bytes_; }
  void sent(uint64_t bytes, int64_t now_ns) {
    window_bytes_ += bytes;
    if (++window_messages_ < kSlots) return;
    constexpr int64_t kShort = 100'000'000;
    const int64_t took = std::max<int64_t>(now_ns - window_began_, 1);
    const double rate = static_cast<double>(window_bytes_) / static_cast<double>(took);
    grows_ = grows_ && (took < kShort || rate > 1.2 * rate_);
    if (grows_) bytes_ = std::min(2 * bytes_, most_);
    rate_ = rate;
    window_began_ = now_ns;
    window_bytes_ = 0;
    window_messages_ = 0;
  }

 private:
  const uint64_t most_;
  uint64_t bytes_ = kFirstBytes;
  bool grows_ = true;
  double rate_ = 0;  // rate of the previous window
  int64_t window_began_;
  uint64_t window_bytes_ = 0;
  int window_messages_ = 0;
};

// Measures the rate in the second half of the time. All transfers of a round use the same interval,
// so the sum of their rates is the load of a shared link. The bytes of a message are counted as if
// they had arrived evenly since the previous message.
class Arrivals {
 public:
  Arrivals(int64_t started_ns, int64_t duration_ns)
      : begin_ns_(started_ns + duration_ns / 2),
        end_ns_(started_ns + duration_ns),
        last_ns_(started_ns) {}

  void add(uint64_t bytes, int64_t now_ns) {
    const int64_t from = std::clamp(last_ns_, begin_ns_, end_ns_);
    const int64_t to = std::clamp(now_ns, begin_ns_, end_ns_);
    const auto between = static_cast<double>(std::max<int64_t>(now_ns - last_ns_, 1));
    bytes_ += static_cast<double>(bytes) * static_cast<double>(to - from) / between;
    last_ns_ = now_ns;
  }
  double bytes_per_s() const { return bytes_ * 1e9 / static_cast<double>(end_ns_ - begin_ns_); }

 private:
  const int64_t begin_ns_;
  const int64_t end_ns_;
  int64_t last_ns_;
  double bytes_ = 0;
};

// A FlowBuffer is a buffer in memory of a rank's device or of the host.
class FlowBuffer {
 public:
  FlowBuffer() = default;
  FlowBuffer(const FlowBuffer&) = delete;
  FlowBuffer& operator=(const FlowBuffer&) = delete;
  ~FlowBuffer() {
    if (memory_ != nullptr) require(hetcomm_memory_destroy(memory_), "freeing device memory");
  }

  void allocate(const FlowMemory& where, uint64_t size) {
    if (where.device == 0) {
      host_.resize(size);
    } else if (memory_ == nullptr) {
      require(hetcomm_memory_allocate(where.context, where.device, size, &memory_),
              "allocating device memory");
    }
    size_ = size;
  }
  hetcomm_buffer_t whole() { return first(size_); }
  hetcomm_buffer_t first(uint64_t bytes) {
    return memory_ != nullptr ? hetcomm_buffer_memory(memory_, 0, bytes)
                              : hetcomm_buffer_host(host_.data(), bytes);
  }

 private:
  std::vector<uint8_t> host_;
  hetcomm_memory_t* memory_ = nullptr;
  uint64_t size_ = 0;
};

// A Slot holds one message in flight. The last message of a sending slot has one byte, and ends one
// slot of the receiver.
struct Slot {
  hetcomm_request_t* request = nullptr;
  size_t sender = SIZE_MAX;    // index of the sender; SIZE_MAX: the slot receives
  size_t receiver = SIZE_MAX;  // index of the receiver; SIZE_MAX: the slot sends
  uint64_t bytes = 0;
  bool ends = false;
  FlowBuffer memory;  // used by receives
};

class FlowRunner {
 public:
  FlowRunner(hetcomm_communicator_t* communicator, int own, const std::vector<RankPair>& pairs,
             double seconds, const FlowMemory& memory)
      : communicator_(communicator),
        memory_(memory),
        duration_ns_(static_cast<int64_t>(seconds * 1e9)),
        started_ns_(steady_ns()),
        most_bytes_(most_bytes(pairs)) {
    for (const auto& [from, to] : pairs) {
      if (to == own) add_receiver(from, to);
    }
    for (const auto& [from, to] : pairs) {
      if (from == own) add_sender(to);
    }
  }

  std::vector<Flow> run() {
    while (open_ > 0) handle(wait());
    std::vector<Flow> flows;
    for (const Receiver& receiver : receivers_) {
      flows.push_back(receiver.flow);
      flows.back().bytes_per_s = receiver.arrivals.bytes_per_s();
    }
    return flows;
  }

 private:
  struct Receiver {
    Flow flow;
    Arrivals arrivals;
  };
  struct Sender {
    int to;
    MessageSize size;
  };

  // Returns the largest message size of the round. All ranks compute the same one.
  static uint64_t most_bytes(const std::vector<RankPair>& pairs) {
    uint64_t bytes = kMaxBytes;
    for (const auto& [from, to] : pairs) {
      const auto received = static_cast<uint64_t>(
          std::count_if(pairs.begin(), pairs.end(),
                        [to = to](const RankPair& pair) { return pair.second == to; }));
      while (bytes > kFirstBytes && bytes * kSlots * received > kMaxBytesOfRank) bytes /= 2;
    }
    return bytes;
  }

  void add_receiver(int from, int to) {
    receivers_.push_back({{from, to, 0}, Arrivals(started_ns_, duration_ns_)});
    for (int i = 0; i < kSlots; ++i) {
      Slot& slot = slots_.emplace_back();
      slot.receiver = receivers_.size() - 1;
      slot.memory.allocate(memory_, most_bytes_);
      ++open_;
      post_receive(slot);
    }
  }

  void add_sender(int to) {
    data_.allocate(memory_, most_bytes_);
    senders_.push_back({to, MessageSize(most_bytes_, started_ns_)});
    for (int i = 0; i < kSlots; ++i) {
      Slot& slot = slots_.emplace_back();
      slot.sender = senders_.size() - 1;
      ++open_;
      post_send(slot, kFirstBytes);
    }
  }

  void post_receive(Slot& slot) {
    require(hetcomm_recv(communicator_, receivers_[slot.receiver].flow.from, kDataTag,
                         HETCOMM_EXACT_TAG, slot.memory.whole(), nullptr, &slot.request),
            "receiving");
  }
  void post_send(Slot& slot, uint64_t bytes) {
    slot.bytes = bytes;
    require(hetcomm_send(communicator_, senders_[slot.sender].to, kDataTag, data_.first(bytes),
                         nullptr, &slot.request),
            "sending");
  }

  // Waits until the request of a slot completes. Each call starts at a different slot, so that no
  // slot is always served first.
  Slot& wait() {
    const size_t count = slots_.size();
    first_ = (first_ + 1) % count;
    requests_.resize(count);
    for (size_t i = 0; i < count; ++i) requests_[i] = slots_[(first_ + i) % count].request;
    size_t index = 0;
    require(hetcomm_request_wait_any(count, requests_.data(), HETCOMM_TIMEOUT_INFINITE, &index,
                                     &completion_),
            "waiting for a message");
    require(completion_);
    Slot& slot = slots_[(first_ + index) % count];
    slot.request = nullptr;
    return slot;
  }

  void handle(Slot& slot) {
    const int64_t now = steady_ns();
    if (slot.receiver != SIZE_MAX) {
      const uint64_t bytes = completion_.bytes_received;
      if (bytes > 1) {
        receivers_[slot.receiver].arrivals.add(bytes, now);
        post_receive(slot);
      } else {
        --open_;
      }
      return;
    }
    if (slot.ends) {
      --open_;
      return;
    }
    MessageSize& size = senders_[slot.sender].size;
    size.sent(slot.bytes, now);
    slot.ends = now - started_ns_ >= duration_ns_;
    post_send(slot, slot.ends ? 1 : size.bytes());
  }

  hetcomm_communicator_t* const communicator_;
  const FlowMemory memory_;
  const int64_t duration_ns_;
  const int64_t started_ns_;
  const uint64_t most_bytes_;
  FlowBuffer data_;
  std::vector<Receiver> receivers_;
  std::vector<Sender> senders_;
  std::deque<Slot> slots_;
  size_t open_ = 0;
  size_t first_ = 0;
  std::vector<hetcomm_request_t*> requests_;
  hetcomm_completion_t completion_{};
};

void transfer_word(hetcomm_communicator_t* communicator, int peer, bool sends, uint64_t* word) {
  hetcomm_request_t* request = nullptr;
  const hetcomm_buffer_t buffer = hetcomm_buffer_host(word, sizeof(*word));
  require(sends ? hetcomm_send(communicator, peer, kLatencyTag, buffer, nullptr, &request)
                : hetcomm_recv(communicator, peer, kLatencyTag, HETCOMM_EXACT_TAG, buffer, nullptr,
                               &request),
          "measuring the latency");
  wait(request);
}

}  // namespace

std::vector<Flow> run_flows(hetcomm_communicator_t* communicator, int own,
                            const std::vector<RankPair>& pairs, double seconds,
                            const FlowMemory& memory) {
  return FlowRunner(communicator, own, pairs, seconds, memory).run();
}

uint64_t run_latency(hetcomm_communicator_t* communicator, int own, RankPair pair) {
  constexpr size_t kMax = 100;
  constexpr size_t kMin = 8;
  constexpr size_t kWarmUp = 3;
  constexpr int64_t kEnoughNs = 200'000'000;
  // The exchanged word is 1 if another round trip follows, and 0 after the last one.
  uint64_t more = 1;
  if (own == pair.second) {
    while (more != 0) {
      transfer_word(communicator, pair.first, false, &more);
      transfer_word(communicator, pair.first, true, &more);
    }
    return 0;
  }
  std::vector<int64_t> times;
  const int64_t started = steady_ns();
  while (more != 0) {
    const int64_t sent = steady_ns();
    const bool enough = sent - started > kEnoughNs && times.size() >= kMin;
    more = times.size() + 1 < kMax && !enough ? 1 : 0;
    uint64_t answer = 0;
    transfer_word(communicator, pair.second, true, &more);
    transfer_word(communicator, pair.second, false, &answer);
    times.push_back(steady_ns() - sent);
  }
  std::sort(times.begin() + kWarmUp, times.end());
  return static_cast<uint64_t>(times[kWarmUp + (times.size() - kWarmUp) / 2] / 2);
}

}  // namespace tools
