// Streams of torch's, whatever the back-end.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace hetcomm::torch_backend {

// A stream of |device|, for copies and order. Users may have it, too: most back-ends have a pool of
// streams, of which this takes one of high priority, as fewer do.
c10::Stream make_stream(c10::Device device);

// Whether a stream is being captured into a graph, where this torch can tell.
bool is_captured(const c10::Stream& stream);

}  // namespace hetcomm::torch_backend
