/* Declares the function table of a kind of device. A plug-in fills in such a table to add devices
 * of another vendor to hetcomm.
 *
 * A plug-in is a shared library that exports hetcomm_device_plugin(). HETCOMM_DEVICE_PLUGINS names
 * the plug-in, and HETCOMM_DEVICES names devices of its kinds:
 *
 *     HETCOMM_DEVICE_PLUGINS=/opt/acme/libacme_hetcomm.so HETCOMM_DEVICES=acme:0,acme:1
 *
 * A plug-in needs this header, and for reduce() the constants in hetcomm/datatype.h, but no symbols
 * of libhetcomm. docs/devices.md shows how to write one.
 *
 * The library may call any function from any thread, and may call functions concurrently for
 * different objects. A function must not block unless its comment allows it, and must not throw C++
 * exceptions. A function that fails must have no effect and leave its outputs unchanged, with one
 * exception: a failed copy of rows may have started to copy some of them.
 *
 * Any function may fail with OUT_OF_MEMORY, OUT_OF_RESOURCES, DEVICE_LOST or INTERNAL. A function
 * that takes a range fails with OUT_OF_RANGE if the range extends past its allocation, and with
 * INVALID_ARGUMENT if the address does not belong to this device. It fails with STALE_HANDLE if the
 * memory was freed and the device can detect this; the same applies to find(). A function that
 * creates an object fails with INVALID_ARGUMENT if an argument is NULL or is not an object of this
 * device. The library treats a status that is neither in this comment nor in the function's own as
 * DEVICE_LOST, and reports the original status in the error text.
 *
 * An address is the vendor's reference to memory: a pointer that the CPU can access, a pointer that
 * it cannot access, or a handle. The library never adds an offset to an address, but passes the two
 * separately. */
#ifndef HETCOMM_DEVICE_PLUGIN_H_
#define HETCOMM_DEVICE_PLUGIN_H_

#include <hetcomm/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of bytes at regular distances in an allocation: row (i, j) starts at offset + i * strides[0]
 * + j * strides[1], for i < extents[0] and j < extents[1]. Their order is (0, 0), (0, 1), ..., (1,
 * 0), (1, 1), ... The structure's layout is frozen. */
typedef struct hetcomm_device_rows {
  uint64_t offset;
  uint64_t row_bytes;
  uint64_t extents[2];
  uint64_t strides[2];
} hetcomm_device_rows_t;

/* A reduction on a device: out[i] = (first[i] op second[i]) / divisor, for each i. |first|,
 * |second| or both may be identical to |out|, with the same location and type. Otherwise they do
 * not overlap |out|. The structure's layout is frozen. */
typedef struct hetcomm_device_reduction {
  const void* first; /* allocation of the left operand */
  uint64_t first_offset;
  const void* second;
  uint64_t second_offset;
  void* out;
  uint64_t out_offset;
  uint64_t elements;
  int32_t reduction; /* HETCOMM_REDUCE_SUM to HETCOMM_REDUCE_XOR (hetcomm_reduction_t) */
  int32_t datatype;  /* type of |second|'s elements (hetcomm_datatype_t) */
  /* Types of the elements of |first| and |out|. Each is |datatype|, or can be HETCOMM_FLOAT32 if
   * |datatype| is FLOAT16, BFLOAT16 or a FLOAT8 type and the operator is SUM or PRODUCT. */
  int32_t first_datatype;
  int32_t out_datatype;
  /* Divisor of the result. It can be above 1 only if the operator is SUM and the type of |out| is
   * FLOAT16, BFLOAT16 or a FLOAT8 type. */
  uint32_t divisor;
  int32_t reserved; /* 0 */
} hetcomm_device_reduction_t;

/* The allocation in which locate() has found an address. The structure's layout is frozen. */
typedef struct hetcomm_device_place {
  uint64_t device; /* index in the array of devices that locate() was given */
  void* base;      /* beginning of the allocation, as find() returns it */
  uint64_t size;
  /* A number that is unique among all allocations of this kind of device during the lifetime of the
   * process. 0: the vendor provides no such number. */
  uint64_t allocation_id;
} hetcomm_device_place_t;

