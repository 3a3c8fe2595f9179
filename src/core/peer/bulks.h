// Bulks: the puts and gets of a pair that wait for room on their rails, are under way there, or
// were refused. Under the baton.
#pragma once

#include <cstddef>
#include <utility>

#include "src/base/status.h"
#include "src/core/peer/pair_schedule.h"
#include "src/core/peer/rail.h"
#include "src/core/progress/engine.h"
#include "transports/transport.h"

namespace hetcomm {

// A put or get of core, with whom to tell.
class BulkOwner {
 public:
  // The bulk has ended; its memory is quiet.
  virtual void on_bulk(Bulk& bulk, Code code) = 0;

 protected:
  ~BulkOwner() = default;
};
struct OwnedBulk : Bulk {
  BulkOwner* owner = nullptr;
  Rail* rail = nullptr;         // where it goes; null when it has ended
  OwnedBulk* listed = nullptr;  // the next one in a list of Bulks
  bool is_get = false;
  bool waiting = false;      // refused for now; in a list
  bool started = false;      // counted in the rail's load
  Code refused = Code::kOk;  // for good, and not reported yet; in the other list
};

// Bulks in order. The list runs through them, so that nothing is forgotten for want of memory.
class BulkList {
 public:
  bool empty() const { return first_ == nullptr; }
  size_t size() const { return size_; }
  void push(OwnedBulk& bulk) {
    bulk.listed = nullptr;
    (first_ == nullptr ? first_ : last_->listed) = &bulk;
    last_ = &bulk;
    ++size_;
  }
  OwnedBulk& pop() {
    OwnedBulk& bulk = *first_;
    first_ = bulk.listed;
    --size_;
    return bulk;
  }
  template <typename Which>
  void remove_if(Which&& which) {
    OwnedBulk* at = std::exchange(first_, nullptr);
    size_ = 0;
    while (at != nullptr) {
      OwnedBulk& bulk = *at;
      at = bulk.listed;
      if (!which(bulk)) push(bulk);
    }
  }

 private:
  OwnedBulk* first_ = nullptr;
  OwnedBulk* last_ = nullptr;
  size_t size_ = 0;
};

class Bulks {
 public:
  Bulks(Engine& engine, PairSchedule& schedule, ScheduledPair& pair)
      : engine_(engine), schedule_(schedule), pair_(pair) {}
  Bulks(const Bulks&) = delete;
  Bulks& operator=(const Bulks&) = delete;

  // Starts |bulk| on |bulk.rail|, or lets it wait there if there is no room. A refusal for good is
  // reported at the end of the pass.
  void submit(OwnedBulk& bulk);
  // Lets |bulk| wait for submit_waiting().
  void wait(OwnedBulk& bulk) {
    bulk.waiting = true;
    waiting_.push(bulk);
  }
  // Submits those that wait, each once: it may come back to the end of the list.
  void submit_waiting();
  // |bulk|'s endpoint is done with it.
  void ended(OwnedBulk& bulk, Code code);
  void report_refused();
  // Cancels |bulk|. On return its memory is quiet, and its owner hears no more of it. True: the
  // rail fails for that, as PutStarter::cancel says.
  bool cancel(OwnedBulk& bulk);
  // Forgets those of |rail|, whose owners know.
  void forget(const Rail& rail);
  bool empty() const { return waiting_.empty() && refused_.empty(); }

 private:
  Engine& engine_;
  PairSchedule& schedule_;
  ScheduledPair& pair_;
  BulkList waiting_;
  BulkList refused_;
};

}  // namespace hetcomm
