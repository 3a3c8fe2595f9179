// HotSet holds the few streams on which data is likely to arrive. progress() receives on them
// directly, since a direct receive finds a message at least a microsecond earlier than epoll does.
// All other streams are left to the poller.
//
// A stream enters the set when it receives data, or when it sends a message, since an answer is
// likely. It leaves after more than kMaxMisses consecutive receives that found nothing, or when
// other streams were active more recently. Each poll() receives on all bulk streams in the set, on
// the most recent message stream, and on at most one other message stream in rotation. Therefore
// the number of message streams does not add to the latency of a single busy peer.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace hetcomm::tcp {

// |Stream| must have receive(), which returns the number of actions, is_bulk(), and a counter
// |misses|, which only this set changes.
template <class Stream>
class HotSet {
 public:
  // Makes |stream| the most recent one in the set.
  void touch(Stream& stream) {
    if (size_ == 0 || streams_[0] != &stream) move_to_front(stream);
  }
  void remove(const Stream& stream);
  // Receives on the streams. Streams may enter and leave during the call. Returns the number of
  // actions.
  int poll();

 private:
  static constexpr size_t kSize = 8;
  // This many misses take about a quarter of a millisecond of polling.
  static constexpr uint32_t kMaxMisses = 1000;

  void move_to_front(Stream& stream);
  bool contains(const Stream* stream) const;
  int ask(Stream& stream);

  std::array<Stream*, kSize> streams_{};  // most recent first
  size_t size_ = 0;
  size_t turn_ = 0;
};

template <class Stream>
void HotSet<Stream>::move_to_front(Stream& stream) {
  const auto end = streams_.begin() + size_;
  auto at = std::find(streams_.begin(), end, &stream);
  if (at == end) {
    if (size_ < kSize) ++size_;
    at = streams_.begin() + (size_ - 1);
    *at = &stream;
    stream.misses = 0;
  }
  std::rotate(streams_.begin(), at, at + 1);
}

template <class Stream>
void HotSet<Stream>::remove(const Stream& stream) {
  const auto end = streams_.begin() + size_;
  const auto at = std::find(streams_.begin(), end, &stream);
  if (at == end) return;
  std::copy(at + 1, end, at);
  --size_;
}

template <class Stream>
bool HotSet<Stream>::contains(const Stream* stream) const {
  return std::find(streams_.begin(), streams_.begin() + size_, stream) != streams_.begin() + size_;
}

template <class Stream>
int HotSet<Stream>::ask(Stream& stream) {
  const int done = stream.receive();
  // The stream may have been destroyed. Only its pointer is compared.
  if (!contains(&stream)) return done;
  if (done > 0) {
    stream.misses = 0;
    touch(stream);
  } else if (++stream.misses > kMaxMisses) {
    remove(stream);
  }
  return done;
}

template <class Stream>
int HotSet<Stream>::poll() {
  if (size_ == 0) return 0;
  if (size_ == 1) return ask(*streams_[0]);
  const std::array<Stream*, kSize> now = streams_;
  const size_t count = size_;
  turn_ = (turn_ + 1) % kSize;
  int done = 0;
  bool first = true;
  for (size_t i = 0; i < count; ++i) {
    Stream* stream = now[i];
    if (i > 0 && !contains(stream)) continue;
    const bool asked = stream->is_bulk() || std::exchange(first, false) || i == turn_;
    if (asked) done += ask(*stream);
  }
  return done;
}

}  // namespace hetcomm::tcp