/* A bit of hetcomm_device_table_t.flags. If it is set, NULL is a valid stream handle, as for CUDA's
 * default stream, and user_stream_open() accepts it. */
#define HETCOMM_DEVICE_NULL_STREAM UINT64_C(1)

/* The functions of one kind of device. New versions of this header add entries only at the end.
 * Entries that are missing because a plug-in was built with an older header count as null. Entries
 * marked optional may be null. The table and its strings must stay valid until the process
 * exits. */
typedef struct hetcomm_device_table {
  /* sizeof(hetcomm_device_table_t) in the header that the plug-in was built with. An entry that is
   * not completely within this size counts as null. */
  uint64_t struct_size;
  /* Kind of device: "host", "sim-handle", ... At most 15 letters, digits, '-' and '_'. */
  const char* kind;
  /* 1 if an address is a pointer through which the CPU can load and store, otherwise 0. */
  int32_t host_accessible;
  int32_t reserved; /* 0 */

  /* Destroys the device. The library has already freed its memory, streams and events. May
   * block. */
  void (*destroy)(void* device);
  /* Returns a human-readable name, which must stay valid as long as the device. If the entry is
   * null, the library uses the name of the kind. */
  const char* (*name)(void* device);

  /* Allocates device memory with undefined contents. No earlier work in any stream may still access
   * it. OUT_OF_MEMORY: there is not enough free memory. May block. */
  hetcomm_status_t (*allocate)(void* device, uint64_t size_bytes, void** out_address);
  /* Frees an allocation that is no longer in use. Must not fail. May block. */
  void (*free)(void* device, void* address);
  /* Gets the base and the size of the allocation that contains |address|, which can be any number.
   * NOT_FOUND: the address does not belong to this device. Optional if |host_accessible| is 1. */
  hetcomm_status_t (*find)(void* device, const void* address, void** out_base, uint64_t* out_size);
  /* Optional: if the allocation |address| is a mapping of a file, gets the file descriptor, and the
   * offset in the file at which the allocation starts, so that other processes can map it too. The
   * device keeps the file open until the allocation is freed. NOT_FOUND: the allocation is not a
   * mapping of a file. */
  hetcomm_status_t (*shared_file)(void* device, const void* address, int* out_file,
                                  uint64_t* out_offset);

  /* Either all or none of the entries for streams and events must be set: stream_create,
   * stream_destroy, event_record, event_query, event_wait, event_release. These entries may be null
   * if each copy has ended when its call returns. In that case event_notify and the entries for
   * users' streams must be null too, and functions must ignore the streams that the library passes.
   *
   * Creates a stream, which runs its copies and reductions in order. Work in different streams may
   * run concurrently. */
  hetcomm_status_t (*stream_create)(void* device, void** out_stream);
  /* Waits until all copies and reductions in the stream have ended, and destroys the stream. Its
   * events stay valid until they are released. */
  void (*stream_destroy)(void* device, void* stream);

  /* Starts to copy |size_bytes| at |address| + |offset| into host memory. Both regions stay valid
   * until an event that was recorded after the copy has completed. The function may perform the
   * copy synchronously, but until it returns the library moves no other data in this process. */
  hetcomm_status_t (*copy_to_host)(void* device, void* stream, void* host, const void* address,
                                   uint64_t offset, uint64_t size_bytes);
  /* Starts to copy |size_bytes| of host memory to |address| + |offset|. Both regions stay valid
   * until an event that was recorded after the copy has completed. The device may read the host
   * memory as soon as the function is called: the library has waited for every earlier copy that
   * writes to it. */
  hetcomm_status_t (*copy_from_host)(void* device, void* stream, void* address, uint64_t offset,
                                     const void* host, uint64_t size_bytes);
  /* Optional, both or neither: start to copy |rows| of the allocation |address| into host memory,
   * or back. In host memory the rows are contiguous, in order. The rules for copy_to_host and
   * copy_from_host apply. */
  hetcomm_status_t (*copy_rows_to_host)(void* device, void* stream, void* host, const void* address,
                                        const hetcomm_device_rows_t* rows);
  hetcomm_status_t (*copy_rows_from_host)(void* device, void* stream, void* address,
                                          const hetcomm_device_rows_t* rows, const void* host);

  /* Creates an event that completes when all earlier copies and reductions in the stream have
   * completed. */
  hetcomm_status_t (*event_record)(void* device, void* stream, void** out_event);
  /* Returns OK if the event has completed, PENDING if it has not, or the error of a copy or
   * reduction that failed. */
  hetcomm_status_t (*event_query)(void* device, void* event);
  /* Blocks until the event has completed. Returns OK, or the error of a copy or reduction that
   * failed. */
  hetcomm_status_t (*event_wait)(void* device, void* event);
  /* Frees the event. */
  void (*event_release)(void* device, void* event);

  /* Optional: pins host memory, so that the device's copy engines can access it at full speed.
   * UNSUPPORTED: the vendor cannot pin this memory. After any failure the library still copies from
   * and to the memory. May block: with many vendors it waits until the device has finished the work
   * in its streams. For this reason the library's own threads call none of these functions while
   * the library holds a user's stream: allocate(), free(), stream_destroy(), event_release(),
   * pin_host(), unpin_host(), allocate_host(), free_host(). User threads may call them. */
  hetcomm_status_t (*pin_host)(void* device, void* host, uint64_t size_bytes);
  /* Unpins the memory that starts at |host|. Set if and only if pin_host() is set. May block. */
  void (*unpin_host)(void* device, void* host);

  /* The two entries below let network interfaces directly access the |size_bytes| at |address| +
   * |offset|. A transport tries them in this order. They return UNSUPPORTED if the memory does not
   * allow this.
   *
   * Optional: gets a dma-buf that contains the range. The range starts at offset |*out_offset| in
   * the dma-buf. The caller closes |*out_file|. */
  hetcomm_status_t (*export_dmabuf)(void* device, const void* address, uint64_t offset,
                                    uint64_t size_bytes, int* out_file, uint64_t* out_offset);
  /* Optional: gets the address under which the kernel, or a vendor's peer memory module, may find
   * the range, so that the transport can try to register it like host memory. The CPU need not be
   * able to access this address. */
  hetcomm_status_t (*registrable_address)(void* device, const void* address, uint64_t offset,
                                          uint64_t size_bytes, void** out_address);
  /* Optional: makes all data that network interfaces have written to the device's memory visible to
   * work that starts after this call. Null if this is not necessary. */
  hetcomm_status_t (*flush_remote_writes)(void* device);
  /* Optional: returns the PCI address of the device, such as "0000:3b:00.0", or null if the device
   * has none. The library uses the address to find the NICs near the device. The string must stay
   * valid as long as the device. */
  const char* (*pci_address)(void* device);
  /* Optional, both or neither: retain() registers the |size_bytes| that start at |address| and are
   * not from allocate() (hetcomm_memory_wrap). After that find() must find them. If the vendor's
   * objects have reference counts, the device holds a reference until release(). Otherwise the
   * owner keeps the memory until then. Each successful call is matched by one call of release()
   * with the same address. UNSUPPORTED: the device cannot use memory of this kind. If both entries
   * are null, find() must find all memory of the device. */
  hetcomm_status_t (*retain)(void* device, void* address, uint64_t size_bytes);
  void (*release)(void* device, void* address);
  /* Optional, both or neither: allocate and free host memory that the device's copy engines can
   * access at full speed, for vendors that cannot pin memory from other allocators. The CPU, other
   * devices and network interfaces use this memory too. The library frees it before it destroys the
   * device. Both functions may block. */
  hetcomm_status_t (*allocate_host)(void* device, uint64_t size_bytes, void** out_host);
  void (*free_host)(void* device, void* host);
  /* Optional: arranges that 1 is added to the eventfd |file| once |event| has completed, with or
   * without an error; immediately if it has already completed. event_query() must report the
   * completion before |file| is written: the library queries once after that, and may sleep for a
   * long time if the result is PENDING. The event may be released before it has completed. The
   * caller keeps |file| open until the device has been destroyed. UNSUPPORTED: the device cannot
   * signal this event, and the library polls it. If the entry is null, the library polls while
   * copies are running. */
  hetcomm_status_t (*event_notify)(void* device, void* event, int file);

  /* The six entries below order operations with the work in a user's stream (hetcomm_stream_wrap).
   * Either all or none of them must be set, with one exception: if the vendor cannot hold a stream,
   * user_stream_hold() and hold_end() are null, and the device supports only streams with
   * HETCOMM_STREAM_NOT_HELD. The library performs no copies in these streams.
   *
   * Optional: prepares to use the user's stream |native|, a handle of the vendor's own type, such
   * as a cl_command_queue or a cudaStream_t. INVALID_ARGUMENT: |native| is not a stream of this
   * device. |native| is NULL only if |flags| has HETCOMM_DEVICE_NULL_STREAM. The stream still
   * belongs to the user. It must exist until user_stream_close(): the user keeps it, or the device
   * retains it. */
  hetcomm_status_t (*user_stream_open)(void* device, void* native, void** out_user_stream);
  /* Closes a stream from user_stream_open(). The library has already released the stream's events
   * and ended its holds. */
  void (*user_stream_close)(void* device, void* user_stream);
  /* Creates an event that completes when all work that was submitted to the user's stream before
   * this call has ended. event_query() and the other event functions accept it. UNSUPPORTED: the
   * stream is being captured. */
  hetcomm_status_t (*user_stream_record)(void* device, void* user_stream, void** out_event);
  /* Makes all work that is submitted to the user's stream after this call wait until hold_end().
   * The device should use the first of these mechanisms that the vendor offers: a wait for a value
   * that the CPU writes, an event that the CPU sets, or a blocking host function that the vendor
   * calls in the stream. Other streams must not be blocked. UNSUPPORTED: the stream is being
   * captured, or the vendor offers none of these mechanisms. */
  hetcomm_status_t (*user_stream_hold)(void* device, void* user_stream, void** out_hold);
  /* Ends a hold, and frees it, even after the device has failed. Does not wait for work in the
   * stream. */
  void (*hold_end)(void* device, void* hold);
  /* Gets the vendor's handle of a stream from stream_create(), in the form that user_stream_open()
   * accepts (hetcomm_stream_create). The stream still belongs to the device. */
  hetcomm_status_t (*stream_native)(void* device, void* stream, void** out_native);
  /* Optional: writes the vendor's message about the device's last failure, on any thread, as at
   * most |size| bytes including the NUL. Writes an empty string if there is none. Error texts show
   * the message after the status. */
  void (*error_text)(void* device, char* text, uint64_t size);
  /* Optional: starts to copy |from_rows| of the allocation |from|, row by row, to |to_rows| of the
   * allocation |to| of |to_device|, which is |device| or another device with this same function.
   * The stream belongs to |device|. Both allocations stay valid until an event that was recorded
   * after the copy has completed. Both sides must have the same row_bytes and extents (otherwise
   * INVALID_ARGUMENT), and do not overlap.
   *
   * For each operation the library first makes a trial call with empty rows, possibly with a null
   * stream, from any thread. OK means that all rows can be copied between these allocations.
   * UNSUPPORTED means that none can, and the library copies through the host. */
  hetcomm_status_t (*copy_rows_between)(void* device, void* stream, const void* from,
                                        const hetcomm_device_rows_t* from_rows, void* to_device,
                                        void* to, const hetcomm_device_rows_t* to_rows);
  /* Optional: starts a reduction in device memory, after all earlier work in the stream. Later
   * copies in the stream must see the result. The allocations stay valid until an event that was
   * recorded after this call has completed.
   *
   * Operators are those of hetcomm/datatype.h. Results must be bitwise equal to those of IEEE 754
   * with subnormal numbers. Each operation is rounded to nearest, and operations are not fused.
   * FLOAT16, BFLOAT16 and the FLOAT8 types are computed in float32: the sum is rounded to float32,
   * divided, rounded to float32 again, and then rounded to the type of |out|. The device may choose
   * the bits of a NaN result, and the sign of a zero that MIN or MAX returns.
   *
   * For each operation the library first makes a trial call with 0 elements, possibly with a null
   * stream, from any thread. OK means that any number of elements can be reduced, at these
   * locations and at others with the same alignment. UNSUPPORTED means that they cannot, for
   * instance because a location is not aligned for its element type, or because kernels are still
   * being compiled. The library then computes the reduction on the host. */
  hetcomm_status_t (*reduce)(void* device, void* stream,
                             const hetcomm_device_reduction_t* reduction);
  /* Optional: returns the host NUMA node nearest to the device, as the kernel numbers it, or -1 if
   * there is none. The library uses it if there is no PCI address. */
  int32_t (*numa_node)(void* device);
  /* Optional: returns 1 if copies with ordinary host memory are as fast as with memory of
   * allocate_host() or pin_host(), because the device's memory is part of host memory; otherwise 0.
   * If it returns 1, the library copies through host memory that other processes on the host can
   * map. May be called at any time, and must not block. */
  int32_t (*host_memory_suffices)(void* device);
  /* Optional: determines by one query which of |count| devices has the allocation that contains
   * |address|, which can be any number. |devices| are all devices of a context whose tables have
   * this function and this kind. If the entry is null, the library calls find() for each device.
   * NOT_FOUND: the address belongs to none of them. STALE_HANDLE: it belonged to one of them, and
   * was freed. */
  hetcomm_status_t (*locate)(void* const* devices, uint64_t count, const void* address,
                             hetcomm_device_place_t* out_place);
  /* Optional: writes the reason why retain() refuses the |size_bytes| that start at |address|, as
   * at most |size| bytes including the NUL. Writes an empty string if retain() does not refuse
   * them. */
  void (*retain_rule)(void* device, void* address, uint64_t size_bytes, char* text, uint64_t size);
  /* Optional: returns 1 if |address|, which can be any number, is the handle of a vendor's object,
   * such as one that was not passed to retain(), and not a pointer to host memory. Otherwise
   * returns 0. The library queries only one device of each kind, and only if the address is not in
   * the memory of any device. */
  int32_t (*names_object)(void* device, const void* address);
  /* Any of the HETCOMM_DEVICE_* flags, combined by bitwise OR. */
  uint64_t flags;
} hetcomm_device_table_t;

