/* Declares devices, memories and buffers.
 *
 * A device is one memory space with its copy engines. A memory is a region of one device. A buffer
 * is part of a memory and is passed by value; all data calls take buffers.
 *
 * The library assumes that a plain pointer, in a buffer or in any other argument, points to host
 * memory. The CPU cannot access the memory of most devices (host_accessible). A call that would
 * access such memory through a plain pointer returns INVALID_ARGUMENT. Make buffers of such memory
 * with hetcomm_buffer_memory, or let hetcomm_buffer_pointer determine the memory that a pointer
 * belongs to. The library detects pointers into memories that were allocated or wrapped through the
 * context, until these are freed. It does not detect other device memory, so wrap such memory
 * before you pass its pointer to a data call. In a context without device memory the check costs
 * one comparison. */
#ifndef HETCOMM_MEMORY_H_
#define HETCOMM_MEMORY_H_

#include <hetcomm/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hetcomm_memory hetcomm_memory_t;

/* The device number of the host, which is always device 0. Other devices are numbered from 1 in the
 * order of HETCOMM_DEVICES, and then in the order in which hetcomm_device_from_native and
 * hetcomm_device_add added them. */
#define HETCOMM_DEVICE_HOST 0

typedef struct hetcomm_device_info_t {
  /* The caller sets it to sizeof(hetcomm_device_info_t). */
  size_t struct_size;
  /* Number of the device within the context. */
  int32_t index;
  /* 1 if the CPU can load from and store to the device's memory, otherwise 0. */
  int32_t host_accessible;
  /* Kind of device: "host", "opencl", "sim-handle", "sim-address" or a plug-in's kind.
   * NUL-terminated. */
  char kind[16];
  /* Human-readable name, truncated to fit, NUL-terminated. */
  char name[64];
  /* PCI address, such as "0000:3b:00.0", NUL-terminated. Empty: the device has none or does not
   * report it. */
  char pci_address[16];
  /* The host NUMA node nearest to the device, as the kernel numbers it. -1: the device does not
   * report one. */
  int32_t numa_node;
  int32_t reserved; /* 0 */
} hetcomm_device_info_t;

