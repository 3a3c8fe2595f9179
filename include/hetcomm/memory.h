/* Devices, memory and buffers.
 *
 * A device is one memory space with its copy engines. A memory is a region of one device. A buffer
 * is a part of a memory, passed by value; every data call takes buffers.
 *
 * The library takes a plain pointer, in a buffer or as any other argument, for host memory. The CPU
 * may not touch the memory of most devices (host_accessible). Where the library would touch it
 * through a plain pointer it returns INVALID_ARGUMENT: name it with hetcomm_buffer_memory, or let
 * hetcomm_buffer_pointer find out where it lies. The library recognizes pointers into the memories
 * that were allocated or wrapped through the context, until they are freed. It does not know of
 * other device memory, so wrap that before its pointer gets to a data call. In a context without
 * device memory the check costs one comparison.                                                  */
#ifndef HETCOMM_MEMORY_H_
#define HETCOMM_MEMORY_H_

#include <hetcomm/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hetcomm_memory hetcomm_memory_t;

/* Number of the host, which is always device 0. The others are numbered from 1 in the order of
 * HETCOMM_DEVICES, and then in the order in which hetcomm_device_from_native and hetcomm_device_add
 * added them. */
#define HETCOMM_DEVICE_HOST 0

typedef struct hetcomm_device_info_t {
  /* The caller sets it to sizeof(hetcomm_device_info_t). */
  size_t struct_size;
  /* Number of the device within the context. */
  int32_t index;
  /* 1: the CPU may load and store the device's memory. 0: it may not. */
  int32_t host_accessible;
  /* Kind of device: "host", "opencl", "sim-handle", "sim-address" or a plug-in's, closed by NUL. */
  char kind[16];
  /* Name for people, cut to fit, closed by NUL. */
  char name[64];
  /* PCI address, such as "0000:3b:00.0", closed by NUL; empty where the device has none or does not
   * tell. */
  char pci_address[16];
  /* NUMA node of the host near which the device says that it is, by the kernel's number; -1
   * where it does not tell. */
  int32_t numa_node;
  int32_t reserved; /* 0 */
} hetcomm_device_info_t;

