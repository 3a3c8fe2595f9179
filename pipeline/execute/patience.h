// Patience says how long a run waits for an operation, and what it asks during the wait.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>

#include "pipeline/execute/api.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

struct Patience {
  uint64_t wait_ns = UINT64_MAX;  // bound of each wait
  // Called about every kAskNs while something waits. A failure ends the wait. Empty: nothing is
  // asked.
  std::function<Status()> ask;

  static constexpr uint64_t kAskNs = 50'000'000;
};

// Calls wait(ns) until it returns a status. wait(ns) returns none if it has waited |ns| in vain.
// Fails with kTimedOut when |patience| has run out.
template <typename Wait>
Status wait_patiently(const Patience& patience, Wait&& wait) {
  for (uint64_t waited_ns = 0; waited_ns < patience.wait_ns;) {
    const uint64_t left_ns = patience.wait_ns - waited_ns;
    const uint64_t slice_ns = patience.ask ? std::min(Patience::kAskNs, left_ns) : left_ns;
    const std::optional<Status> ended = wait(slice_ns);
    if (ended) return *ended;
    if (patience.ask) HETCOMM_RETURN_IF_ERROR(patience.ask());
    waited_ns += slice_ns;
  }
  return {Code::kTimedOut, "waited for HETCOMM_TIMEOUT"};
}

// Waits for |request|, which is nullptr afterwards unless the patience has run out or an answer was
// a failure.
inline Status wait_patiently(const Patience& patience, hetcomm_request_t*& request) {
  return wait_patiently(patience, [&](uint64_t ns) -> std::optional<Status> {
    const Status ended = wait_and_clear(request, ns);
    if (request != nullptr && ended.code() == Code::kTimedOut) return std::nullopt;
    return ended;
  });
}

}  // namespace hetcomm::pipeline
