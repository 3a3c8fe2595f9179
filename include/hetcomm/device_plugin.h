/* Declares the table of functions that each kind of device fills, so that devices of other vendors
 * can be added to hetcomm.
 *
 * A plug-in is a shared library that exports hetcomm_device_plugin(). HETCOMM_DEVICE_PLUGINS names
 * the plug-in, and HETCOMM_DEVICES names devices of its kinds:
 *
 *     HETCOMM_DEVICE_PLUGINS=/opt/acme/libacme_hetcomm.so HETCOMM_DEVICES=acme:0,acme:1
 *
 * A plug-in needs this header, and for reduce() the numbers in hetcomm/datatype.h, but no symbol of
 * libhetcomm. docs/devices.md shows how to make one.
 *
 * Any thread may call any function, on different objects at the same time. No function blocks
 * unless its comment says so. No function throws a C++ exception. A function that fails has left
 * its outputs alone and has done nothing, with one exception: a failed copy of rows may have
 * started to copy some of them.
 *
 * Any function may fail with OUT_OF_MEMORY, OUT_OF_RESOURCES, DEVICE_LOST or INTERNAL. A function
 * that takes a range fails with OUT_OF_RANGE if the range leaves its allocation, and with
 * INVALID_ARGUMENT if the address is not this device's. It fails with STALE_HANDLE if the memory
 * was freed and the device can tell, and so does find(). A function that makes an object fails with
 * INVALID_ARGUMENT if an argument is NULL or is not an object of this device. A status that neither
 * this comment nor the function's own names counts as DEVICE_LOST, and the text says which it was.
 *
 * An address is the vendor's name for memory: a pointer that the CPU may touch, one that it may
 * not, or a handle. The library does not add an offset to it, but passes address and offset. */
#ifndef HETCOMM_DEVICE_PLUGIN_H_
#define HETCOMM_DEVICE_PLUGIN_H_

#include <hetcomm/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of bytes at regular distances in an allocation: row (i, j) begins at
 * offset + i * strides[0] + j * strides[1], for i < extents[0] and j < extents[1]. Their order is
 * (0, 0), (0, 1), ..., (1, 0), (1, 1), ... Frozen layout. */
typedef struct hetcomm_device_rows {
  uint64_t offset;
  uint64_t row_bytes;
  uint64_t extents[2];
  uint64_t strides[2];
} hetcomm_device_rows_t;

/* A reduction on a device: out[i] = first[i] op second[i], divided by |divisor|, for each i.
 * |first|, |second| or both may be the elements of |out| themselves, at the same place and of the
 * same type. Otherwise they have no byte in common with |out|. Frozen layout. */
typedef struct hetcomm_device_reduction {
  const void* first; /* allocation of the operand on the left */
  uint64_t first_offset;
  const void* second;
  uint64_t second_offset;
  void* out;
  uint64_t out_offset;
  uint64_t elements;
  int32_t reduction; /* HETCOMM_REDUCE_SUM to HETCOMM_REDUCE_XOR (hetcomm_reduction_t) */
  int32_t datatype;  /* type of |second|'s elements (hetcomm_datatype_t) */
  /* Types of |first|'s elements and of |out|'s. Each is |datatype|, or may be HETCOMM_FLOAT32 if
   * |datatype| is FLOAT16, BFLOAT16 or a FLOAT8 and the operator is SUM or PRODUCT. */
  int32_t first_datatype;
  int32_t out_datatype;
  /* 1, or more if the operator is SUM and the type of |out| is FLOAT16, BFLOAT16 or a FLOAT8. */
  uint32_t divisor;
  int32_t reserved; /* 0 */
} hetcomm_device_reduction_t;

/* The allocation in which locate() has found an address. Frozen layout. */
typedef struct hetcomm_device_place {
  uint64_t device; /* index in the array of devices that locate() was given */
  void* base;      /* beginning of the allocation, as find() gives it */
  uint64_t size;
  /* A number that no other allocation of this kind of device has in the life of the process. 0: the
   * vendor has no such number. */
  uint64_t allocation_id;
} hetcomm_device_place_t;

