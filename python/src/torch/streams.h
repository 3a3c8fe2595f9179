// Streams of torch's, whatever the back-end.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace hetcomm::torch_backend {

// A stream of |device|, for copies and order. Users may have it, too: most back-ends have a pool of
// streams, of which this takes one of high priority, as fewer do.
c10::Stream make_stream(c10::Device device);

// Whether |device| is one of a back-end without events, or without streams that others than users
// have: what is put into its streams is over when finish() returns, and nothing tells so by itself.
// It tries.
bool is_synchronous(c10::Device device);

// Waits for what |stream| holds, where the back-end can; where it cannot that is over already.
void finish(const c10::Stream& stream);

// The current stream of the calling thread.
c10::Stream current_stream(c10::Device device);

// Whether a stream is being captured into a graph, where this torch can tell.
bool is_captured(const c10::Stream& stream);

}  // namespace hetcomm::torch_backend
