// The engine calls these interfaces: things that it drives, and core, which starts operations.
#pragma once

#include <cstdint>

#include "transports/transport.h"

namespace hetcomm {

struct Operation;

// A thing that the engine drives. All calls are under the baton.
class Driven {
 public:
  // Moves things; returns how much was done.
  virtual int progress() = 0;
  // Timers; called when next_timer_ns() has passed, and now and then.
  virtual void tick(uint64_t now_ns) = 0;
  // Memory has run out while descriptors were looked at: some of what came is lost.
  virtual void out_of_memory() = 0;
  virtual uint64_t next_timer_ns() const = 0;
  // These three promise what Transport's functions of the same names promise.
  virtual bool prepare_sleep(Sleep sleep) = 0;
  virtual bool may_sleep_on() const = 0;
  virtual void finish_sleep() = 0;

 protected:
  ~Driven() = default;
};

// The engine asks this of core. All calls are under the baton.
class Submitter {
 public:
  // Starts |operation|, which is pending; it may complete at once.
  virtual void start(Operation& operation) = 0;
  // Ends what is overdue or cancelled and reports stalls; returns when this is needed again.
  virtual uint64_t sweep(uint64_t now_ns) = 0;

 protected:
  ~Submitter() = default;
};

}  // namespace hetcomm
