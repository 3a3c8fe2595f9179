// Converts messages and puts into the bytes of one stream, without access to the socket. The caller
// gets the next pieces (next_io()), sends them directly from user memory, and reports how many
// bytes the kernel accepted (commit()).
//
// A frame that has been started is always finished. At most one frame is unfinished. It is either
// |rest_|, bytes in a private buffer (the rest of a message or of a cancelled put), or |put_|, the
// rest of a put that is still read from user memory.
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

  // The pieces for one sendmsg call, and the frames to which they belong.
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

  // Returns whether the writer is between frames.
  bool idle() const { return rest_size_ == 0 && put_.bulk == nullptr; }

  // Collects the unfinished frame, then about |max_bytes| of frames from |queue| (null: none), each
  // with at most |max_frame| bytes of data.
  void next_io(const BulkQueue* queue, uint32_t max_frame, uint64_t max_bytes, NextIo& out) const;
  // Records that the kernel has accepted the first |sent| bytes of |io|. Reports to |queue| which
  // frames this has started or completed.
  void commit(const NextIo& io, size_t sent, BulkQueue& queue);

  // Stores all but the first |sent| bytes of a message for later. Must be called between frames
  // only.
  void keep_rest(const HeadBytes& head, const ExtentView& payload, size_t sent);
  // Stops reading the memory of |bulk|, by copying the rest of its unfinished frame.
  void detach(const Bulk& bulk);
  // Drops the unfinished frame after the stream has ended.
  void drop();

 private:
  struct UnfinishedPut {
    Bulk* bulk = nullptr;
    uint32_t head_sent = 0;
    uint32_t left = 0;  // bytes of data left
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
