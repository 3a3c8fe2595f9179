/* Declares devices, memories and buffers.
 *
 * A device is one memory space with its copy engines. A memory is a region of one device. A buffer
 * is a part of a memory, passed by value; every data call takes buffers.
 *
 * The library takes a plain pointer, in a buffer or as any other argument, for host memory. The CPU
 * may not touch the memory of most devices (host_accessible). A call that would touch such memory
 * through a plain pointer returns INVALID_ARGUMENT. Name such memory with hetcomm_buffer_memory, or
 * let hetcomm_buffer_pointer find out where the pointer leads. The library recognizes pointers into
 * memories that were allocated or wrapped through the context, until they are freed. It does not
 * recognize other device memory, so wrap that before its pointer gets to a data call. In a context
 * without device memory the check costs one comparison. */
#ifndef HETCOMM_MEMORY_H_
#define HETCOMM_MEMORY_H_

#include <hetcomm/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hetcomm_memory hetcomm_memory_t;

/* Number of the host, which is always device 0. Other devices are numbered from 1 in the order of
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
  /* PCI address, such as "0000:3b:00.0", closed by NUL. Empty: the device has none or does not
   * report it. */
  char pci_address[16];
  /* Host NUMA node near the device, by the kernel's number. -1: the device does not report one. */
  int32_t numa_node;
  int32_t reserved; /* 0 */
} hetcomm_device_info_t;

/* Gives the number of devices of the context, the host included; it is at least 1. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_device_count(hetcomm_context_t* context, int32_t* out_count) HETCOMM_NOEXCEPT;

/* Describes device |index|. OUT_OF_RANGE: there is no such device. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_device_info(
    hetcomm_context_t* context, int32_t index, hetcomm_device_info_t* out_info) HETCOMM_NOEXCEPT;

/* Adds a device for an object that a framework already uses, so that memory of the device can be
 * wrapped. |native| is that object. For the kind "opencl" it is a cl_context: the device is the
 * context's first one, and the context's buffers are the device's memory. For a plug-in's kind the
 * plug-in defines what |native| is. The call gives the number of the device, which exists until the
 * context is destroyed. Another call with the same |native| gives the same number. The call may be
 * made at any time, also while communicators exist. The library makes its own objects and changes
 * none of the caller's. It retains a cl_context. The caller keeps any other |native| until the
 * context is destroyed.
 *
 * Such a device works like those of HETCOMM_DEVICES, with one difference. A communicator chooses
 * network interfaces by the devices that exist when it is created, so create it after the device.
 *   INVALID_ARGUMENT   |native| is NULL or no object of this kind. Not every vendor's OpenCL can
 *                      tell a cl_context from its other objects: it may crash when it is given one
 *                      of these.
 *   NOT_FOUND          There is no such |kind|, or its run-time cannot be loaded.
 *   UNSUPPORTED        Devices of this kind are made from HETCOMM_DEVICES only.
 *   OUT_OF_RESOURCES   The context has HETCOMM_MAX_DEVICES devices.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_device_from_native(hetcomm_context_t* context, const char* kind, void* native,
                           int32_t* out_device) HETCOMM_NOEXCEPT;

struct hetcomm_device;

/* Adds a device that the caller implements. |device| has a table and an instance
 * (hetcomm/device_plugin.h), which the caller fills as a plug-in does. The call gives the number of
 * the device. The device exists until the context is destroyed, which also destroys the instance.
 * If the call fails, the instance still belongs to the caller. The call may be made at any time,
 * also while communicators exist. Only communicators that are created later consider the device
 * when they choose network interfaces.
 *   INVALID_ARGUMENT   The table's kind is one of the library's own.
 *   UNSUPPORTED        The table is of another version, or lacks an entry; the text says which.
 *   OUT_OF_RESOURCES   The context has HETCOMM_MAX_DEVICES devices.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_device_add(hetcomm_context_t* context, const struct hetcomm_device* device,
                   int32_t* out_device) HETCOMM_NOEXCEPT;

/* Gives up device |device|, which hangs: its copies do not end, and neither do operations that need
 * them. A deadline or a cancel does not end these operations either. |reason|, which may be NULL,
 * appears in error texts.
 *
 * All pending operations that name memory of the device, or that wait for a stream of it, end with
 * DEVICE_LOST soon after this call. Calls that wait for its copies end the same way. Other ranks
 * are told of these failures. Later calls that name the device are refused with DEVICE_LOST. Only
 * collective operations and redistributions are accepted, since other ranks count on them, and then
 * end with DEVICE_LOST. Other devices and host memory continue to work. The call cannot be undone.
 *
 * Copies that have begun may continue. This is the only case in which the memory of an operation
 * may still be read or written after the operation has ended:
 *   - Memory of the device that the operation names must not be read, written or given back to the
 *     vendor until the process ends. This also holds for memory of the vendor's other devices to
 *     which this device copies. Call hetcomm_memory_destroy for it all the same, to give the handle
 *     back.
 *   - Host memory of the operation is safe to use, as after every operation. Devices copy from and
 *     to host memory of the library only, which is not reused before the copy has ended.
 * The library keeps everything that a copy uses until the copy ends: its own memory, allocations
 * that hetcomm_memory_destroy has already taken back, vendors' objects, and streams. If the copy
 * has not ended when the context is destroyed, these and the device stay until the process ends.
 *
 * If a function of the vendor does not return, its thread stays blocked: this call cannot end it.
 *   INVALID_ARGUMENT   The CPU may touch the device's memory, as it may touch that of the host.
 *   OUT_OF_RANGE       There is no such device.
 * HETCOMM_DEVICE_TIMEOUT sets the time after which the log reports that a device hangs.
 * HETCOMM_DEVICE_TIMEOUT_ABANDON=on also gives up the device at that time. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_device_abandon(
    hetcomm_context_t* context, int32_t device, const char* reason) HETCOMM_NOEXCEPT;

/* Largest number of devices of a context, the host included. */
#define HETCOMM_MAX_DEVICES 256

