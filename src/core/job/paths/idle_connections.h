// Closes connections that have not been used recently when the process is short of descriptors.
// Callers hold the baton.
#pragma once

#include <cstdint>

#include "src/base/baton_role.h"
#include "src/core/job/paths/pair_table.h"
#include "src/system/clock.h"

namespace hetcomm {

class IdleConnections {
 public:
  // |rank| is this process's rank in the job.
  IdleConnections(Engine& engine, int rank, PairTable& pairs)
      : engine_(engine), rank_(rank), pairs_(pairs) {}
  IdleConnections(const IdleConnections&) = delete;
  IdleConnections& operator=(const IdleConnections&) = delete;

  // If descriptors are short, asks the peers that have been idle longest to close their
  // connections, and schedules another run.
  void run() HETCOMM_UNDER_BATON;
  void tick(uint64_t now_ns) HETCOMM_UNDER_BATON {
    if (now_ns >= at_ns_) run();
  }
  uint64_t next_timer_ns() const HETCOMM_UNDER_BATON { return at_ns_; }

 private:
  Engine& engine_;
  const int rank_;
  PairTable& pairs_;
  uint64_t at_ns_ = kForever;  // time of the next run while descriptors are short
  uint64_t pause_ns_ = 0;
};

}  // namespace hetcomm
