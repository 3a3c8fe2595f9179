#include "python/src/torch/streams.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <string>

namespace hetcomm::torch_backend {
namespace {

using Guard = c10::impl::VirtualGuardImpl;

// Returns whether a stream is being captured into a graph. Guards report this since PyTorch 2.13.
template <typename AnyGuard>
bool guard_knows_captured(const AnyGuard& guard, const c10::Stream& stream) {
  if constexpr (requires { guard.isStreamCapturing(stream); }) {
    return guard.isStreamCapturing(stream);
  } else {
    return false;
  }
}

// Returns whether |error| says that a back-end lacks the requested feature. The words are those of
// PyTorch's own guard.
bool is_missing(const c10::Error& error) {
  return std::string(error.what_without_backtrace()).find("doesn't support") != std::string::npos;
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

bool is_synchronous(c10::Device device) {
  try {
    c10::Event event(device.type());
    event.record(make_stream(device));
    static_cast<void>(event.query());
    return false;
  } catch (const c10::Error& error) {
    if (!is_missing(error)) throw;
    return true;
  }
}

void finish(const c10::Stream& stream) {
  try {
    Guard(stream.device_type()).synchronizeStream(stream);
  } catch (const c10::Error& error) {
    if (!is_missing(error)) throw;
  }
}

c10::Stream current_stream(c10::Device device) { return Guard(device.type()).getStream(device); }

bool is_captured(const c10::Stream& stream) {
  return guard_knows_captured(Guard(stream.device_type()), stream);
}

}  // namespace hetcomm::torch_backend
