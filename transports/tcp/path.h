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
  kGone,        // nothing arrives any longer, in at least one direction
};

// Everything that the verdict depends on.
struct PathSample {
  enum class Waiting : uint8_t {
    kNothing,       // all that was sent is acknowledged
    kInFlight,      // sent, not acknowledged, and the peer's window is open
    kWindowClosed,  // the peer's window holds it back
  };
  enum class Answer : uint8_t {
    kNone,  // the peer's control plane has said nothing recently
    kFull,  // its kernel has no room
    kRoom,  // its kernel has room
  };
  Waiting waiting = Waiting::kNothing;
  uint64_t silent_ns = 0;  // time for which something has waited and nothing has arrived
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
  uint64_t heard_ns = 0;       // time since something last arrived
};
// False if there is none.
bool read_path(int fd, PathAccount& out);
// Bytes that the peer's kernel has acknowledged since the beginning; 0: none, or it is not known.
uint64_t acknowledged_bytes(int fd);
// The receiving end of a socket, for the peer that asks.
bool read_receipt(int fd, PathReceipt& out);

// Makes the kernel send probes at least every |limit_ns| (a second or more), where it supports that
// (Linux 6.15). Elsewhere it probes a closed window ever less often.
void bound_probes(int fd, uint64_t limit_ns);
// Enables probes of an idle connection, which cost nothing while it is used. They reveal a cut path
// before something is sent again. A stopped peer answers them.
void probe_when_idle(int fd, uint64_t detection_ns);

// Follows one stream by a look at its account every eighth of the detection time. Time without
// looks counts little, since this host may have stood still, with its kernel.
class PathWatch {
 public:
  static uint64_t interval_ns(uint64_t detection_ns) { return detection_ns / 8; }

  PathVerdict look(const PathAccount& account, uint64_t now_ns, uint64_t detection_ns);
  // Notes that nothing waits any longer. The next look() starts afresh.
  void reset() {
    last_look_ns_ = 0;
    in_doubt_ = false;
  }
  // True: the last look() found something that waits.
  bool waiting() const { return last_look_ns_ != 0; }
  uint64_t silent_ns() const { return silent_ns_; }
  // True: the peer should be asked, and asked again after a quarter of the detection time. The
  // answer that it is full holds for half of the detection time. The answer that it has room, which
  // it has also sent by this path, holds until something arrives.
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
  uint64_t asked_ns_ = 0;       // of the last answer; 0: none
  bool full_ = false;
  bool in_doubt_ = false;
};

}  // namespace hetcomm::tcp
