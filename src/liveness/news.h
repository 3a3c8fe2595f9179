// News lists facts for all ranks, in the order in which this rank learned them: fates, aborts, and
// failures of collective operations. Each connection sends the list from the beginning and has its
// own position in it. Two ranks that connect therefore exchange all their news, and nothing is
// queued for a slow peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <new>
#include <set>
#include <tuple>

#include "src/liveness/frame.h"

namespace hetcomm::liveness {

class News {
 public:
  // The number of aborts and failures that are kept; older ones are dropped. Fates are always kept.
  static constexpr size_t kMaxNotices = 4096;

  struct Item {
    Frame frame;
    int from;  // rank that reported it; -1: this rank
  };

  bool knows(const Frame& frame) const { return known_.count(key(frame)) != 0; }
  // Adds a fact. Returns false if it is already known.
  bool add(Frame frame, int from) {
    const Key name = key(frame);
    if (known_.count(name) != 0) return false;
    const bool notice = frame.type != FrameType::kFate;
    items_.push_back({std::move(frame), from});
    try {
      known_.insert(name);
    } catch (const std::bad_alloc&) {
      items_.pop_back();  // restores the list
      throw;
    }
    if (notice && ++notices_ > kMaxNotices) drop_oldest_notice();
    return true;
  }

  uint64_t end() const { return items_.size(); }
  // Returns an item. An item that was dropped has the type kBeat.
  const Item& at(uint64_t position) const { return items_[position]; }

 private:
  using Key = std::tuple<uint8_t, uint8_t, int32_t, uint32_t>;
  static Key key(const Frame& frame) {
    // A rank can be reported dead first and left later. For other facts, the first report counts.
    const bool fate = frame.type == FrameType::kFate;
    return {static_cast<uint8_t>(frame.type), fate ? frame.code : uint8_t{0}, frame.subject,
            fate ? 0 : frame.number};
  }
  void drop_oldest_notice() {
    while (items_[first_notice_].frame.type == FrameType::kFate ||
           items_[first_notice_].frame.type == FrameType::kBeat) {
      ++first_notice_;
    }
    Item& oldest = items_[first_notice_];
    known_.erase(key(oldest.frame));
    oldest.frame = Frame{};
    --notices_;
  }

  std::deque<Item> items_;
  std::set<Key> known_;
  size_t notices_ = 0;
  size_t first_notice_ = 0;
};

}  // namespace hetcomm::liveness
