// Determines from the kernel's socket statistics whether the path of a stream still works.
//
// The peer's kernel acknowledges data whether or not its process reads. Once its buffer is full it
// closes the window. From then on it answers only window probes, which the sending kernel repeats
// at growing intervals (up to 120 s, or the limit that bound_probes() sets). Silence therefore
// means something different with an open window than with a closed one: README.md has the table
// that judge() implements.
#pragma once

#include <cstdint>

#include "transports/transport.h"

namespace hetcomm::tcp {

enum class PathVerdict : uint8_t {
  kAlive,       // the peer's kernel answers, or there is nothing to answer
  kNotReading,  // the peer's kernel answers, but its process does not read
  kUnsure,      // the path is silent; the peer's control plane may know more
  kGone,        // data no longer arrives in at least one direction
};

// The inputs of judge().
struct PathSample {
  enum class Waiting : uint8_t {
    kNothing,       // all data that was sent is acknowledged
    kInFlight,      // sent but not acknowledged, and the peer's window is open
    kWindowClosed,  // the peer's window blocks sending
  };
  enum class Answer : uint8_t {
    kNone,  // the peer's control plane has not answered recently
    kFull,  // the peer's receive buffer is full
    kRoom,  // the peer's receive buffer has room
  };
  Waiting waiting = Waiting::kNothing;
  uint64_t silent_ns = 0;  // how long data has been waiting without anything arriving
  uint32_t tries = 0;      // retransmissions or window probes that the peer has not answered
  Answer answer = Answer::kNone;
};

PathVerdict judge(const PathSample& sample, uint64_t detection_ns);

// The kernel's statistics for one socket.
struct PathAccount {
  bool in_flight = false;      // a segment is unacknowledged
  bool held_back = false;      // some bytes have not been sent
  bool window_closed = false;  // the peer's window is zero, or seems to be
  uint8_t timeouts = 0;        // timeouts of the oldest segment since the last acknowledgement
  uint8_t probes = 0;          // window probes that the peer has not answered
  uint32_t retransmitted = 0;  // segments retransmitted since the socket was opened
  uint64_t heard_ns = 0;       // time since anything last arrived
};
// Reads the statistics of socket |fd|. Returns false if there are none.
bool read_path(int fd, PathAccount& out);
// Returns the number of bytes that the peer's kernel has acknowledged, or 0 if that is unknown.
uint64_t acknowledged_bytes(int fd);
// Reads the state of a socket's receive side, which a peer has requested. Returns false if it is
// unavailable.
bool read_receipt(int fd, PathReceipt& out);

// Makes the kernel send probes at intervals of at most |limit_ns| (at least a second), if it
// supports that (Linux 6.15). Older kernels probe a closed window less and less often.
void bound_probes(int fd, uint64_t limit_ns);
// Enables probes of an idle connection. They cost nothing while the connection is in use, and
// reveal a broken path before more data is sent. The kernel of a stopped process still answers
// them.
void probe_when_idle(int fd, uint64_t detection_ns);

// Watches one stream by checking its statistics every eighth of the detection time. The time
// between two checks counts as two eighths at most, since this host and its kernel may have been
// suspended.
class PathWatch {
 public:
  static uint64_t interval_ns(uint64_t detection_ns) { return detection_ns / 8; }

  PathVerdict look(const PathAccount& account, uint64_t now_ns, uint64_t detection_ns);
  // Records that no data is waiting. The next look() starts from the beginning.
  void reset() {
    last_look_ns_ = 0;
    in_doubt_ = false;
  }
  // Returns whether the last look() found waiting data.
  bool waiting() const { return last_look_ns_ != 0; }
  uint64_t silent_ns() const { return silent_ns_; }
  // Returns whether a receipt should be requested from the peer's control plane now. The request
  // should be repeated after a quarter of the detection time. An answer that the peer's buffer is
  // full is valid for half of the detection time. An answer that the buffer has room is valid until
  // anything arrives on this path, since the peer's kernel has also announced the room on this
  // path.
  bool in_doubt() const { return in_doubt_; }
  // Stores the reply of the peer's control plane.
  void answered(const PathReceipt& receipt) {
    asked_ns_ = receipt.asked_ns;
    full_ = receipt.full;
  }

 private:
  uint64_t last_look_ns_ = 0;  // 0: no data is waiting
  uint64_t silent_ns_ = 0;
  uint32_t retransmitted_ = 0;  // retransmission count when something last arrived
  uint64_t asked_ns_ = 0;       // when the last answered request was made; 0: no answer yet
  bool full_ = false;
  bool in_doubt_ = false;
};

}  // namespace hetcomm::tcp
