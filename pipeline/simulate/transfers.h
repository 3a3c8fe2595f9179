// EventQueue orders events by their times. Transfers lets transfers take turns on resources.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "pipeline/simulate/line.h"
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
  EventQueue() { entries_.reserve(256); }
  uint64_t now() const { return now_; }
  bool is_empty() const { return entries_.empty(); }
  void add(uint64_t after_ns, Event event) {
    entries_.push_back({now_ + after_ns, count_++ << 3 | event.kind, event.id, event.hop});
    std::push_heap(entries_.begin(), entries_.end());
  }
  // Takes the earliest event, and makes its time the present.
  Event take() {
    std::pop_heap(entries_.begin(), entries_.end());
    const Entry first = entries_.back();
    entries_.pop_back();
    now_ = first.time_ns;
    return {static_cast<Event::Kind>(first.number_and_kind & 7), first.id, first.hop};
  }

 private:
  struct Entry {
    uint64_t time_ns;
    uint64_t number_and_kind;  // the kind has the lowest three bits
    uint32_t id;
    uint32_t hop;
    bool operator<(const Entry& other) const {  // a heap's top is its greatest entry
      return time_ns != other.time_ns ? time_ns > other.time_ns
                                      : number_and_kind > other.number_and_kind;
    }
  };

  std::vector<Entry> entries_;  // a heap
  uint64_t now_ = 0;
  uint64_t count_ = 0;
};

// Returns how long a transfer takes if nothing else uses its way.
uint64_t alone_ns(const Route& route);

// The name of a transfer. The user of Transfers gives it a meaning.
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
    Line<Step> line;  // the hops that need it; the first one has it if |is_busy|
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
