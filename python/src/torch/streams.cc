#include "python/src/torch/streams.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

namespace hetcomm::torch_backend {
namespace {

using Guard = c10::impl::VirtualGuardImpl;

// From torch 2.13 on a guard tells whether a stream is captured into a graph.
template <typename AnyGuard>
bool guard_knows_captured(const AnyGuard& guard, const c10::Stream& stream) {
  if constexpr (requires { guard.isStreamCapturing(stream); }) {
    return guard.isStreamCapturing(stream);
  } else {
    return false;
  }
}

}  // namespace

c10::Stream make_stream(c10::Device device) {
  constexpr int kHighPriority = -1;
  const Guard guard(device.type());
  try {
    return guard.getNewStream(device, kHighPriority);
  } catch (const c10::Error&) {
    return guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  }
}

bool is_captured(const c10::Stream& stream) {
  return guard_knows_captured(Guard(stream.device_type()), stream);
}

}  // namespace hetcomm::torch_backend
