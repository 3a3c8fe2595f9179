// BulkQueue holds the pending and the completed puts of one endpoint. It decides the order in which
// they are split into frames.
//
//   push -> queued -(last frame committed)-> framed -(last frame_sent)-> completed -> pop_completed
//
// Lists are linked through Bulk::next and the state is stored in Bulk::scratch, so nothing is
// allocated. A framed bulk is in no list. The streams that still send its frames point to it.
#pragma once

#include <cstdint>

#include "src/base/extent_cursor.h"
#include "transports/transport.h"

namespace hetcomm::tcp {

// A part of a put that is sent with one head.
struct PutFrame {
  Bulk* bulk = nullptr;
  uint64_t offset = 0;  // within the bulk
  uint32_t length = 0;
  ExtentCursor start;
  ExtentCursor end;
};

class BulkQueue {
 public:
  void push(Bulk& bulk);
  // Returns true if all data of all puts has been framed.
  bool empty() const { return high_.first == nullptr && normal_.first == nullptr; }
  bool has_completed() const { return completed_.first != nullptr; }

  // Iterates over the next frames without removing them: high priority first, then in order of
  // push().
  class Preview {
   public:
    explicit Preview(const BulkQueue& queue);
    // Stores the next frame in |out|. Returns false if there is none.
    bool next(uint32_t max_length, PutFrame& out);

   private:
    void start(Bulk* bulk);
    Bulk* normal_;
    Bulk* bulk_ = nullptr;
    uint64_t offset_ = 0;
    ExtentCursor cursor_;
  };
  // Removes a frame that a preview returned. Frames are committed in the order of the preview.
  void commit(const PutFrame& frame);
  // Records that all bytes of a committed frame have been read from user memory.
  void frame_sent(Bulk& bulk);
  // Removes and returns a completed bulk, or nullptr if there is none.
  Bulk* pop_completed();

  // Removes |bulk| in any state. The caller must also detach it from the streams
  // (FrameWriter::detach()).
  void remove(Bulk& bulk);
  // Removes all queued bulks. The caller must make the streams drop the framed ones.
  void drop_unsent();

 private:
  struct List {
    Bulk* first = nullptr;
    Bulk* last = nullptr;
    void push(Bulk& bulk);
    Bulk* pop();
    void remove(Bulk& bulk);
  };
  List& list_of(const Bulk& bulk) { return bulk.high_priority ? high_ : normal_; }

  List high_;
  List normal_;
  List completed_;
};

}  // namespace hetcomm::tcp
