// Streams of torch on any back-end.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace hetcomm::torch_backend {

// A stream of |device|, for copies and ordering. Users may have the same stream: most back-ends
// have a pool of streams. This takes one of high priority, since fewer users do.
c10::Stream make_stream(c10::Device device);

// Whether the back-end of |device| has no events, or no streams other than those of users. Then
// work in its streams is complete when finish() returns, and nothing reports that earlier. It finds
// out by trying.
bool is_synchronous(c10::Device device);

// Waits for the work in |stream| if the back-end can. If it cannot, that work is already complete.
void finish(const c10::Stream& stream);

// The current stream of the calling thread.
c10::Stream current_stream(c10::Device device);

// Whether a stream is being captured into a graph, where this torch can tell.
bool is_captured(const c10::Stream& stream);

}  // namespace hetcomm::torch_backend
