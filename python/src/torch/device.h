// Registers a PyTorch device with the library, as a device of kind "torch". The code uses only
// functions that all PyTorch back-ends have: cuda, hip, xpu, npu and those that register as
// PrivateUse1.
//
//   library                    PyTorch
//   stream, event              c10::Stream, c10::Event
//   copy to and from the host  Tensor::copy_() without blocking, in the library's own streams
//   host memory for copies     the back-end's pinned memory
//   a user's stream            the caller's current stream: events are recorded in it, and it
//                              never waits for the library
//
// A device is synchronous if its back-end has no events, or no streams to copy in. Its copies are
// complete when the call returns. A caller that posts an operation first waits for the current
// stream.
//
// Addresses and native streams in the device table are names that the device assigns
// (device_state.h). Tensor pointers are used only for their alignment, because some back-ends have
// handles instead of pointers, or their own kinds of storage.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <hetcomm/device_plugin.h>

namespace hetcomm::torch_backend {

// Returns whether the library can move tensors of |device|.
bool is_movable(c10::Device device);

// Makes a device for hetcomm_device_add(). Its destroy() frees it.
hetcomm_device_t make_device(c10::Device device);

// Returns whether the device |instance| is synchronous, as described above. Work on it is complete
// when finish() on its stream returns (streams.h).
bool is_synchronous(void* instance);

// Registers the memory of the contiguous tensor |packed| with the device |instance|. Returns a
// name, which serves as the address of the memory. The name is valid until the library releases the
// address or drop_memory() is called.
void* name_memory(void* instance, const at::Tensor& packed);
void drop_memory(void* instance, void* memory);
// Returns the bytes of the memory with |name|, which the library or name_memory() has registered,
// or an undefined tensor if there is none. The tensor keeps the memory alive, and has a separate
// version counter.
at::Tensor named_memory(void* instance, const void* name);

// Registers |stream| with its device |instance|. Returns a name, which is the argument for
// hetcomm_stream_wrap(). The name is valid as long as the device exists.
void* name_stream(void* instance, const c10::Stream& stream);

}  // namespace hetcomm::torch_backend
