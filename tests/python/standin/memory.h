// Memory of the stand-in device, and pinned memory of the host.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "tests/python/standin/stream.h"

namespace standin {

// The allocator of the device. It allocates on the calling thread's current device and stream.
c10::DeviceAllocator& device_allocator();

// Returns where the device's own threads find memory that tensors know by an untouchable address.
// Throws where the bytes are not inside one block that is allocated now.
char* alias_of(const void* address, size_t bytes);
// Returns the device of an address of device memory, or -1.
int device_of(const void* address);

// The allocator of pinned host memory.
c10::Allocator& pinned_allocator();
bool is_pinned(const void* address);
// Notes that a stream uses pinned memory until its task is done.
void note_pinned_use(const void* address, Stream& stream, uint64_t ticket);
size_t pinned_bytes();

}  // namespace standin