/* Allocates |size_bytes| on device |device|. The contents are undefined. Host memory from this
 * call is shared with forked children: parent and child see what the other one writes. With many
 * vendors the call waits for streams that operations hold back (hetcomm/stream.h). OUT_OF_RANGE:
 * there is no such device. INVALID_ARGUMENT: |size_bytes| is 0. OUT_OF_MEMORY: the device has no
 * room. OUT_OF_RESOURCES: host memory from this call is a file to the kernel, and the process may
 * not have files of this size (ulimit -f). hetcomm_memory_wrap can then take memory of the caller's
 * own. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_allocate(hetcomm_context_t* context, int32_t device, uint64_t size_bytes,
                        hetcomm_memory_t** out_memory) HETCOMM_NOEXCEPT;

/* Makes a memory of the |size_bytes| that begin at |address|, which is a host pointer, or an
 * address or handle of the device's vendor. The region still belongs to the caller: it has to exist
 * until hetcomm_memory_destroy, which does not free it. A cl_mem is retained until then.
 *   INVALID_ARGUMENT  |address| is NULL, |size_bytes| is 0, the device does not know the address,
 *                     or |device| is the host and the address is memory of another device. The text
 *                     names the rule that the address breaks.
 *   UNSUPPORTED       The CPU may not read or write this memory, such as a cl_mem with
 *                     CL_MEM_HOST_NO_ACCESS.
 *   OUT_OF_RANGE      There is no such device, or the region ends past its allocation, or past the
 *                     address space.
 *   STALE_HANDLE      The memory was freed. Not every device can tell.
 *   DEVICE_LOST, ...  The device failed.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_wrap(hetcomm_context_t* context, int32_t device, void* address, uint64_t size_bytes,
                    hetcomm_memory_t** out_memory) HETCOMM_NOEXCEPT;

/* Destroys the handle, and frees the region if hetcomm_memory_allocate gave it. With many vendors
 * the call waits for streams that operations hold back. BUSY: a pending operation uses the memory,
 * a prepared request names it, or it is registered; then nothing has changed. NULL is accepted.
 * [exclusive] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_memory_destroy(hetcomm_memory_t* memory)
    HETCOMM_NOEXCEPT;

/* Gives the size of the region. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_size(const hetcomm_memory_t* memory, uint64_t* out_size_bytes) HETCOMM_NOEXCEPT;

/* Gives the vendor's address or handle of the region; for the host it is a plain pointer.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_address(const hetcomm_memory_t* memory, void** out_address) HETCOMM_NOEXCEPT;

/* Copies |size_bytes| from host memory at |source| into |memory| at |offset|, and waits until the
 * copy has ended. With some vendors it also waits for streams that operations hold back. The call
 * does not check whether operations use the range: the caller has to make sure that none does.
 * OUT_OF_RANGE: the range ends past the memory. INVALID_ARGUMENT: |source| is NULL, or is memory of
 * a device that the CPU may not touch. Another status: the device failed, and a part may have been
 * copied. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_write(hetcomm_memory_t* memory, uint64_t offset, const void* source,
                     uint64_t size_bytes) HETCOMM_NOEXCEPT;

/* Copies |size_bytes| of |memory| at |offset| into host memory at |destination|, and waits as
 * hetcomm_memory_write() does. OUT_OF_RANGE: the range ends past the memory. INVALID_ARGUMENT:
 * |destination| is NULL, or is memory of a device that the CPU may not touch. Another status: the
 * device failed, and a part may have been copied. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_read(hetcomm_memory_t* memory, uint64_t offset, void* destination,
                    uint64_t size_bytes) HETCOMM_NOEXCEPT;

/* A part of a memory. A call that takes buffers checks them. It returns OUT_OF_RANGE if a buffer
 * ends past its memory. It returns INVALID_ARGUMENT if |memory| was freed, or if a plain pointer is
 * NULL or leads to memory of a device. A |length| of 0 is allowed, with any pointer. Frozen layout:
 * it has no struct_size and never grows. */
