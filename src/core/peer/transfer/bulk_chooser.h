// BulkChooser: finds out whether put or get moves bulk data faster to this rank from one peer.
//
// The faster way depends on the machine, on where the two processes currently run, on the size and
// on the load. So every size class keeps the costs of both. Transfers use the cheaper way, and now
// and then a few use the other one (two_ways.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "src/base/baton_role.h"
#include "src/core/peer/transfer/two_ways.h"

namespace hetcomm {

class BulkChooser {
 public:
  // Chooses the way of the next transfer of |bytes|; both ways are possible. Without |may_try| it
  // belongs to no trial.
  bool prefer_get(uint64_t bytes, bool may_try = true) HETCOMM_UNDER_BATON;
  // A transfer took |elapsed_ns| of the pair's time.
  void measured(uint64_t bytes, bool by_get, uint64_t elapsed_ns) HETCOMM_UNDER_BATON;
  // A get of |bytes| failed and puts did the rest: gets do not work.
  void get_failed(uint64_t bytes) HETCOMM_UNDER_BATON;
  // ns per byte so far, 0 when not measured.
  double cost(uint64_t bytes, bool by_get) const HETCOMM_UNDER_BATON;

 private:
  static constexpr size_t kClasses = 6;  // up to 64 KiB, 256 KiB, 1 MiB, 4 MiB, 16 MiB, more
  // After this many other transfers an unfinished trial continues with new transfers.
  static constexpr uint32_t kLongestTrial = 256;

  struct Class {
    TwoWays ways;
    uint32_t to_start = 0;      // transfers of the trial
    uint32_t beside_trial = 0;  // transfers begun since the trial's last one
    bool guessed = false;       // copied from the class below

    // A read has to be clearly faster, since the receiver does all of its work.
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