/* Gives the number of devices of the context, the host included; it is at least 1. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_device_count(hetcomm_context_t* context, int32_t* out_count) HETCOMM_NOEXCEPT;

/* Describes device |index|. OUT_OF_RANGE: there is no such device. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_device_info(
    hetcomm_context_t* context, int32_t index, hetcomm_device_info_t* out_info) HETCOMM_NOEXCEPT;

/* Adds a device for what a framework works with already, so that memory of it can be wrapped.
 * |native| is the framework's own object: for the kind "opencl" a cl_context, of which the first
 * device counts, and whose buffers are then the device's; for a kind that a plug-in brings what the
 * plug-in says. Gives the number of the device, which is there until the context is destroyed; the
 * same |native| gives the same number again. It may be called at any time, also while communicators
 * exist. What the library makes is its own, and nothing of the caller's changes. A cl_context is
 * retained; anything else that |native| is has to stay until the context is destroyed. Such a
 * device is equal to those of HETCOMM_DEVICES, but that a communicator chooses network interfaces
 * when it is created, by the devices of that moment: create it after the device.
 *   INVALID_ARGUMENT   |native| is NULL or no object of this kind. Not every vendor's OpenCL tells
 *                      a cl_context from its other objects: it may crash for one of these.
 *   NOT_FOUND          There is no such |kind|, or its run-time cannot be loaded.
 *   UNSUPPORTED        Devices of this kind are made from HETCOMM_DEVICES only.
 *   OUT_OF_RESOURCES   The context has HETCOMM_MAX_DEVICES devices.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_device_from_native(hetcomm_context_t* context, const char* kind, void* native,
                           int32_t* out_device) HETCOMM_NOEXCEPT;

struct hetcomm_device;

/* Adds a device that the caller brings: table and instance of hetcomm/device_plugin.h, whose
 * entries it fills as a plug-in does. Gives the number of the device, which is there until the
 * context is destroyed; that destroys the instance, too. After a failure it is still the caller's.
 * It may be called at any time, also while communicators exist. As with hetcomm_device_from_native,
 * it counts in the choice of network interfaces of communicators that are created later.
 *   INVALID_ARGUMENT   The table's kind is one of the library's own.
 *   UNSUPPORTED        The table is of another version, or lacks an entry; the text says which.
 *   OUT_OF_RESOURCES   The context has HETCOMM_MAX_DEVICES devices.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_device_add(hetcomm_context_t* context, const struct hetcomm_device* device,
                   int32_t* out_device) HETCOMM_NOEXCEPT;

/* Gives device |device| up, which hangs: its copies do not end, so that no operation that needs
 * them does. A deadline or a cancel does not end these either. |reason|, or NULL, stands in texts.
 *
 * All pending operations that name memory of the device, or that wait for a stream of it, end with
 * DEVICE_LOST, soon after this call, and so do calls that wait for its copies. Other ranks hear of
 * it. Later calls that name the device are refused with DEVICE_LOST, but for collective operations
 * and redistributions, which other ranks count on: these end so. Other devices, and memory of the
 * host, go on. It cannot be taken back.
 *
 * Copies that have begun may go on, and this is the one case in which the memory of an operation is
 * not quiet when it has ended:
 *   - Memory of the device that the operation names must not be read, written or given back to the
 *     vendor until the process ends; nor memory of other devices of the vendor's to which this one
 *     copies. hetcomm_memory_destroy is called for it all the same, and gives the handle back.
 *   - Memory of the host is quiet, as after every operation: copies of devices go through the
 *     library's own, which is not used again before the copy has ended.
 * What a copy uses stays until it ends, if it ever does: memory of the library, allocations that
 * hetcomm_memory_destroy has got back already, vendors' objects, streams. If it has not ended when
 * the context is destroyed, that stays as long as the process, and so does the device.
 *
 * A call of a vendor that does not return holds its thread, and cannot be ended by this.
 *   INVALID_ARGUMENT   The CPU touches the device's memory itself, as it does that of the host.
 *   OUT_OF_RANGE       There is no such device.
 * HETCOMM_DEVICE_TIMEOUT says when the log reports that a device hangs;
 * HETCOMM_DEVICE_TIMEOUT_ABANDON=on gives it up then. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_device_abandon(
    hetcomm_context_t* context, int32_t device, const char* reason) HETCOMM_NOEXCEPT;

/* Most devices of a context, the host included. */
#define HETCOMM_MAX_DEVICES 256

