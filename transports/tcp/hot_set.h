// The few streams that are asked directly in every progress(), because something is likely to
// arrive on them: a direct receive finds a message a microsecond or more before epoll does. All
// others are left to the poller.
//
// A stream enters when it received, or sent a message (an answer is likely), and leaves when it was
// asked in vain kMaxMisses times or others were active more recently. Of the message streams only
// the most recent one is asked each time, and one of the others in turn, so that the set's size
// does not add to the latency of one busy peer.
#pragma once

#include <array>
#include <cstddef>

namespace hetcomm::tcp {

class TcpStream;

class HotSet {
 public:
  // Makes |stream| the most recent.
  void touch(TcpStream& stream) {
    if (size_ == 0 || streams_[0] != &stream) move_to_front(stream);
  }
  void remove(const TcpStream& stream);
  // Receives. Streams may come and go meanwhile. Returns the number of things done.
  int poll();

 private:
  static constexpr size_t kSize = 8;
  void move_to_front(TcpStream& stream);
  bool contains(const TcpStream* stream) const;
  int ask(TcpStream& stream);

  std::array<TcpStream*, kSize> streams_{};  // most recent first
  size_t size_ = 0;
  size_t turn_ = 0;
};

}  // namespace hetcomm::tcp