/* A bit of hetcomm_device_table_t.flags. If it is set, NULL is the handle of a stream, such as
 * CUDA's default stream, and user_stream_open() takes it. */
#define HETCOMM_DEVICE_NULL_STREAM UINT64_C(1)

/* The functions of one kind of device. New versions of this header add entries only at the end. An
 * entry that a plug-in of an older header lacks counts as null. An entry that is marked optional
 * may be null: the library works without it. The table, and the texts that it gives, live as long
 * as the process. */
typedef struct hetcomm_device_table {
  /* sizeof(hetcomm_device_table_t) as the plug-in was built with it. An entry that is only partly
   * inside this size counts as null. */
  uint64_t struct_size;
  /* Kind of device: "host", "sim-handle", ... At most 15 letters, digits, '-' and '_'. */
  const char* kind;
  /* 1: an address is a pointer, and the CPU may load and store through it. 0: it may not. */
  int32_t host_accessible;
  int32_t reserved; /* 0 */

  /* Destroys the device. Its memory, streams and events have been freed before. May block. */
  void (*destroy)(void* device);
  /* Returns a name for people, which lives as long as the device. If the entry is null, the name of
   * the kind is used. */
  const char* (*name)(void* device);

  /* Allocates device memory. Its contents are undefined. No work in any stream still uses it.
   * OUT_OF_MEMORY: there is no room. May block. */
  hetcomm_status_t (*allocate)(void* device, uint64_t size_bytes, void** out_address);
  /* Frees an allocation that nothing uses any more. Never fails. May block. */
  void (*free)(void* device, void* address);
  /* Gives base and size of the allocation that contains |address|, which may be any number.
   * NOT_FOUND: the address is not this device's. Optional if |host_accessible| is 1. */
  hetcomm_status_t (*find)(void* device, const void* address, void** out_base, uint64_t* out_size);
  /* Optional: gives the file of which the allocation |address| is a mapping, and the offset in the
   * file at which the allocation begins, so that other processes can map it too. The device keeps
   * the file open until the allocation is freed. NOT_FOUND: the allocation is not a mapping of a
   * file. */
  hetcomm_status_t (*shared_file)(void* device, const void* address, int* out_file,
                                  uint64_t* out_offset);

  /* Either all or none of the entries of streams and events are set: stream_create, stream_destroy,
   * event_record, event_query, event_wait, event_release. These entries may be null if each copy
   * has ended when its call returns. In that case event_notify and the entries of users' streams
   * are null, too, and the streams that the library passes have no meaning.
   *
   * Creates a stream, which runs its copies and reductions in order. Work in different streams may
   * overlap. */
  hetcomm_status_t (*stream_create)(void* device, void** out_stream);
  /* Waits until all copies and reductions of the stream have ended, and destroys it. Its events
   * stay until they are released. */
  void (*stream_destroy)(void* device, void* stream);

  /* Starts to copy |size_bytes| at |address| + |offset| into host memory. Both stay valid until an
   * event that was recorded after the copy has completed. A call that copies may take as long as
   * the copy; until it returns, the library moves no other data of the process. */
  hetcomm_status_t (*copy_to_host)(void* device, void* stream, void* host, const void* address,
                                   uint64_t offset, uint64_t size_bytes);
  /* Starts to copy |size_bytes| of host memory to |address| + |offset|. Both stay valid until an
   * event that was recorded after the copy has completed. The device may read the host memory from
   * the call on. The library has waited for every earlier copy that writes it. */
  hetcomm_status_t (*copy_from_host)(void* device, void* stream, void* address, uint64_t offset,
                                     const void* host, uint64_t size_bytes);
  /* Optional, either both or none: starts to copy |rows| of the allocation |address| into host
   * memory, or back. In host memory the rows lie one behind the other, in their order. The rules of
   * copy_to_host and copy_from_host hold. */
  hetcomm_status_t (*copy_rows_to_host)(void* device, void* stream, void* host, const void* address,
                                        const hetcomm_device_rows_t* rows);
  hetcomm_status_t (*copy_rows_from_host)(void* device, void* stream, void* address,
                                          const hetcomm_device_rows_t* rows, const void* host);

  /* Creates an event, which completes when all earlier copies and reductions in the stream have
   * completed. */
  hetcomm_status_t (*event_record)(void* device, void* stream, void** out_event);
  /* Returns OK if the event has completed, PENDING if it has not, or the error of a copy or
   * reduction that failed. */
  hetcomm_status_t (*event_query)(void* device, void* event);
  /* Blocks until the event has completed. Returns OK, or the error of a copy that failed. */
  hetcomm_status_t (*event_wait)(void* device, void* event);
  /* Frees the event. */
  void (*event_release)(void* device, void* event);

  /* Optional: makes host memory reachable by the device's copy engines at full speed. UNSUPPORTED:
   * the vendor cannot do that with this memory. After any failure the library still copies from and
   * to the memory. May block: with many vendors it waits until the device has finished the work in
   * its streams. While the library holds back a user's stream, its own threads therefore call none
   * of these: allocate(), free(), stream_destroy(), event_release(), pin_host(), unpin_host(),
   * allocate_host(), free_host(). A user's thread may call them. */
  hetcomm_status_t (*pin_host)(void* device, void* host, uint64_t size_bytes);
  /* Undoes pin_host() for the memory that begins at |host|. Set if and only if pin_host() is. May
   * block. */
  void (*unpin_host)(void* device, void* host);

  /* The two entries below let network interfaces access [address + offset, + size_bytes) directly.
   * A transport tries them in this order. They return UNSUPPORTED if this memory does not allow it.
   *
   * Optional: gives a dma-buf that contains the range. The range begins at offset |*out_offset| of
   * the dma-buf. The caller closes |*out_file|. */
  hetcomm_status_t (*export_dmabuf)(void* device, const void* address, uint64_t offset,
                                    uint64_t size_bytes, int* out_file, uint64_t* out_offset);
  /* Optional: gives the address by which the kernel, or a vendor's peer memory module, may find the
   * range, so that the transport can try plain registration. The CPU need not be able to touch
   * it. */
  hetcomm_status_t (*registrable_address)(void* device, const void* address, uint64_t offset,
                                          uint64_t size_bytes, void** out_address);
  /* Optional: makes everything that network interfaces have written into the device's memory
   * visible to work that starts after this call. Null if no such call is needed. */
  hetcomm_status_t (*flush_remote_writes)(void* device);
  /* Optional: returns the PCI address of the device, such as "0000:3b:00.0", or null if the device
   * has none. The library uses the address to find the NICs near the device. The text lives as long
   * as the device. */
  const char* (*pci_address)(void* device);
  /* Optional, either both or none: begins to use the |size_bytes| from |address| on, which
   * allocate() has not given (hetcomm_memory_wrap). find() then knows them. If the vendor counts
   * references to its object, the device holds one until release(). Otherwise the owner keeps the
   * memory until then. Each call is ended by one call of release() with the same address.
   * UNSUPPORTED: the device cannot use memory of this kind. If both entries are null, find() knows
   * all memory of the device. */
  hetcomm_status_t (*retain)(void* device, void* address, uint64_t size_bytes);
  void (*release)(void* device, void* address);
  /* Optional, either both or none: allocates host memory that the device's copy engines reach at
   * full speed, for vendors that cannot pin memory that others have allocated. The CPU, other
   * devices and network interfaces use it, too. The library frees it before it destroys the device.
   * Both may block. */
  hetcomm_status_t (*allocate_host)(void* device, uint64_t size_bytes, void** out_host);
  void (*free_host)(void* device, void* host);
  /* Optional: adds 1 to the eventfd |file| once |event| has completed, with or without an error; at
   * once if it has completed already. event_query() must report the completion before |file| is
   * written: the library queries once after that, and may sleep for long if the result is PENDING.
   * The event may be released before it has completed. The caller keeps |file| open until the
   * device was destroyed. UNSUPPORTED: this event cannot be notified, and the library polls. It
   * also polls while copies run if this entry is null. */
  hetcomm_status_t (*event_notify)(void* device, void* event, int file);

  /* The six entries below put operations into the order of a stream that the user has made
   * (hetcomm_stream_wrap). Either all or none are set, with one exception. If the vendor cannot
   * hold a stream back, user_stream_hold() and hold_end() are null, and the device has only streams
   * with HETCOMM_STREAM_NOT_HELD. The library copies nothing in these streams.
   *
   * Optional: begins to use the user's stream |native|, a handle of the vendor's own type, such as
   * a cl_command_queue or a cudaStream_t. INVALID_ARGUMENT: |native| is no stream of this device.
   * |native| is NULL only if |flags| has HETCOMM_DEVICE_NULL_STREAM. The stream still belongs to
   * the user. It has to exist until user_stream_close(): the user keeps it, or the device retains
   * it. */
  hetcomm_status_t (*user_stream_open)(void* device, void* native, void** out_user_stream);
  /* Ends the use that user_stream_open() began. The library has released the stream's events and
   * ended its holds. */
  void (*user_stream_close)(void* device, void* user_stream);
  /* Creates an event, which completes when all work that was put into the user's stream before this
   * call has ended. event_query() and the other entries of events take it. UNSUPPORTED: the stream
   * is being captured. */
  hetcomm_status_t (*user_stream_record)(void* device, void* user_stream, void** out_event);
  /* Makes all work that is put into the user's stream after this call wait until hold_end(). The
   * device uses the first of these means that the vendor offers: a wait for a value that the CPU
   * writes, an event that the CPU sets, or a function that the vendor calls in the stream and that
   * blocks. Other streams go on. UNSUPPORTED: the stream is being captured, or the vendor offers
   * none of these means. */
  hetcomm_status_t (*user_stream_hold)(void* device, void* user_stream, void** out_hold);
  /* Ends a hold, and frees it, also after the device has failed. Does not wait for work in the
   * stream. */
  void (*hold_end)(void* device, void* hold);
  /* Gives the handle that user_stream_open() takes for a stream of stream_create()
   * (hetcomm_stream_create). The stream still belongs to the device. */
  hetcomm_status_t (*stream_native)(void* device, void* stream, void** out_native);
  /* Optional: writes the vendor's message about the device's last failure, whichever thread it was
   * on, in at most |size| bytes with the NUL. Writes an empty text if there is none. The message is
   * shown to people after the status. */
  void (*error_text)(void* device, char* text, uint64_t size);
  /* Optional: starts to copy, row to row, |from_rows| of the allocation |from| to |to_rows| of the
   * allocation |to| of |to_device|, which is |device| or another one with this function. The stream
   * is |device|'s. Both allocations stay valid until an event that was recorded after the copy has
   * completed. Both sides have the same row_bytes and extents (otherwise INVALID_ARGUMENT), and no
   * byte in common.
   *
   * For each operation the library first makes a trial call with rows of no bytes, perhaps with a
   * null stream, from any thread. OK says that all rows can be copied between these allocations.
   * UNSUPPORTED says that none can, and the library copies through the host. */
  hetcomm_status_t (*copy_rows_between)(void* device, void* stream, const void* from,
                                        const hetcomm_device_rows_t* from_rows, void* to_device,
                                        void* to, const hetcomm_device_rows_t* to_rows);
  /* Optional: starts to reduce memory of the device, after all earlier work in the stream. Later
   * copies in the stream see the result. Allocations stay valid until an event that was recorded
   * after this call has completed.
   *
   * Operators are those of hetcomm/datatype.h. Bits are those of IEEE 754, with subnormal numbers.
   * Each operation is rounded to the nearest, and none is fused with another. FLOAT16, BFLOAT16 and
   * the FLOAT8 types are calculated in float32: the sum is rounded to float32, divided, rounded to
   * float32 again, and then rounded to the type of |out|. The device may choose which NaN a result
   * is, and which of two zeros MIN and MAX take.
   *
   * For each operation the library first makes a trial call with no elements, perhaps with a null
   * stream, from any thread. OK says that any number of elements can be reduced, at these places
   * and at others with the same alignment. UNSUPPORTED says that they cannot, for instance because
   * a place is not aligned for its elements, or because kernels are still being compiled. The
   * library then calculates on the host. */
  hetcomm_status_t (*reduce)(void* device, void* stream,
                             const hetcomm_device_reduction_t* reduction);
  /* Optional: returns the host NUMA node near the device, by the kernel's number; -1 if it is near
   * none. The library uses it if there is no PCI address. */
  int32_t (*numa_node)(void* device);
  /* Optional: returns 1 if copies are as fast with any host memory as with that of allocate_host()
   * or pin_host(), because the device's memory is in the host's own; otherwise 0. If it is 1, the
   * library copies through host memory that other processes of the host can map. May be called at
   * any time, and does not block. */
  int32_t (*host_memory_suffices)(void* device);
  /* Optional: finds out by one query which of |count| devices has the allocation that contains
   * |address|, which may be any number. |devices| are all devices of a context whose tables have
   * this function and this kind. If the entry is null, the library calls find() of each device.
   * NOT_FOUND: the address belongs to none of them. STALE_HANDLE: it belonged to one, and was
   * freed. */
  hetcomm_status_t (*locate)(void* const* devices, uint64_t count, const void* address,
                             hetcomm_device_place_t* out_place);
  /* Optional: writes the rule by which retain() refuses |size_bytes| from |address| on, in at most
   * |size| bytes with the NUL. Writes an empty text if retain() does not refuse. */
  void (*retain_rule)(void* device, void* address, uint64_t size_bytes, char* text, uint64_t size);
  /* Optional: returns 1 if |address|, which may be any number, names an object of the vendor and is
   * not a pointer to host memory. A handle that retain() has not taken is such an object. Otherwise
   * returns 0. The library asks one device of a kind, and only if no device has the address in its
   * memory. */
  int32_t (*names_object)(void* device, const void* address);
  /* Any of HETCOMM_DEVICE_*, combined by or. */
  uint64_t flags;
} hetcomm_device_table_t;

