// StreamSet holds the streams of one connection: the message stream, and the bulk streams that were
// added.
//
// Its functions give one result for all streams together: whether output is left, whether data can
// be received, and whether data has arrived. The message stream is always handled first.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "src/base/status.h"
#include "transports/tcp/wire.h"
#include "transports/transport.h"

namespace hetcomm::tcp {

// |Stream| is TcpStream. A function that has the same name as a function of TcpStream applies it to
// all streams.
template <class Stream>
class StreamSet {
 public:
  // Makes the message stream from |parts|.
  template <typename... Parts>
  explicit StreamSet(Parts&&... parts) : messages_(std::forward<Parts>(parts)...) {}

  Stream& messages() { return messages_; }
  const Stream& messages() const { return messages_; }
  size_t bulk_count() const { return bulk_count_; }
  // Returns bulk stream 1, or nullptr if there is none.
  const Stream* first_bulk() const { return bulk_[0].get(); }
  // Returns whether |index| is the number of a bulk stream that has not been added yet.
  bool lacks(size_t index) const {
    return index > 0 && index <= kMaxBulkStreams && bulk_[index - 1] == nullptr;
  }
  // Adds bulk stream |index|. Requires lacks(|index|).
  void add(size_t index, std::unique_ptr<Stream> stream) {
    bulk_[index - 1] = std::move(stream);
    ++bulk_count_;
  }

  template <typename Use>
  void for_each(Use&& use) {
    use(messages_);
    for_each_bulk(use);
  }
  template <typename Use>
  void for_each_bulk(Use&& use) {
    for (auto& stream : bulk_) {
      if (stream) use(*stream);
    }
  }

  // Watches the streams until one fails. Returns its failure.
  Status watch();
  void unwatch() {
    for_each([](Stream& stream) { stream.unwatch(); });
  }

  // Returns whether any stream holds bytes that no event will announce.
  bool buffered() const {
    return messages_.buffered() || any_bulk([](const Stream& stream) { return stream.buffered(); });
  }
  // Receives on the streams that are buffered(). Returns the number of actions.
  int receive_buffered();
  // Receives on all streams. Returns the number of actions.
  int receive();
  // Returns whether reading has ended on all streams.
  bool read_ended() const {
    return messages_.read_ended() &&
           !any_bulk([](const Stream& stream) { return !stream.read_ended(); });
  }

  // Sends frames from |queue| on the bulk streams. Each call begins with a different stream, so
  // that all of them are used equally. Returns the number of actions.
  template <class Queue>
  int write_bulk(Queue& queue, uint32_t max_frame);
  // Returns whether write_bulk() can send something. |queued|: puts are waiting to be framed.
  bool can_write_bulk(bool queued) const {
    return any_bulk([queued](const Stream& stream) {
      return !stream.parked() && (!stream.output_idle() || queued);
    });
  }
  bool output_idle() const {
    return messages_.output_idle() &&
           !any_bulk([](const Stream& stream) { return !stream.output_idle(); });
  }
  void drop_output() {
    for_each([](Stream& stream) { stream.drop_output(); });
  }
  // Parks the streams whose sockets are full.
  void park_full();

  uint64_t unacknowledged_bytes() const;
  // Returns kPassed if data has arrived on any bulk stream, kBlocked if data has been sent on one
  // without arriving, and otherwise passage() of the message stream.
  Passage passage() const;
  // Returns trouble() of the first stream that reports any.
  std::string trouble() const;

 private:
  template <typename Test>
  bool any_bulk(Test&& test) const {
    return std::any_of(bulk_.begin(), bulk_.end(),
                       [&](const auto& stream) { return stream && test(*stream); });
  }

  uint8_t bulk_count_ = 0;
  uint8_t next_bulk_ = 0;
  Stream messages_;
  std::array<std::unique_ptr<Stream>, kMaxBulkStreams> bulk_;
};

template <class Stream>
Status StreamSet<Stream>::watch() {
  Status status;
  for_each([&](Stream& stream) {
    if (status.ok()) status = stream.watch();
  });
  return status;
}

template <class Stream>
int StreamSet<Stream>::receive_buffered() {
  int done = 0;
  for_each([&](Stream& stream) {
    if (stream.buffered()) done += stream.receive();
  });
  return done;
}

template <class Stream>
int StreamSet<Stream>::receive() {
  int done = 0;
  for_each([&](Stream& stream) { done += stream.receive(); });
  return done;
}

template <class Stream>
template <class Queue>
int StreamSet<Stream>::write_bulk(Queue& queue, uint32_t max_frame) {
  int done = 0;
  next_bulk_ = static_cast<uint8_t>((next_bulk_ + 1) % kMaxBulkStreams);
  for (size_t i = 0; i < kMaxBulkStreams; ++i) {
    const auto& stream = bulk_[(next_bulk_ + i) % kMaxBulkStreams];
    if (stream) done += stream->write(queue, true, max_frame);
  }
  return done;
}

template <class Stream>
void StreamSet<Stream>::park_full() {
  for_each([](Stream& stream) {
    if (stream.full()) stream.park();
  });
}

template <class Stream>
uint64_t StreamSet<Stream>::unacknowledged_bytes() const {
  uint64_t bytes = messages_.unacknowledged_bytes();
  for (const auto& stream : bulk_) {
    if (stream) bytes += stream->unacknowledged_bytes();
  }
  return bytes;
}

template <class Stream>
Passage StreamSet<Stream>::passage() const {
  Passage bulk = Passage::kNothing;
  for (const auto& stream : bulk_) {
    const Passage one = stream ? stream->passage() : Passage::kNothing;
    if (one == Passage::kPassed) return one;
    if (one == Passage::kBlocked) bulk = one;
  }
  return bulk == Passage::kBlocked ? bulk : messages_.passage();
}

template <class Stream>
std::string StreamSet<Stream>::trouble() const {
  std::string found = messages_.trouble();
  for (const auto& stream : bulk_) {
    if (found.empty() && stream) found = stream->trouble();
  }
  return found;
}

}  // namespace hetcomm::tcp