/* Gets the number of devices of the context, including the host, so it is at least 1.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_device_count(hetcomm_context_t* context, int32_t* out_count) HETCOMM_NOEXCEPT;

/* Describes device |index|. OUT_OF_RANGE: there is no such device. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_device_info(
    hetcomm_context_t* context, int32_t index, hetcomm_device_info_t* out_info) HETCOMM_NOEXCEPT;

/* Adds a device for an object that a framework already uses, so that memory of the device can be
 * wrapped. |native| is that object. For the kind "opencl" it is a cl_context: the device is the
 * first one of the cl_context, and the buffers of the cl_context are the device's memory. For a
 * plug-in's kind the plug-in defines the meaning of |native|. |*out_device| is the number of the
 * device, which exists until the hetcomm context is destroyed. Another call with the same |native|
 * returns the same number. The function can be called at any time, even while communicators exist.
 * The library creates its own objects and changes none of the caller's. It retains a cl_context.
 * The caller must keep any other |native| until the hetcomm context is destroyed.
 *
 * Such a device works like those in HETCOMM_DEVICES, with one difference. A communicator selects
 * network interfaces according to the devices that exist when it is created, so create the
 * communicator after the device.
 *   INVALID_ARGUMENT   |native| is NULL or is not an object of this kind. Some OpenCL
 *                      implementations cannot distinguish a cl_context from their other objects,
 *                      and may crash if they are given one of these.
 *   NOT_FOUND          |kind| is unknown, or its run-time library cannot be loaded.
 *   UNSUPPORTED        Devices of this kind can only be created by HETCOMM_DEVICES.
 *   OUT_OF_RESOURCES   The context has HETCOMM_MAX_DEVICES devices.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_device_from_native(hetcomm_context_t* context, const char* kind, void* native,
                           int32_t* out_device) HETCOMM_NOEXCEPT;

struct hetcomm_device;

/* Adds a device that the caller implements. |device| has a table and an instance
 * (hetcomm/device_plugin.h), which the caller fills in as a plug-in does. |*out_device| is the
 * number of the device. The device exists until the context is destroyed, which also destroys the
 * instance. If the call fails, the instance still belongs to the caller. The function can be called
 * at any time, even while communicators exist. Only communicators that are created later consider
 * the device when they select network interfaces.
 *   INVALID_ARGUMENT   The table's kind has the name of one of the library's own kinds.
 *   UNSUPPORTED        The table has a different version, or lacks a required entry; the text says
 *                      which.
 *   OUT_OF_RESOURCES   The context has HETCOMM_MAX_DEVICES devices.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_device_add(hetcomm_context_t* context, const struct hetcomm_device* device,
                   int32_t* out_device) HETCOMM_NOEXCEPT;

/* Abandons device |device| because it has hung. The copies of a hung device never complete.
 * Operations that wait for such copies do not end either, even after their deadline or a cancel.
 * |reason|, which may be NULL, appears in error texts.
 *
 * All pending operations that use memory of the device, or that wait for one of its streams, end
 * with DEVICE_LOST soon after this call. Calls that wait for copies of the device return
 * DEVICE_LOST too.
 * Other ranks are notified of these failures. Later calls that use the device return DEVICE_LOST.
 * Collective operations and reshard executions are an exception: because other ranks depend on
 * them, they are accepted, and then end with DEVICE_LOST. Other devices and host memory continue to
 * work. The call cannot be undone.
 *
 * Copies that have started may still be running. This is the only case in which the memory of an
 * operation can be read or written after the operation has ended:
 *   - Memory of the device that the operation uses must not be read, written or returned to the
 *     vendor until the process exits. The same applies to memory of the vendor's other devices to
 *     which this device copies. Still call hetcomm_memory_destroy for such memory, to free the
 *     handle.
 *   - Host memory of the operation can be used, as after every operation. Devices copy only from
 *     and to the library's own host memory, which is not reused until the copy has ended.
 * The library keeps everything that a copy uses until the copy ends: its own memory, allocations
 * that were passed to hetcomm_memory_destroy, vendors' objects, and streams. If the copy has not
 * ended when the context is destroyed, these objects and the device are kept until the process
 * exits.
 *
 * If a vendor's function does not return, the thread that has called it stays blocked, and this
 * call cannot unblock that thread.
 *   INVALID_ARGUMENT   The CPU can access the device's memory. This includes the host.
 *   OUT_OF_RANGE       There is no such device.
 * HETCOMM_DEVICE_TIMEOUT sets the time after which the log reports that a device has hung.
 * HETCOMM_DEVICE_TIMEOUT_ABANDON=on also abandons the device at that time. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_device_abandon(
    hetcomm_context_t* context, int32_t device, const char* reason) HETCOMM_NOEXCEPT;

/* Maximum number of devices of a context, including the host. */
#define HETCOMM_MAX_DEVICES 256