typedef struct hetcomm_buffer {
  /* Memory that contains the buffer. NULL: ordinary host memory. */
  hetcomm_memory_t* memory;
  /* Offset of the buffer in |memory|, in bytes. If |memory| is NULL: the buffer's address. */
  uint64_t offset;
  /* Length in bytes. */
  uint64_t length;
} hetcomm_buffer_t;

/* Makes a buffer of |length| bytes of ordinary host memory from |pointer| on. It costs nothing and
 * registers nothing. [any-thread]
 *
 * GCC passes a structure of this size in 16-byte moves. Such a move cannot read two separate 8-byte
 * stores from the store buffer: it would wait until they, and all earlier stores, have reached the
 * cache. So GCC is made to write the first 16 bytes with one store. */
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

/* Makes a buffer of |length| bytes from |pointer| on, and finds out to which memory |pointer|
 * leads. It may lead into any allocation of one of the context's devices, even if the library did
 * not make it. A pointer that belongs to no device is taken for host memory without a further
 * check. The library queries each kind of device once, however many devices it has. In a context
 * whose only device is the host the call costs nothing.
 *
 * The buffer is valid until the allocation is freed, and needs no release. Its data goes through
 * the host: use hetcomm_memory_wrap for memory that network interfaces may reach directly. A handle
 * such as a cl_mem counts as the pointer to its first byte while a memory names it. The call
 * refuses other handles, and any other object of OpenCL.
 *   INVALID_ARGUMENT  |pointer| is NULL and |length| is not 0, or it is a vendor's handle that no
 *                     memory names.
 *   OUT_OF_RANGE      The range ends past its allocation, or past the address space.
 *   STALE_HANDLE      The memory was freed. Not every device can tell.
 *   DEVICE_LOST, ...  A device cannot tell whether the pointer is its own; the text names the
 *                     device and the reason.
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
