// Stand-in device memory and pinned host memory.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "tests/python/standin/stream.h"

namespace standin {

// The allocator of the device. It allocates on the calling thread's current device and stream.
c10::DeviceAllocator& device_allocator();

// Translates the untouchable address of a tensor into the address that the device's threads use.
// Throws if the bytes are not inside one allocated block.
char* alias_of(const void* address, size_t bytes);
// Returns the device that owns an address of device memory, or -1.
int device_of(const void* address);

// The allocator of pinned host memory.
c10::Allocator& pinned_allocator();
bool is_pinned(const void* address);
// Records that a stream uses pinned memory until its task is done.
void note_pinned_use(const void* address, Stream& stream, uint64_t ticket);
size_t pinned_bytes();

}  // namespace standin
