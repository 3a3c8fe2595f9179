/* Devices, memory and buffers.
 *
 * A device is one memory space with its copy engines. A memory is a region of one device. A buffer
 * is a piece of a memory, passed by value; it is what every data call takes.
 *
 * A plain pointer, in a buffer or as any other argument, is taken for host memory. The CPU may not
 * touch the memory of most devices (host_accessible), so a pointer to that is refused with
 * INVALID_ARGUMENT wherever the library would touch it: hand it in with hetcomm_buffer_memory. The
 * library recognizes pointers into the memories that were allocated or wrapped through the context,
 * until they are freed. It does not look for device memory that it was never told of, nor in a
 * context without such memories, where the check costs one comparison: wrap device memory before
 * its pointer gets to a data call.                                                              */
#ifndef HETCOMM_MEMORY_H_
#define HETCOMM_MEMORY_H_

#include <hetcomm/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hetcomm_memory hetcomm_memory_t;

/* Device 0 is always the host. The others are numbered from 1 in the order of HETCOMM_DEVICES. */
#define HETCOMM_DEVICE_HOST 0

typedef struct hetcomm_device_info {
  size_t struct_size;      /* sizeof at the caller's compile time: set it before the call      */
  int32_t index;           /* number within the context                                        */
  int32_t host_accessible; /* 1: the CPU may load and store its memory                         */
  char kind[16];           /* "host", "sim-handle", "sim-address"                              */
  char name[64];           /* for people                                                       */
} hetcomm_device_info_t;

/* Number of devices of the context, the host included; at least 1. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_device_count(hetcomm_context_t* context, int32_t* out_count) HETCOMM_NOEXCEPT;

/* Describes device |index|. OUT_OF_RANGE when there is no such device. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_device_get_info(
    hetcomm_context_t* context, int32_t index, hetcomm_device_info_t* out_info) HETCOMM_NOEXCEPT;

/* Allocates |size_bytes| on device |device|. The contents are undefined. Host memory of this kind
 * is shared: a forked child sees what its parent writes, and the contrary. OUT_OF_MEMORY when the
 * device has no room. Free with hetcomm_memory_free. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_allocate(hetcomm_context_t* context, int32_t device, uint64_t size_bytes,
                        hetcomm_memory_t** out_memory) HETCOMM_NOEXCEPT;

/* Makes a memory of a region that the caller owns and keeps until hetcomm_memory_free: |address| is
 * a host pointer, or an address or handle of the device's vendor. INVALID_ARGUMENT where the device
 * does not know the address, and where memory of another device is said to be the host's.
 * OUT_OF_RANGE where the region ends past its allocation. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_wrap(hetcomm_context_t* context, int32_t device, void* address, uint64_t size_bytes,
                    hetcomm_memory_t** out_memory) HETCOMM_NOEXCEPT;

/* Gives back a memory. BUSY while a pending operation uses it, or a prepared request that was not
 * released names it; then nothing has changed. NULL is accepted. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_memory_free(hetcomm_memory_t* memory)
    HETCOMM_NOEXCEPT;

/* Size in bytes. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_size(const hetcomm_memory_t* memory, uint64_t* out_size_bytes) HETCOMM_NOEXCEPT;

/* The vendor's address or handle of the region; for the host a plain pointer. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_address(const hetcomm_memory_t* memory, void** out_address) HETCOMM_NOEXCEPT;

/* Copies |size_bytes| from host memory into |memory| at |offset|, or back. Blocks until done.
 * OUT_OF_RANGE when the range ends past the memory, INVALID_ARGUMENT where |source| or
 * |destination| is memory of a device. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_write(hetcomm_memory_t* memory, uint64_t offset, const void* source,
                     uint64_t size_bytes) HETCOMM_NOEXCEPT;
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_read(hetcomm_memory_t* memory, uint64_t offset, void* destination,
                    uint64_t size_bytes) HETCOMM_NOEXCEPT;

/* A piece of memory. |memory| NULL: ordinary host memory, |offset| is the address. INVALID_ARGUMENT
 * from the call that takes it where that is memory of a device. Frozen layout. */
typedef struct hetcomm_buffer {
  hetcomm_memory_t* memory;
  uint64_t offset;
  uint64_t length;
} hetcomm_buffer_t;

/* Buffer over ordinary host memory, which |pointer| must lead to; costs nothing and registers
 * nothing.
 *
 * GCC hands a structure of this size on in 16-byte moves. Written member by member just before, it
 * would have to reach the cache before it can be read again, behind every store of an earlier send;
 * so GCC is given the first 16 bytes as one. */
static inline hetcomm_buffer_t hetcomm_buffer_host(const void* pointer, uint64_t length) {
  hetcomm_buffer_t buffer;
#ifdef __cplusplus
  const uint64_t address = reinterpret_cast<uintptr_t>(pointer);
#else
  const uint64_t address = (uint64_t)(uintptr_t)pointer;
#endif
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  typedef uint64_t hetcomm_two_words __attribute__((vector_size(16)));
  const hetcomm_two_words memory_and_offset = {0, address};
  __builtin_memcpy(&buffer, &memory_and_offset, sizeof(memory_and_offset));
#else
  buffer.memory = NULL;
  buffer.offset = address;
#endif
  buffer.length = length;
  return buffer;
}

/* Buffer over |length| bytes of |memory| from |offset| on; checked by the call that takes it. */
static inline hetcomm_buffer_t hetcomm_buffer_memory(hetcomm_memory_t* memory, uint64_t offset,
                                                     uint64_t length) {
  hetcomm_buffer_t buffer;
  buffer.memory = memory;
  buffer.offset = offset;
  buffer.length = length;
  return buffer;
}

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_MEMORY_H_ */
