// Turns messages and puts into the bytes of one stream. Knows no socket: the caller asks what comes
// next (next_io), sends it straight from user memory, and says how much was taken (commit).
//
// A frame that has begun is always finished. At most one is unfinished, in one of two forms:
// |rest_|, bytes in a private buffer (the rest of a message, or of a put that was cancelled), or
// |put_|, the rest of a put that is still read from user memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "src/base/extent_cursor.h"
#include "src/base/span.h"
#include "transports/tcp/buffer_pool.h"
#include "transports/tcp/bulk_queue.h"
#include "transports/tcp/wire.h"
#include "transports/transport.h"

namespace hetcomm::tcp {

class FrameWriter {
 public:
  static constexpr size_t kMaxPieces = 64;
  static constexpr size_t kMaxFrames = 16;

  // The pieces of one sendmsg, and the frames that they belong to.
  struct NextIo {
    Pieces pieces;
    size_t frames = 0;
    std::array<iovec, kMaxPieces> iov;
    std::array<PutFrame, kMaxFrames> frame;
    std::array<HeadBytes, kMaxFrames> head;
  };

  explicit FrameWriter(BufferPool& buffers) : buffers_(buffers) {}
  ~FrameWriter() { buffers_.give(std::move(rest_)); }
  FrameWriter(const FrameWriter&) = delete;
  FrameWriter& operator=(const FrameWriter&) = delete;

  // True between frames.
  bool idle() const { return rest_size_ == 0 && put_.bulk == nullptr; }

  // The unfinished frame, then frames of |queue| (null: none) of at most |max_frame| bytes, about
  // |max_bytes| in all.
  void next_io(const BulkQueue* queue, uint32_t max_frame, uint64_t max_bytes, NextIo& out) const;
  // Notes that the first |sent| bytes of |io| are in the kernel. |queue| is told which frames that
  // completes.
  void commit(const NextIo& io, size_t sent, BulkQueue& queue);

  // Keeps all but the first |sent| bytes of a message. Only valid between frames.
  void keep_rest(const HeadBytes& head, const ExtentView& payload, size_t sent);
  // Stops reading memory of |bulk|: the rest of its unfinished frame is copied.
  void detach(const Bulk& bulk);
  // Forgets the unfinished frame: the stream has ended.
  void drop();

 private:
  struct UnfinishedPut {
    Bulk* bulk = nullptr;
    uint32_t head_sent = 0;
    uint32_t left = 0;  // of the data
    ExtentCursor cursor;
    HeadBytes head{};
  };

  size_t commit_unfinished(size_t sent, BulkQueue& queue);
  std::byte* start_rest(size_t size);
  void release_rest();

  BufferPool& buffers_;
  Buffer rest_;
  size_t rest_size_ = 0;
  size_t rest_sent_ = 0;
  UnfinishedPut put_;
};

}  // namespace hetcomm::tcp