/* Allocates |size_bytes| on device |device|. The contents are undefined. Host memory from this call
 * is shared with forked children: parent and child see each other's writes. With many vendors the
 * call waits for streams that operations hold (hetcomm/stream.h). OUT_OF_RANGE: there is no such
 * device. INVALID_ARGUMENT: |size_bytes| is 0. OUT_OF_MEMORY: the device does not have enough free
 * memory. OUT_OF_RESOURCES: the library allocates host memory as an in-memory file, and the
 * process's file size limit is too low (ulimit -f). In this case the caller can wrap memory of its
 * own with hetcomm_memory_wrap. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_allocate(hetcomm_context_t* context, int32_t device, uint64_t size_bytes,
                        hetcomm_memory_t** out_memory) HETCOMM_NOEXCEPT;

/* Creates a memory for the |size_bytes| that start at |address|, which is a host pointer, or a
 * vendor's address or handle. The region still belongs to the caller: it must exist until
 * hetcomm_memory_destroy, which does not free it. A cl_mem is retained until then.
 *   INVALID_ARGUMENT  |address| is NULL, |size_bytes| is 0, the address does not belong to the
 *                     device, or |device| is the host and the address belongs to another device.
 *                     The text states the rule that the address violates.
 *   UNSUPPORTED       The host is not allowed to read or write this memory, such as a cl_mem with
 *                     CL_MEM_HOST_NO_ACCESS.
 *   OUT_OF_RANGE      There is no such device, or the region extends past its allocation or past
 *                     the address space.
 *   STALE_HANDLE      The memory was freed. Not every device can detect this.
 *   DEVICE_LOST, ...  The device failed.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_wrap(hetcomm_context_t* context, int32_t device, void* address, uint64_t size_bytes,
                    hetcomm_memory_t** out_memory) HETCOMM_NOEXCEPT;

/* Destroys the handle, and frees the region if it is from hetcomm_memory_allocate. With many
 * vendors the call waits for streams that operations hold. BUSY: a pending operation uses the
 * memory, a prepared request names it, or it is registered; the call has changed nothing. NULL is
 * accepted. [exclusive] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_memory_destroy(hetcomm_memory_t* memory)
    HETCOMM_NOEXCEPT;

/* Gets the size of the region. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_size(const hetcomm_memory_t* memory, uint64_t* out_size_bytes) HETCOMM_NOEXCEPT;

/* Gets the vendor's address or handle of the region; for the host it is a plain pointer.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_address(const hetcomm_memory_t* memory, void** out_address) HETCOMM_NOEXCEPT;

/* Copies |size_bytes| from host memory at |source| into |memory| at |offset|, and waits until the
 * copy has ended. With some vendors it also waits for streams that operations hold. The caller must
 * make sure that no operation uses the range, because the call does not check this. OUT_OF_RANGE:
 * the range extends past the memory. INVALID_ARGUMENT: |source| is NULL, or points to device memory
 * that the CPU cannot access. Another status: the device failed, and part of the data may have been
 * copied. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_write(hetcomm_memory_t* memory, uint64_t offset, const void* source,
                     uint64_t size_bytes) HETCOMM_NOEXCEPT;

/* Copies |size_bytes| of |memory| at |offset| into host memory at |destination|, and waits as
 * hetcomm_memory_write() does. OUT_OF_RANGE: the range extends past the memory. INVALID_ARGUMENT:
 * |destination| is NULL, or points to device memory that the CPU cannot access. Another status: the
 * device failed, and part of the data may have been copied. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_read(hetcomm_memory_t* memory, uint64_t offset, void* destination,
                    uint64_t size_bytes) HETCOMM_NOEXCEPT;

/* Part of a memory. A call that takes buffers checks them. It returns OUT_OF_RANGE if a buffer
 * extends past its memory. It returns INVALID_ARGUMENT if |memory| was freed, or if a plain pointer
 * is NULL or points to device memory. A |length| of 0 is allowed, with any pointer. The structure's
 * layout is frozen: it has no struct_size and never grows. */
typedef struct hetcomm_buffer {
  /* Memory that contains the buffer. NULL: ordinary host memory. */
  hetcomm_memory_t* memory;
  /* Offset of the buffer in |memory|, in bytes. If |memory| is NULL: the buffer's address. */
  uint64_t offset;
  /* Length in bytes. */
  uint64_t length;
} hetcomm_buffer_t;

/* Returns a buffer of |length| bytes of ordinary host memory that starts at |pointer|. The call has
 * no side effects and registers nothing. [any-thread]
 *
 * GCC copies an argument of this size with 16-byte loads. The CPU cannot forward two separate
 * 8-byte stores from the store buffer to such a load: the load would stall until these and all
 * earlier stores have reached the cache. So the code makes GCC write the first 16 bytes with one
 * store. */
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

/* Makes a buffer of |length| bytes that starts at |pointer|, and determines the memory that
 * |pointer| belongs to. This can be any allocation of one of the context's devices, even if the
 * library did not allocate it. A pointer that belongs to no device is assumed to point to host
 * memory, without further checks. The library makes one query for each kind of device, not for each
 * device. In a context whose only device is the host it makes no query.
 *
 * The buffer is valid until the allocation is freed, and does not have to be released. Its data is
 * copied through the host: use hetcomm_memory_wrap for memory that network interfaces should access
 * directly. A handle such as a cl_mem is accepted only while a hetcomm_memory_t exists for it, and
 * stands for its first byte. The call refuses all other handles and other OpenCL objects.
 *   INVALID_ARGUMENT  |pointer| is NULL and |length| is not 0, or |pointer| is a vendor's handle
 *                     for which no hetcomm_memory_t exists.
 *   OUT_OF_RANGE      The range extends past its allocation or past the address space.
 *   STALE_HANDLE      The memory was freed. Not every device can detect this.
 *   DEVICE_LOST, ...  A device failed to determine whether the pointer is its own; the text names
 *                     the device and the reason.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_buffer_pointer(hetcomm_context_t* context, const void* pointer, uint64_t length,
                       hetcomm_buffer_t* out_buffer) HETCOMM_NOEXCEPT;

/* Returns a buffer of |length| bytes of |memory| that starts at |offset|. The range is checked by
 * the call that takes the buffer. [any-thread] */
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
