// Functions for PyTorch streams that work on any back-end.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace hetcomm::torch_backend {

// Returns a stream on |device|, for copies and ordering. Users may get the same stream, since most
// back-ends have a pool of streams. The stream has high priority, because users request such
// streams less often.
c10::Stream make_stream(c10::Device device);

// Returns whether the back-end of |device| has no events, or no streams other than users' streams.
// Work in its streams is then complete when finish() returns, and completion is not reported
// earlier. The result is determined by trying both.
bool is_synchronous(c10::Device device);

// Waits for the work in |stream|. Does nothing if the back-end cannot wait, because its work is
// then already complete.
void finish(const c10::Stream& stream);

// Returns the calling thread's current stream.
c10::Stream current_stream(c10::Device device);

// Returns whether a stream is being captured into a graph. Returns false if this PyTorch version
// cannot report it.
bool is_captured(const c10::Stream& stream);

}  // namespace hetcomm::torch_backend
