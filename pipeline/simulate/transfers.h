// Events in the order of their times, and transfers that take turns on resources.
#pragma once

#include <cstdint>
#include <deque>
#include <queue>
#include <vector>

#include "pipeline/simulate/route.h"

namespace hetcomm::pipeline {

struct Event {
  enum Kind : uint8_t {
    kStep,      // a rank's step ends; |id| is the rank
    kHopReady,  // a transfer's next hop may start; |id| is the transfer
    kHopEnd,    // a transfer's hop ends
    kArrival,   // a transfer's data is there
    kCredit,    // news that an item was taken; |id| is the pipeline, |hop| the channel
  };
  Kind kind;
  uint32_t id;
  uint32_t hop = 0;  // of the transfer
};

// Events of the same time come in the order in which they were added.
class EventQueue {
 public:
  uint64_t now() const { return now_; }
  bool is_empty() const { return queue_.empty(); }
  void add(uint64_t after_ns, Event event) { queue_.push({now_ + after_ns, count_++, event}); }
  // Takes the earliest event, and makes its time the present.
  Event take() {
    const Entry first = queue_.top();
    queue_.pop();
    now_ = first.time_ns;
    return first.event;
  }

 private:
  struct Entry {
    uint64_t time_ns;
    uint64_t number;
    Event event;
    bool operator<(const Entry& other) const {  // the queue's top is its greatest entry
      return time_ns != other.time_ns ? time_ns > other.time_ns : number > other.number;
    }
  };
  std::priority_queue<Entry> queue_;
  uint64_t now_ = 0;
  uint64_t count_ = 0;
};

// What a transfer belongs to; the user of Transfers gives it a meaning.
struct TransferName {
  uint32_t pipeline;
  uint32_t purpose;
  uint32_t index;
  uint32_t micro_batch;
};

class TransferClient {
 public:
  // The sender's memory is free.
  virtual void on_left(const TransferName& name) = 0;
  virtual void on_arrived(const TransferName& name) = 0;

 protected:
  ~TransferClient() = default;
};

class Transfers {
 public:
  Transfers(uint32_t resources, EventQueue& events, TransferClient& client)
      : events_(events), client_(client), resources_(resources) {}

  // Starts a transfer over |route|, which lives as long as this object.
  void start(const Route& route, const TransferName& name);
  // Deals with an event of a transfer.
  void on_event(const Event& event);
  // Returns the time for which each resource was occupied.
  std::vector<uint64_t> busy_ns() const;

 private:
  struct Transfer {
    TransferName name;
    const Route* route;
    uint64_t data_end_ns;  // when the last part comes to the hop that starts next
  };
  struct Step {
    uint32_t id;
    uint32_t hop;
    bool operator==(const Step&) const = default;
  };
  struct Resource {
    std::deque<Step> line;  // who needs it; the first one has it if |is_busy|
    bool is_busy = false;
    uint64_t busy_ns = 0;
  };

  void line_up(Step step);
  void try_to_begin(Step step);
  void begin(Step step);
  void end(Step step);
  void arrive(uint32_t id);

  EventQueue& events_;
  TransferClient& client_;
  std::vector<Resource> resources_;
  std::vector<Transfer> transfers_;
  std::vector<uint32_t> free_ids_;
};

}  // namespace hetcomm::pipeline
