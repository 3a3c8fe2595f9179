// EventQueue orders events by time. Transfers assigns resources to transfers.
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
    kHopReady,  // a transfer's next hop can start; |id| is the transfer
    kHopEnd,    // a transfer's hop ends
    kArrival,   // a transfer's data has arrived
    kCredit,    // a credit reaches the sender; |id| is the pipeline, |hop| the channel
  };
  Kind kind;
  uint32_t id;
  uint32_t hop = 0;  // index of the hop of the transfer
};

// Events with the same time are returned in the order in which they were added.
class EventQueue {
 public:
  EventQueue() { entries_.reserve(256); }
  uint64_t now() const { return now_; }
  bool is_empty() const { return entries_.empty(); }
  void add(uint64_t after_ns, Event event) {
    entries_.push_back({now_ + after_ns, count_++ << 3 | event.kind, event.id, event.hop});
    std::push_heap(entries_.begin(), entries_.end());
  }
  // Removes and returns the earliest event, and advances now() to its time.
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
    uint64_t number_and_kind;  // the kind is in the lowest three bits
    uint32_t id;
    uint32_t hop;
    bool operator<(const Entry& other) const {  // reversed, for std::push_heap()
      return time_ns != other.time_ns ? time_ns > other.time_ns
                                      : number_and_kind > other.number_and_kind;
    }
  };

  std::vector<Entry> entries_;  // a heap, with the earliest event on top
  uint64_t now_ = 0;
  uint64_t count_ = 0;
};

// Returns the time that a transfer takes if nothing else uses its resources.
uint64_t alone_ns(const Route& route);

// Identifies a transfer to the TransferClient, which defines the meaning of the fields.
struct TransferName {
  uint32_t pipeline;
  uint32_t purpose;
  uint32_t index;
  uint32_t micro_batch;
};

class TransferClient {
 public:
  // Called when the sender's memory is free.
  virtual void on_left(const TransferName& name) = 0;
  virtual void on_arrived(const TransferName& name) = 0;

 protected:
  ~TransferClient() = default;
};

class Transfers {
 public:
  Transfers(uint32_t resources, EventQueue& events, TransferClient& client)
      : events_(events), client_(client), resources_(resources) {}

  // Starts a transfer over |route|, which must outlive this object.
  void start(const Route& route, const TransferName& name);
  // Handles an event of a transfer.
  void on_event(const Event& event);
  // Returns the time for which each resource was occupied.
  std::vector<uint64_t> busy_ns() const;

 private:
  struct Transfer {
    TransferName name;
    const Route* route;
    uint64_t data_end_ns;  // when the last part reaches the hop that starts next
  };
  struct Step {
    uint32_t id;
    uint32_t hop;
    bool operator==(const Step&) const = default;
  };
  struct Resource {
    Line<Step> line;  // hops that need the resource; the first one occupies it if |is_busy|
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
