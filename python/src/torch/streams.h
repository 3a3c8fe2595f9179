// torch streams on any back-end.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace hetcomm::torch_backend {

// Returns a stream on |device|, for copies and ordering. Users may get the same stream, since most
// back-ends have a pool of streams. The stream has high priority, since fewer users request those.
c10::Stream make_stream(c10::Device device);

// Whether the back-end of |device| has no events, or no streams other than users' streams. Work in
// its streams is then complete when finish() returns, and nothing reports completion earlier.
// Determined by a trial.
bool is_synchronous(c10::Device device);

// Waits for the work in |stream| if the back-end can. Otherwise that work is already complete.
void finish(const c10::Stream& stream);

// Returns the calling thread's current stream.
c10::Stream current_stream(c10::Device device);

// Whether a stream is being captured into a graph, if this torch version can tell.
bool is_captured(const c10::Stream& stream);

}  // namespace hetcomm::torch_backend