/* A device. The functions of |table| take |instance| as their first argument. */
typedef struct hetcomm_device {
  const hetcomm_device_table_t* table;
  void* instance;
} hetcomm_device_t;

/* Version of this header. It changes when an existing entry gets another meaning, not when entries
 * are added. The library refuses a plug-in of another version. */
#define HETCOMM_DEVICE_PLUGIN_VERSION 1

/* Description of a plug-in. It lives as long as the process. */
typedef struct hetcomm_device_plugin {
  /* sizeof(hetcomm_device_plugin_t) as the plug-in was built with it. */
  uint64_t struct_size;
  /* HETCOMM_DEVICE_PLUGIN_VERSION as the plug-in was built with it. */
  int32_t version;
  /* Number of |kinds|, at least 1. */
  int32_t kind_count;
  /* Names of the kinds of devices that create() makes. They differ from those of the library and of
   * other plug-ins. */
  const char* const* kinds;
  /* Makes a device of |kind|. The device's destroy() frees it. |options| is the text after the
   * kind's name and a colon in HETCOMM_DEVICES, or "". On failure |text| gets the reason, in at
   * most |text_size| bytes with the NUL. May block. */
  hetcomm_status_t (*create)(const char* kind, const char* options, hetcomm_device_t* out_device,
                             char* text, uint64_t text_size);
  /* Optional: makes a device of |kind| for an object that a framework already uses, such as its
   * context or queue (hetcomm_device_from_native). The object still belongs to the framework. It
   * has to exist until the device is destroyed: the framework keeps it, or the plug-in retains it.
   * |out_device|, |text| and |text_size| are as for create(). May block. */
  hetcomm_status_t (*create_from_native)(const char* kind, void* native,
                                         hetcomm_device_t* out_device, char* text,
                                         uint64_t text_size);
} hetcomm_device_plugin_t;

/* The type of the function hetcomm_device_plugin(), which a plug-in exports with HETCOMM_API, and
 * in C++ as extern "C". The library calls it for each context, from any thread. The function loads
 * nothing of the vendor: only create() does that. It returns NULL if the plug-in cannot be used
 * here. */
typedef const hetcomm_device_plugin_t* (*hetcomm_device_plugin_function_t)(void);
#define HETCOMM_DEVICE_PLUGIN_FUNCTION "hetcomm_device_plugin"

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_DEVICE_PLUGIN_H_ */