/* A device. The functions of |table| take |instance| as their first argument. */
typedef struct hetcomm_device {
  const hetcomm_device_table_t* table;
  void* instance;
} hetcomm_device_t;

/* Version of this header. It changes when the meaning of an existing entry changes, not when
 * entries are added. The library refuses plug-ins with a different version. */
#define HETCOMM_DEVICE_PLUGIN_VERSION 1

/* Description of a plug-in. It must stay valid until the process exits. */
typedef struct hetcomm_device_plugin {
  /* sizeof(hetcomm_device_plugin_t) in the header that the plug-in was built with. */
  uint64_t struct_size;
  /* HETCOMM_DEVICE_PLUGIN_VERSION of the header that the plug-in was built with. */
  int32_t version;
  /* Number of |kinds|, at least 1. */
  int32_t kind_count;
  /* Names of the kinds of devices that create() makes. They must differ from those of the library
   * and of other plug-ins. */
  const char* const* kinds;
  /* Makes a device of |kind|. The device's destroy() frees it. |options| is the text after the
   * kind's name and a colon in HETCOMM_DEVICES, or "". On failure it writes the reason to |text|,
   * as at most |text_size| bytes including the NUL. May block. */
  hetcomm_status_t (*create)(const char* kind, const char* options, hetcomm_device_t* out_device,
                             char* text, uint64_t text_size);
  /* Optional: makes a device of |kind| for an object that a framework already uses, such as its
   * context or queue (hetcomm_device_from_native). The object still belongs to the framework. It
   * must exist until the device is destroyed: the framework keeps it, or the plug-in retains it.
   * |out_device|, |text| and |text_size| are as for create(). May block. */
  hetcomm_status_t (*create_from_native)(const char* kind, void* native,
                                         hetcomm_device_t* out_device, char* text,
                                         uint64_t text_size);
} hetcomm_device_plugin_t;

/* The type of the function hetcomm_device_plugin(), which a plug-in exports with HETCOMM_API, and
 * in C++ as extern "C". The library calls it for each context, from any thread. The function must
 * not load the vendor's libraries: only create() does that. It returns NULL if the plug-in cannot
 * be used here. */
typedef const hetcomm_device_plugin_t* (*hetcomm_device_plugin_function_t)(void);
#define HETCOMM_DEVICE_PLUGIN_FUNCTION "hetcomm_device_plugin"

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_DEVICE_PLUGIN_H_ */
