// Finds out from the kernel's account of a socket whether the path of a stream still works.
//
// The peer's kernel acknowledges what arrives, whether its process reads or not. Once its buffer is
// full it closes the window; from then on it answers window probes only, which the sending kernel
// repeats at growing intervals (up to 120 s, or the limit that bound_probes() sets). Silence of a
// path therefore means something else with an open window than with a closed one: README.md has
// the table that judge() implements.
#pragma once

#include <cstdint>

#include "transports/transport.h"

namespace hetcomm::tcp {

enum class PathVerdict : uint8_t {
  kAlive,       // the peer's kernel answers, or nothing waits for it
  kNotReading,  // the peer's kernel is there, and its process does not read
  kUnsure,      // silence; the peer's control plane may know more
  kGone,        // nothing arrives any more, in at least one direction
};

// All that the verdict depends on.
struct PathSample {
  enum class Waiting : uint8_t {
    kNothing,       // all that was sent is acknowledged
    kInFlight,      // sent, not acknowledged, and the peer's window is open
    kWindowClosed,  // the peer's window holds it back
  };
  enum class Answer : uint8_t {
    kNone,  // the peer's control plane has said nothing lately
    kFull,  // its kernel has no room
    kRoom,  // its kernel has room
  };
  Waiting waiting = Waiting::kNothing;
  uint64_t silent_ns = 0;  // so long something has waited and nothing has arrived
  uint32_t tries = 0;      // retransmissions, or window probes, that the peer has not answered
  Answer answer = Answer::kNone;
};

PathVerdict judge(const PathSample& sample, uint64_t detection_ns);

// The kernel's account of one socket.
struct PathAccount {
  bool in_flight = false;      // some segment is not acknowledged
  bool held_back = false;      // some byte has not been sent
  bool window_closed = false;  // the peer has announced a window of zero
  uint8_t timeouts = 0;        // of the oldest segment, since the last one was acknowledged
  uint8_t probes = 0;          // unanswered window probes
  uint32_t retransmitted = 0;  // segments, since the beginning
  uint64_t heard_ns = 0;       // so long ago something arrived
};
// False if there is none.
bool read_path(int fd, PathAccount& out);
// Bytes that the peer's kernel has acknowledged since the beginning; 0: none, or it is not known.
uint64_t acknowledged_bytes(int fd);
// The receiving end of a socket, for the peer that asks.
bool read_receipt(int fd, PathReceipt& out);

// Lets the kernel ask at least every |limit_ns| (of a second and more), where it knows how (Linux
// 6.15). Elsewhere a closed window is asked ever less often.
void bound_probes(int fd, uint64_t limit_ns);
// Probes of an idle connection, which cost nothing while it is used: a path that was cut is noticed
// before something is sent again. A peer that is stopped answers them.
void probe_when_idle(int fd, uint64_t detection_ns);

// Follows one stream, by looks at its account that are an eighth of the detection time apart. Time
// in which nobody looked counts little: this host may have stood still, with its kernel.
class PathWatch {
 public:
  static uint64_t interval_ns(uint64_t detection_ns) { return detection_ns / 8; }

  PathVerdict look(const PathAccount& account, uint64_t now_ns, uint64_t detection_ns);
  // Nothing waits any more; the next look() begins anew.
  void reset() {
    last_look_ns_ = 0;
    in_doubt_ = false;
  }
  // The last look() found something that waits.
  bool waiting() const { return last_look_ns_ != 0; }
  uint64_t silent_ns() const { return silent_ns_; }
  // The peer should be asked, again after a quarter of the detection time. That it is full holds
  // for half of that; that it has room, which it has told by this path too, until something
  // arrives.
  bool in_doubt() const { return in_doubt_; }
  // Takes the answer of the peer's control plane.
  void answered(const PathReceipt& receipt) {
    asked_ns_ = receipt.asked_ns;
    full_ = receipt.full;
  }

 private:
  uint64_t last_look_ns_ = 0;  // 0: nothing waits
  uint64_t silent_ns_ = 0;
  uint32_t retransmitted_ = 0;  // when something was heard last
  uint64_t asked_ns_ = 0;       // what was answered; 0: nothing
  bool full_ = false;
  bool in_doubt_ = false;
};

}  // namespace hetcomm::tcp
