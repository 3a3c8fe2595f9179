#include "transports/tcp/frame_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace hetcomm::tcp {

void FrameWriter::next_io(const BulkQueue* queue, uint32_t max_frame, uint64_t max_bytes,
                          NextIo& out) const {
  Pieces& pieces = out.pieces;
  pieces = {};
  out.frames = 0;
  const auto add = [&](const std::byte* data, size_t size) {
    out.iov[pieces.count++] = {const_cast<std::byte*>(data), size};
    pieces.bytes += size;
  };
  const auto add_data = [&](const Bulk& bulk, const ExtentCursor& from, uint32_t length) {
    const Pieces data =
        collect(bulk.local.extents, from, length, std::span(out.iov).subspan(pieces.count));
    pieces.count += data.count;
    pieces.bytes += data.bytes;
    return data.bytes == length;
  };

  if (rest_size_ > 0) add(rest_.data.get() + rest_sent_, rest_size_ - rest_sent_);
  if (put_.bulk != nullptr) {
    if (put_.head_sent < kHeadBytes) {
      add(put_.head.data() + put_.head_sent, kHeadBytes - put_.head_sent);
    }
    if (!add_data(*put_.bulk, put_.cursor, put_.left)) return;
  }
  if (queue == nullptr) return;
  BulkQueue::Preview preview(*queue);
  // A frame needs one piece for its head and at least one for its data.
  while (out.frames < kMaxFrames && pieces.count + 2 <= kMaxPieces && pieces.bytes < max_bytes) {
    PutFrame& frame = out.frame[out.frames];
    if (!preview.next(max_frame, frame)) return;
    HeadBytes& head = out.head[out.frames++];
    encode_put_head(head, put_target(frame.bulk->key, frame.bulk->remote_offset + frame.offset),
                    frame.length);
    add(head.data(), kHeadBytes);
    if (!add_data(*frame.bulk, frame.start, frame.length)) return;
  }
}

void FrameWriter::commit(const NextIo& io, size_t sent, BulkQueue& queue) {
  sent = commit_unfinished(sent, queue);
  for (size_t i = 0; i < io.frames && sent > 0; ++i) {
    const PutFrame& frame = io.frame[i];
    queue.commit(frame);
    const size_t size = kHeadBytes + frame.length;
    if (sent >= size) {
      sent -= size;
      queue.frame_sent(*frame.bulk);
      continue;
    }
    const size_t head_sent = std::min(sent, kHeadBytes);
    const uint32_t data_sent = static_cast<uint32_t>(sent - head_sent);
    put_ = {.bulk = frame.bulk,
            .head_sent = static_cast<uint32_t>(head_sent),
            .left = frame.length - data_sent,
            .cursor = frame.start,
            .head = io.head[i]};
    put_.cursor.advance(frame.bulk->local.extents, data_sent);
    return;
  }
}

// Records the part of the unfinished frame that was sent. Returns the number of bytes of |sent|
// that belong to later frames.
size_t FrameWriter::commit_unfinished(size_t sent, BulkQueue& queue) {
  if (rest_size_ > 0) {
    const size_t taken = std::min(sent, rest_size_ - rest_sent_);
    rest_sent_ += taken;
    if (rest_sent_ == rest_size_) release_rest();
    return sent - taken;
  }
  if (put_.bulk == nullptr) return sent;
  const size_t head = std::min<size_t>(sent, kHeadBytes - put_.head_sent);
  put_.head_sent += static_cast<uint32_t>(head);
  const uint32_t data = static_cast<uint32_t>(std::min<size_t>(sent - head, put_.left));
  put_.left -= data;
  put_.cursor.advance(put_.bulk->local.extents, data);
  if (put_.left == 0) queue.frame_sent(*std::exchange(put_.bulk, nullptr));
  return sent - head - data;
}

void FrameWriter::keep_rest(const HeadBytes& head, const ExtentView& payload, size_t sent) {
  const size_t head_sent = std::min(sent, kHeadBytes);
  const uint64_t data_sent = sent - head_sent;
  std::byte* to = start_rest(kHeadBytes + static_cast<size_t>(payload.length) - sent);
  std::memcpy(to, head.data() + head_sent, kHeadBytes - head_sent);
  to += kHeadBytes - head_sent;
  gather(payload.extents, payload.offset + data_sent,
         {to, static_cast<size_t>(payload.length - data_sent)});
}

void FrameWriter::detach(const Bulk& bulk) {
  if (put_.bulk != &bulk) return;
  const size_t head_left = kHeadBytes - put_.head_sent;
  std::byte* to = start_rest(head_left + put_.left);
  std::memcpy(to, put_.head.data() + put_.head_sent, head_left);
  gather(bulk.local.extents.subspan(put_.cursor.index), put_.cursor.within,
         {to + head_left, put_.left});
  put_.bulk = nullptr;
}

void FrameWriter::drop() {
  release_rest();
  put_.bulk = nullptr;
}

std::byte* FrameWriter::start_rest(size_t size) {
  rest_ = buffers_.take(size);
  rest_size_ = size;
  rest_sent_ = 0;
  return rest_.data.get();
}

void FrameWriter::release_rest() {
  buffers_.give(std::exchange(rest_, {}));
  rest_size_ = 0;
  rest_sent_ = 0;
}

}  // namespace hetcomm::tcp
