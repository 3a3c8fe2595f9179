#include "transports/tcp/hot_set.h"

#include <algorithm>
#include <cstdint>

#include "transports/tcp/stream.h"

namespace hetcomm::tcp {
namespace {

// About a quarter of a millisecond of polling.
constexpr uint32_t kMaxMisses = 1000;

}  // namespace

void HotSet::move_to_front(TcpStream& stream) {
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

void HotSet::remove(const TcpStream& stream) {
  const auto end = streams_.begin() + size_;
  const auto at = std::find(streams_.begin(), end, &stream);
  if (at == end) return;
  std::copy(at + 1, end, at);
  --size_;
}

bool HotSet::contains(const TcpStream* stream) const {
  return std::find(streams_.begin(), streams_.begin() + size_, stream) != streams_.begin() + size_;
}

int HotSet::ask(TcpStream& stream) {
  const int done = stream.receive();
  // It may be gone by now; the pointer is only compared.
  if (!contains(&stream)) return done;
  if (done > 0) {
    stream.misses = 0;
    touch(stream);
  } else if (++stream.misses > kMaxMisses) {
    remove(stream);
  }
  return done;
}

int HotSet::poll() {
  if (size_ == 0) return 0;
  if (size_ == 1) return ask(*streams_[0]);
  const std::array<TcpStream*, kSize> now = streams_;
  const size_t count = size_;
  turn_ = (turn_ + 1) % kSize;
  int done = 0;
  bool first = true;
  for (size_t i = 0; i < count; ++i) {
    TcpStream* stream = now[i];
    if (i > 0 && !contains(stream)) continue;
    const bool asked = stream->is_bulk() || std::exchange(first, false) || i == turn_;
    if (asked) done += ask(*stream);
  }
  return done;
}

}  // namespace hetcomm::tcp
