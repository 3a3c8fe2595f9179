// Keeps notices from other ranks about a communicator that this rank does not have yet, or no
// longer has. This rank may make the communicator long after the other ranks. Only the most recent
// notices are kept. Channel numbers are never reused, so a notice cannot reach the wrong
// communicator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/span.h"
#include "src/base/status.h"

namespace hetcomm {

class EarlyNotices {
 public:
  // |channel| is the number that rank |origin| uses for the communicator.
  struct Failure {
    int origin;
    uint32_t channel;
    bool aborted;  // false: only its collective operations have failed
    Status why;
  };
  struct Call {
    int origin;
    uint32_t channel;
    std::vector<std::byte> note;
  };

  void keep(Failure failure) HETCOMM_UNDER_BATON {
    if (failures_.size() == kMaxFailures) failures_.pop_front();
    failures_.push_back(std::move(failure));
  }
  void keep(Call call) HETCOMM_UNDER_BATON {
    if (calls_.size() == kMaxCalls) calls_.pop_front();
    calls_.push_back(std::move(call));
  }

  // Passes the notices for which concerns(origin, channel) is true to on_failure(failure) and
  // on_call(call), failures first, and removes them.
  template <typename Concerns, typename OnFailure, typename OnCall>
  void take(Concerns&& concerns, OnFailure&& on_failure, OnCall&& on_call) HETCOMM_UNDER_BATON {
    const auto is_taken = [&](const auto& each)
                              HETCOMM_UNDER_BATON { return concerns(each.origin, each.channel); };
    for (const Failure& failure : failures_) {
      if (is_taken(failure)) on_failure(failure);
    }
    std::erase_if(failures_, is_taken);
    for (const Call& call : calls_) {
      if (is_taken(call)) on_call(call);
    }
    std::erase_if(calls_, is_taken);
  }

 private:
  static constexpr size_t kMaxFailures = 1024;
  static constexpr size_t kMaxCalls = 256;

  std::deque<Failure> failures_;
  std::deque<Call> calls_;
};

}  // namespace hetcomm
