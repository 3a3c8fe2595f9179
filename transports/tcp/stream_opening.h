// Decides when a connection opens bulk streams, and which notes about them its two sides exchange.
//
// The first put of either side opens the first streams. Only the initiator of the connection
// connects them. The other side requests streams with a note, and the initiator answers with a note
// if it can open none. A connection to another host gets more streams later, if stream_count.h
// finds them worthwhile. This growth ends if a stream cannot be opened.
//
// Nothing here uses a socket. The endpoint connects the streams and sends the notes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "transports/tcp/stream_count.h"
#include "transports/tcp/wire.h"

namespace hetcomm::tcp {

class StreamOpening {
 public:
  // |least| is the number of streams that the initiator opens at first. If |grows|, more may
  // follow.
  StreamOpening(bool initiator, size_t least, bool grows)
      : initiator_(initiator), grows_(grows), least_(least) {}

  // Returns whether this side or the peer has requested bulk streams.
  bool requested() const { return requested_; }
  // Requests the first |count| bulk streams. Returns how many streams this side has to connect,
  // which can be more than |count|. Returns 0 if a note to the peer is pending instead.
  [[nodiscard]] size_t request(size_t count);
  // Handles a note from the peer. If the note requests streams, the caller then calls request().
  // Returns nullptr, or the reason why the peer must not send this note.
  const char* take(const StreamsNote& note);
  // Records that a stream could not be opened. |others|: the connection has other bulk streams, or
  // is opening them.
  void failed(bool others);
  // Returns whether no bulk stream can be opened, so that puts use the message stream.
  bool unavailable() const { return unavailable_; }

  // Returns whether a note is waiting to be sent to the peer.
  bool has_note() const { return note_pending_; }
  StreamsNote take_note() {
    note_pending_ = false;
    return note_;
  }

  // Adds |bytes| to the traffic of puts. Returns true if it is time to call grow().
  bool review_due(uint64_t bytes) { return grows_ && count_.due(bytes); }
  // Returns whether a connection with |count| bulk streams may get one more.
  bool may_grow(size_t count) const { return !enough_ && count < kMaxAutoStreams; }
  // Returns whether one more stream is worthwhile, according to the statistics of the first bulk
  // stream.
  bool grow(const StreamAccount& account) { return count_.review(account); }

 private:
  void note(const StreamsNote& note) {
    note_ = note;
    note_pending_ = true;
  }

  const bool initiator_;
  const bool grows_;
  bool requested_ = false;
  bool unavailable_ = false;
  bool enough_ = false;  // a stream could not be opened, so no more are added
  bool note_pending_ = false;
  StreamsNote note_;
  const size_t least_;
  StreamCount count_;
};

}  // namespace hetcomm::tcp
