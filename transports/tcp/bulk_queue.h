// The puts of one endpoint: the pending ones, the order in which frames are cut from them, and the
// ended ones.
//
//   push -> queued -(last frame committed)-> framed -(last frame_sent)-> completed -> pop_completed
//
// Lists are linked through Bulk::next and the state lives in Bulk::scratch, so that nothing is
// allocated. A bulk that is framed is in no list; the streams that still send its frames know it.
#pragma once

#include <cstdint>

#include "src/base/extent_cursor.h"
#include "transports/transport.h"

namespace hetcomm::tcp {

// A piece of a put that goes on the wire under one head.
struct PutFrame {
  Bulk* bulk = nullptr;
  uint64_t offset = 0;  // in the bulk
  uint32_t length = 0;
  ExtentCursor start;
  ExtentCursor end;
};

class BulkQueue {
 public:
  void push(Bulk& bulk);
  // True: nothing is left to frame.
  bool empty() const { return high_.first == nullptr && normal_.first == nullptr; }
  bool has_completed() const { return completed_.first != nullptr; }

  // Looks at the coming frames without taking them: high priority first, then in order of push.
  class Preview {
   public:
    explicit Preview(const BulkQueue& queue);
    // False when there is none left.
    bool next(uint32_t max_length, PutFrame& out);

   private:
    void start(Bulk* bulk);
    Bulk* normal_;
    Bulk* bulk_ = nullptr;
    uint64_t offset_ = 0;
    ExtentCursor cursor_;
  };
  // Takes the frame that a preview gave. Frames are committed in the order of the preview.
  void commit(const PutFrame& frame);
  // All bytes of a committed frame have left the user's memory.
  void frame_sent(Bulk& bulk);
  // Nullptr if there is none.
  Bulk* pop_completed();

  // Forgets |bulk| wherever it is. The caller takes care of an unfinished frame.
  void remove(Bulk& bulk);
  // Forgets all that has not completed.
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
