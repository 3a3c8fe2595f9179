// Declares the interface of the objects that the engine drives, and that of the object that sweeps
// operations.
#pragma once

#include <cstdint>

#include "src/base/baton_role.h"
#include "transports/transport.h"

namespace hetcomm {

// A Driven object is called in every pass, when its timers expire, and before and after a sleep.
class Driven {
 public:
  // Makes progress. Returns the number of steps made.
  virtual int progress() HETCOMM_UNDER_BATON = 0;
  // Handles timers. Called when next_timer_ns() has passed, and occasionally before.
  virtual void tick(uint64_t now_ns) HETCOMM_UNDER_BATON = 0;
  // Returns the time at which tick() must run next, or kForever if there is none.
  virtual uint64_t next_timer_ns() const HETCOMM_UNDER_BATON = 0;
  // These three functions have the same contracts as Transport's functions of the same names
  // (transports/transport.h).
  [[nodiscard]] virtual bool prepare_sleep(Sleep sleep) HETCOMM_UNDER_BATON = 0;
  virtual bool may_sleep_on() const HETCOMM_UNDER_BATON = 0;
  virtual void finish_sleep() HETCOMM_UNDER_BATON = 0;

 protected:
  ~Driven() = default;
};

// The engine drives an EngineDriven object directly, not through another driven object.
class EngineDriven : public Driven {
 public:
  // Called after an allocation has failed during a check of descriptors, so some received data is
  // lost.
  virtual void out_of_memory() HETCOMM_UNDER_BATON = 0;

 protected:
  ~EngineDriven() = default;
};

// Checks the operations in progress from time to time.
class Sweeper {
 public:
  // Ends overdue operations, and reports stalled operations and hung copies. Returns when the next
  // sweep is due.
  virtual uint64_t sweep(uint64_t now_ns) HETCOMM_UNDER_BATON = 0;

 protected:
  ~Sweeper() = default;
};

}  // namespace hetcomm
