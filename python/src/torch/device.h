// Devices of torch's: a kind of device for the library, made of what all back-ends of torch have,
// be it cuda, hip, xpu, npu or one that calls itself PrivateUse1.
//
//   library                    torch
//   stream, event              c10::Stream, c10::Event
//   copy to and from the host  Tensor::copy_() without blocking, in the library's own streams
//   host memory for copies     the back-end's pinned memory
//   a user's stream            the current one of the caller: it is recorded, never held back
//
// A back-end without events, or without streams to copy in, is a synchronous device: copies are
// over when the call returns, and who posts waits for the current stream first.
//
// Addresses and native streams are names that the device gives (device_state.h). Pointers of
// tensors tell nothing but how they are aligned: some back-ends have handles in their place, or
// storages of their own.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <hetcomm/device_plugin.h>

namespace hetcomm::torch_backend {

// Whether tensors of |device| can be moved.
bool is_movable(c10::Device device);

// A device for hetcomm_device_add(). Its destroy() frees it.
hetcomm_device_t make_device(c10::Device device);

// Whether work of the device |instance| is over when finish() of its stream returns (streams.h): it
// has no streams that the library knows.
bool is_synchronous(void* instance);

// Names the contents of |packed|, which is contiguous, to the device |instance|, until the library
// releases the address or drop_memory() is called.
void* name_memory(void* instance, const at::Tensor& packed);
void drop_memory(void* instance, void* memory);

// Names |stream| to the device |instance|, which is the stream's: what hetcomm_stream_wrap() takes.
// The name holds for as long as the device.
void* name_stream(void* instance, const c10::Stream& stream);

}  // namespace hetcomm::torch_backend