/* Allocates |size_bytes| on device |device|. The contents are undefined. Host memory of this kind
 * is shared: a forked child sees what its parent writes, and the parent what the child writes.
 * With many vendors the call waits for streams that operations hold back (hetcomm/stream.h).
 * OUT_OF_RANGE: there is no such device. INVALID_ARGUMENT: |size_bytes| is 0. OUT_OF_MEMORY: the
 * device has no room. OUT_OF_RESOURCES: host memory of this kind is a file to the kernel, and the
 * process may not have such large ones (ulimit -f); hetcomm_memory_wrap takes memory of the
 * caller's own. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_allocate(hetcomm_context_t* context, int32_t device, uint64_t size_bytes,
                        hetcomm_memory_t** out_memory) HETCOMM_NOEXCEPT;

/* Makes a memory of the |size_bytes| from |address| on, which is a host pointer, or an address or
 * handle of the device's vendor. The region stays the caller's: hetcomm_memory_destroy does not
 * free it, and it has to exist until then. A cl_mem is retained until then.
 *   INVALID_ARGUMENT  |address| is NULL, |size_bytes| is 0, the device does not know the address,
 *                     or |device| is the host and the address is memory of another device. The text
 *                     names the rule.
 *   UNSUPPORTED       The CPU may not read or write this memory, such as a cl_mem with
 *                     CL_MEM_HOST_NO_ACCESS.
 *   OUT_OF_RANGE      There is no such device, or the region ends past its allocation, or past the
 *                     address space.
 *   STALE_HANDLE      The memory was freed, where its device can tell.
 *   DEVICE_LOST, ...  The device failed.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_wrap(hetcomm_context_t* context, int32_t device, void* address, uint64_t size_bytes,
                    hetcomm_memory_t** out_memory) HETCOMM_NOEXCEPT;

/* Destroys the handle, and frees the region if hetcomm_memory_allocate gave it. It may wait, as
 * hetcomm_memory_allocate may. BUSY: a pending operation uses the memory, a prepared request names
 * it, or it is registered; then nothing has changed. NULL is accepted. [exclusive] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_memory_destroy(hetcomm_memory_t* memory)
    HETCOMM_NOEXCEPT;

/* Gives the size of the region. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_size(const hetcomm_memory_t* memory, uint64_t* out_size_bytes) HETCOMM_NOEXCEPT;

/* Gives the vendor's address or handle of the region; for the host it is a plain pointer.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_address(const hetcomm_memory_t* memory, void** out_address) HETCOMM_NOEXCEPT;

/* Copies |size_bytes| from host memory at |source| into |memory| at |offset|, and waits until that
 * is done; with some vendors also for streams that operations hold back. The call does not look for
 * operations on the range; the caller keeps them apart.
 * OUT_OF_RANGE: the range ends past the memory. INVALID_ARGUMENT: |source| is NULL, or is memory of
 * a device that the CPU may not touch. Another status: the device failed. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_write(hetcomm_memory_t* memory, uint64_t offset, const void* source,
                     uint64_t size_bytes) HETCOMM_NOEXCEPT;

/* Copies |size_bytes| of |memory| at |offset| into host memory at |destination|, and waits until
 * that is done, as hetcomm_memory_write() does. OUT_OF_RANGE: the range ends past the memory.
 * INVALID_ARGUMENT: |destination| is NULL, or is memory of a device that the CPU may not touch.
 * Another status: the device failed, and a part may have been copied, as in
 * hetcomm_memory_write(). [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_read(hetcomm_memory_t* memory, uint64_t offset, void* destination,
                    uint64_t size_bytes) HETCOMM_NOEXCEPT;

/* A part of a memory. A call that takes buffers checks them: it returns OUT_OF_RANGE where one ends
 * past its memory, and INVALID_ARGUMENT where |memory| was freed or a plain pointer is NULL or
 * leads to memory of a device. A |length| of 0 is allowed, with any pointer. Frozen layout: it has
 * no struct_size and never grows. */
typedef struct hetcomm_buffer {
  /* The memory that the buffer is a part of. NULL: ordinary host memory. */
  hetcomm_memory_t* memory;
  /* Where the buffer begins in |memory|, in bytes. Its address, where |memory| is NULL. */
  uint64_t offset;
  /* Length in bytes. */
  uint64_t length;
} hetcomm_buffer_t;

/* Makes a buffer of |length| bytes of ordinary host memory from |pointer| on. It costs nothing and
 * registers nothing. [any-thread]
 *
 * GCC hands a structure of this size on in 16-byte moves. If it were written member by member just
 * before, it would have to reach the cache before it can be read again, behind every store of an
 * earlier send. So GCC is given the first 16 bytes as one. */
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

/* Makes a buffer of |length| bytes from |pointer| on, wherever that leads: into an allocation of
 * one of the context's devices, the library's or another's, or else to host memory, which is taken
 * for granted. Each kind of devices is asked once, however many devices it has; in a context
 * without other devices than the host that costs nothing. The buffer is good until the allocation
 * is freed, and belongs to nobody. Its data goes through the host; hetcomm_memory_wrap names memory
 * that network interfaces may reach. A handle such as a cl_mem counts as the pointer to its first
 * byte while a memory names it; before hetcomm_memory_wrap it is refused, as is any other object of
 * OpenCL's.
 *   INVALID_ARGUMENT  |pointer| is NULL and |length| is not 0, or it is a vendor's handle that no
 *                     memory names.
 *   OUT_OF_RANGE      The range ends past its allocation, or past the address space.
 *   STALE_HANDLE      The memory was freed, where its device can tell.
 *   DEVICE_LOST, ...  A device cannot tell whether the pointer is its own; the text says which, and
 *                     why.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_buffer_pointer(hetcomm_context_t* context, const void* pointer, uint64_t length,
                       hetcomm_buffer_t* out_buffer) HETCOMM_NOEXCEPT;

/* Makes a buffer of |length| bytes of |memory| from |offset| on. The call that takes the buffer
 * checks it. [any-thread] */
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
