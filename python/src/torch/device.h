// Torch devices as a kind of device for the library. They use only what all torch back-ends have,
// be it cuda, hip, xpu, npu or one that calls itself PrivateUse1.
//
//   library                    torch
//   stream, event              c10::Stream, c10::Event
//   copy to and from the host  Tensor::copy_() without blocking, in the library's own streams
//   host memory for copies     the back-end's pinned memory
//   a user's stream            the caller's current one: it is recorded, never blocked
//
// A back-end without events, or without streams to copy in, is a synchronous device: copies are
// complete when the call returns, and the caller of a post first waits for the current stream.
//
// Addresses and native streams are names that the device assigns (device_state.h). Tensor pointers
// are used only for their alignment: some back-ends have handles instead, or their own storages.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <hetcomm/device_plugin.h>

namespace hetcomm::torch_backend {

// Whether the library can move tensors of |device|.
bool is_movable(c10::Device device);

// Makes a device for hetcomm_device_add(). Its destroy() frees it.
hetcomm_device_t make_device(c10::Device device);

// Whether the device |instance| has no streams that the library knows. Work on such a device is
// complete when finish() on its stream returns (streams.h).
bool is_synchronous(void* instance);

// Registers the contents of |packed|, which is contiguous, with the device |instance| and returns
// the name. The name is valid until the library releases the address or drop_memory() is called.
void* name_memory(void* instance, const at::Tensor& packed);
void drop_memory(void* instance, void* memory);

// Registers |stream| with its device |instance| and returns the argument for hetcomm_stream_wrap().
// The name is valid as long as the device.
void* name_stream(void* instance, const c10::Stream& stream);

}  // namespace hetcomm::torch_backend
