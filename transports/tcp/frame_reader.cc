#include "transports/tcp/frame_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace hetcomm::tcp {

Pieces FrameReader::next_io(ByteSpan ahead, std::span<iovec> out) {
  Pieces pieces;
  bool more_may_follow = true;
  switch (state_) {
    case State::kHead:
      if (head_bytes_ > 0) {
        out[0] = {head_.data() + head_bytes_, kHeadBytes - head_bytes_};
        pieces = {1, kHeadBytes - head_bytes_};
        more_may_follow = !bulk_stream_;
      }
      break;
    case State::kMessage:
      out[0] = {message_.data.get() + (length_ - left_), left_};
      pieces = {1, left_};
      break;
    case State::kPut:
      pieces = collect(exposures_.at(slot_).extents, cursor_, left_, out.first(out.size() - 1));
      more_may_follow = pieces.bytes == left_;
      break;
    case State::kDrop:
      direct_ = 0;
      out[0] = {ahead.data(), std::min<size_t>(ahead.size(), left_)};
      return {1, out[0].iov_len};
  }
  direct_ = static_cast<size_t>(pieces.bytes);
  if (more_may_follow) {
    const size_t size = bulk_stream_ ? kHeadBytes : ahead.size();
    out[pieces.count++] = {ahead.data(), size};
    pieces.bytes += size;
  }
  return pieces;
}

const char* FrameReader::accept(ConstByteSpan ahead, size_t received) {
  const size_t direct = std::min(received, direct_);
  if (direct > 0) {
    const bool was_head = state_ == State::kHead;
    take_direct(direct);
    if (was_head && head_bytes_ == kHeadBytes) {
      head_bytes_ = 0;
      ahead = ahead.first(received - direct);
      if (const char* error = begin(head_.data(), ahead); error != nullptr) return error;
      return parse(ahead);
    }
  }
  return parse(ahead.first(received - direct));
}

void FrameReader::take_direct(size_t bytes) {
  if (state_ == State::kHead) {
    head_bytes_ += static_cast<uint32_t>(bytes);
    return;
  }
  left_ -= static_cast<uint32_t>(bytes);
  if (state_ == State::kMessage) {
    if (left_ == 0) finish_message();
  } else {
    cursor_.advance(exposures_.at(slot_).extents, bytes);
    if (left_ == 0) finish_put();
  }
}

const char* FrameReader::parse(ConstByteSpan bytes) {
  while (!bytes.empty()) {
    size_t used = 0;
    switch (state_) {
      case State::kHead: {
        if (head_bytes_ == 0 && bytes.size() >= kHeadBytes) {
          const std::byte* head = bytes.data();
          bytes = bytes.subspan(kHeadBytes);
          if (const char* error = begin(head, bytes); error != nullptr) return error;
          continue;
        }
        used = std::min<size_t>(bytes.size(), kHeadBytes - head_bytes_);
        std::memcpy(head_.data() + head_bytes_, bytes.data(), used);
        head_bytes_ += static_cast<uint32_t>(used);
        bytes = bytes.subspan(used);
        if (head_bytes_ < kHeadBytes) continue;
        head_bytes_ = 0;
        if (const char* error = begin(head_.data(), bytes); error != nullptr) return error;
        continue;
      }
      case State::kMessage:
        used = std::min<size_t>(bytes.size(), left_);
        std::memcpy(message_.data.get() + (length_ - left_), bytes.data(), used);
        left_ -= static_cast<uint32_t>(used);
        if (left_ == 0) finish_message();
        break;
      case State::kPut: {
        used = std::min<size_t>(bytes.size(), left_);
        const Extents extents = exposures_.at(slot_).extents;
        // Starts at the cursor's extent instead of traversing a long list from its start.
        scatter(extents.subspan(cursor_.index), cursor_.within, bytes.first(used));
        cursor_.advance(extents, used);
        left_ -= static_cast<uint32_t>(used);
        if (left_ == 0) finish_put();
        break;
      }
      case State::kDrop:
        used = std::min<size_t>(bytes.size(), left_);
        left_ -= static_cast<uint32_t>(used);
        if (left_ == 0) state_ = State::kHead;
        break;
    }
    bytes = bytes.subspan(used);
  }
  return nullptr;
}

// Starts the frame of a complete head. |bytes| are the bytes after the head; the available payload
// of a message is removed from them.
const char* FrameReader::begin(const std::byte* head, ConstByteSpan& bytes) {
  const FrameHead frame = decode_head(head, bulk_stream_);
  if (frame.error != nullptr) return frame.error;
  length_ = frame.length;
  left_ = frame.length;
  switch (frame.type) {
    case FrameType::kMessage:
      begin_message(head, bytes);
      return nullptr;
    case FrameType::kPut:
      return begin_put(head);
    case FrameType::kStreams:
      break;
  }
  const std::optional<StreamsNote> note = decode_streams(head);
  if (!note) return "malformed streams frame";
  return sink_.on_streams_frame(*note);
}

void FrameReader::begin_message(const std::byte* head, ConstByteSpan& bytes) {
  if (bytes.size() >= length_) {
    const ConstByteSpan payload = bytes.first(length_);
    bytes = bytes.subspan(length_);
    MessageHeader header;
    std::memcpy(header.data(), head + kHeadPrefix, kHeaderBytes);
    sink_.on_message_frame(header, payload);
    return;
  }
  if (head != head_.data()) std::memcpy(head_.data(), head, kHeadBytes);
  message_ = buffers_.take(length_);
  std::memcpy(message_.data.get(), bytes.data(), bytes.size());
  left_ -= static_cast<uint32_t>(bytes.size());
  bytes = {};
  state_ = State::kMessage;
}

const char* FrameReader::begin_put(const std::byte* head) {
  const std::optional<PutTarget> target = decode_put(head);
  if (!target) return "malformed put frame";
  switch (exposures_.check(*target, length_)) {
    case ExposureTable::Verdict::kNeverIssued:
      return "put to memory that was never exposed";
    case ExposureTable::Verdict::kOutOfRange:
      return "put outside of the exposed memory";
    case ExposureTable::Verdict::kRevoked:
      state_ = State::kDrop;
      return nullptr;
    case ExposureTable::Verdict::kLive:
      break;
  }
  Exposure& exposure = exposures_.at(target->slot);
  exposure.cursor.seek(exposure.extents, target->offset);
  cursor_ = exposure.cursor;
  slot_ = target->slot;
  state_ = State::kPut;
  return nullptr;
}

void FrameReader::finish_message() {
  state_ = State::kHead;
  MessageHeader header;
  std::memcpy(header.data(), head_.data() + kHeadPrefix, kHeaderBytes);
  Buffer message = std::exchange(message_, {});
  sink_.on_message_frame(header, {message.data.get(), length_});
  buffers_.give(std::move(message));
}

void FrameReader::finish_put() {
  state_ = State::kHead;
  Exposure& exposure = exposures_.at(slot_);
  exposure.cursor = cursor_;
  sink_.on_put_frame(exposure.cookie, length_);
}

void FrameReader::revoke(uint32_t slot) {
  if (state_ == State::kPut && slot_ == slot) state_ = State::kDrop;
}

}  // namespace hetcomm::tcp
