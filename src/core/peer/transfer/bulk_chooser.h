// BulkChooser measures whether put or get moves bulk data faster to this rank from one peer.
//
// The faster way depends on the machine, on where the two processes currently run, on the size and
// on the load. Each size class therefore keeps the costs of put and get. Transfers use put unless
// get is clearly cheaper, and periodically a few use the other way (two_ways.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "src/base/baton_role.h"
#include "src/core/peer/transfer/two_ways.h"

namespace hetcomm {

class BulkChooser {
 public:
  // Chooses put or get for the next transfer of |bytes|, for which both are possible. Returns true
  // for a get. If |may_try| is false, the transfer is not part of a trial.
  bool prefer_get(uint64_t bytes, bool may_try = true) HETCOMM_UNDER_BATON;
  // Records that a transfer took |elapsed_ns| of the pair's time.
  void measured(uint64_t bytes, bool by_get, uint64_t elapsed_ns) HETCOMM_UNDER_BATON;
  // Records that a get of |bytes| failed and puts move the rest. This size class uses no more gets.
  void get_failed(uint64_t bytes) HETCOMM_UNDER_BATON;
  // Returns the measured cost in ns per byte. Returns 0 if it is unknown, and for gets after one
  // has failed.
  double cost(uint64_t bytes, bool by_get) const HETCOMM_UNDER_BATON;

 private:
  static constexpr size_t kClasses = 6;  // up to 64 KiB, 256 KiB, 1 MiB, 4 MiB, 16 MiB, more
  // If a trial is unfinished after this many other transfers, it starts new ones.
  static constexpr uint32_t kLongestTrial = 256;

  struct Class {
    TwoWays ways;
    uint32_t to_start = 0;      // transfers that the trial still has to start
    uint32_t beside_trial = 0;  // other transfers since the trial's last one began
    bool guessed = false;       // costs are copied from the next smaller class

    // Returns the better way. A read has to be clearly faster, since the receiver does all of its
    // work.
    Way better() const HETCOMM_UNDER_BATON {
      return ways.cost(Way::kPull) < 0.9 * ways.cost(Way::kPush) ? Way::kPull : Way::kPush;
    }
    void start_trial();
    void begin_trial_if_due(uint64_t bytes) HETCOMM_UNDER_BATON;
  };

  static size_t class_of(uint64_t bytes);
  Class& class_for(uint64_t bytes) HETCOMM_UNDER_BATON;

  std::array<Class, kClasses> classes_;
};

}  // namespace hetcomm
