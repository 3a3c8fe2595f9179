// A pair and a sweeper that do nothing, for tests of parts that report to one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/core/peer/sharing/pair_turns.h"
#include "src/system/clock.h"

namespace hetcomm::test {

class NoPair final : public ListedPair {
 public:
  void send_update() override {}
  bool copy_some() override { return false; }
  void tick(uint64_t /*now_ns*/) override {}
  uint64_t next_timer_ns() const override { return kForever; }
  uint64_t unsent_bytes(size_t /*link*/) const override { return 0; }
  void out_of_memory() override {}
};

class Nobody final : public Sweeper {
 public:
  uint64_t sweep(uint64_t /*now_ns*/) override { return kForever; }
};

}  // namespace hetcomm::test
