// Patience defines how long a run waits for an operation, and a function to call during the wait.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>

#include "pipeline/execute/api.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

struct Patience {
  uint64_t wait_ns = UINT64_MAX;  // limit of each wait
  // Called about every kAskNs during a wait. A failure ends the wait. May be empty.
  std::function<Status()> ask;

  static constexpr uint64_t kAskNs = 50'000'000;
};

// Calls wait(ns) until it returns a status. It returns nullopt if |ns| has passed without a result.
// Fails with kTimedOut when the limit of |patience| is reached, and with the failure of
// |patience.ask| if that fails first.
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

// Waits for |request|, and sets it to nullptr. It is unchanged if the wait timed out or
// |patience.ask| failed.
inline Status wait_patiently(const Patience& patience, hetcomm_request_t*& request) {
  return wait_patiently(patience, [&](uint64_t ns) -> std::optional<Status> {
    const Status ended = wait_and_clear(request, ns);
    if (request != nullptr && ended.code() == Code::kTimedOut) return std::nullopt;
    return ended;
  });
}

}  // namespace hetcomm::pipeline
