// Converts the bytes of one stream into messages and puts, without access to the socket. The caller
// gets the destinations of the next bytes (next_io()), receives into them, and reports how many
// bytes arrived (accept()).
//
// Bytes of a put go directly into exposed memory. Bytes of an incomplete message go into a borrowed
// buffer. Bytes that may start a new frame, and bytes that will be dropped, go into |ahead|, a
// buffer of the caller. All streams of a transport share |ahead|, so accept() consumes its contents
// before it returns. On a bulk stream at most one head is read ahead, since the bytes after it
// belong in user memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/base/extent_cursor.h"
#include "src/base/span.h"
#include "transports/tcp/buffer_pool.h"
#include "transports/tcp/exposure.h"
#include "transports/tcp/wire.h"

namespace hetcomm::tcp {

// Receives the frames of a stream. Its functions may call FrameReader::revoke().
class FrameSink {
 public:
  virtual void on_message_frame(const MessageHeader& header, ConstByteSpan payload) = 0;
  virtual void on_put_frame(uint64_t cookie, uint64_t length) = 0;
  // Returns nullptr, or the reason why the peer must not send |note|.
  virtual const char* on_streams_frame(const StreamsNote& note) = 0;

 protected:
  ~FrameSink() = default;
};

class FrameReader {
 public:
  FrameReader(FrameSink& sink, ExposureTable& exposures, BufferPool& buffers, bool bulk_stream)
      : sink_(sink), exposures_(exposures), buffers_(buffers), bulk_stream_(bulk_stream) {}
  ~FrameReader() { buffers_.give(std::move(message_)); }
  FrameReader(const FrameReader&) = delete;
  FrameReader& operator=(const FrameReader&) = delete;

  // Stores at least one destination for the next bytes in |out|. |ahead| must have at least
  // kHeadBytes.
  Pieces next_io(ByteSpan ahead, std::span<iovec> out);
  // Processes |received| bytes: at least 1, and at most as many as the last next_io() requested.
  // Returns nullptr, or a description of the fault in the bytes. After a fault the reader must not
  // be used again.
  const char* accept(ConstByteSpan ahead, size_t received);
  // Stops writing to the memory of |slot|. The rest of an unfinished frame for it is dropped.
  void revoke(uint32_t slot);
  // Returns whether the reader is between frames.
  bool between_frames() const { return state_ == State::kHead && head_bytes_ == 0; }
  // Returns whether a part of a put has yet to arrive.
  bool in_put() const { return state_ == State::kPut || state_ == State::kDrop; }

 private:
  enum class State : uint8_t {
    kHead,     // head_bytes_ of the next head have arrived
    kMessage,  // left_ bytes of the payload in message_ have yet to arrive
    kPut,      // left_ bytes for the exposed memory have yet to arrive
    kDrop,     // left_ bytes of a put to revoked memory have yet to be dropped
  };

  void take_direct(size_t bytes);
  const char* parse(ConstByteSpan bytes);
  const char* begin(const std::byte* head, ConstByteSpan& bytes);
  const char* begin_put(const std::byte* head);
  void begin_message(const std::byte* head, ConstByteSpan& bytes);
  void finish_message();
  void finish_put();

  FrameSink& sink_;
  ExposureTable& exposures_;
  BufferPool& buffers_;
  const bool bulk_stream_;
  State state_ = State::kHead;
  uint32_t head_bytes_ = 0;
  uint32_t length_ = 0;  // payload bytes of the current frame
  uint32_t left_ = 0;
  uint32_t slot_ = 0;  // kPut: target slot
  size_t direct_ = 0;  // bytes of the last next_io() that bypass |ahead|
  ExtentCursor cursor_;
  Buffer message_;
  HeadBytes head_{};
};

}  // namespace hetcomm::tcp
