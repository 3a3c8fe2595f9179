/* Devices of other vendors: the table of functions that a kind of device fills, and how a shared
 * library brings one to the library.
 *
 * A plug-in is a shared library that exports hetcomm_device_plugin(). HETCOMM_DEVICE_PLUGINS names
 * it, HETCOMM_DEVICES one of its kinds:
 *
 *     HETCOMM_DEVICE_PLUGINS=/opt/acme/libacme_hetcomm.so HETCOMM_DEVICES=acme:0,acme:1
 *
 * It needs this header, for reduce() also the numbers in hetcomm/datatype.h, and no symbol of
 * libhetcomm. docs/devices.md shows how one is made.
 *
 * Any thread may call any function, on different objects at the same time. No function blocks
 * unless its comment says so. A function that returns a status and fails has left its outputs alone
 * and has done nothing, but for copies of rows, of which some may run. A function that takes a
 * range fails with OUT_OF_RANGE if that leaves its allocation, with INVALID_ARGUMENT if the address
 * is not this device's, and with STALE_HANDLE if the memory was freed and that can be told, as does
 * find(). Any function may fail with OUT_OF_MEMORY, OUT_OF_RESOURCES, DEVICE_LOST or INTERNAL. A
 * status that neither this nor the function's own comment names counts as DEVICE_LOST, and the text
 * says which it was. None throws a C++ exception.
 *
 * An address is the vendor's name of memory: a pointer that the CPU may touch, one that it may not,
 * or a handle. The library never computes with it; it passes address and offset. */
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

/* This says what a device reduces: out[i] = first[i] op second[i], divided by |divisor|, for
 * each i. |first|, |second| or both may be the elements of |out| themselves, at the same place
 * and of the same type; else they have no byte in common with it. Frozen layout. */
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
  /* Types of |first|'s elements and of |out|'s: each is |datatype|; or HETCOMM_FLOAT32, where
   * |datatype| is FLOAT16, BFLOAT16 or a FLOAT8 and the operator SUM or PRODUCT. */
  int32_t first_datatype;
  int32_t out_datatype;
  /* 1; or more, with SUM, where FLOAT16, BFLOAT16 or a FLOAT8 is the type of |out|. */
  uint32_t divisor;
  int32_t reserved; /* 0 */
} hetcomm_device_reduction_t;

/* Where locate() has found an address. Frozen layout. */
typedef struct hetcomm_device_place {
  uint64_t device; /* index of the device among those that were asked */
  void* base;      /* of the allocation, as find() gives it */
  uint64_t size;
  /* A number that no other allocation of this kind has in the life of the process; 0: the vendor
   * has none. */
  uint64_t allocation_id;
} hetcomm_device_place_t;

/* A bit of hetcomm_device_table_t.flags: NULL names a stream of the user's, as it names CUDA's
 * default stream, so that user_stream_open() takes it. */
#define HETCOMM_DEVICE_NULL_STREAM UINT64_C(1)

/* The functions of one kind of device. Entries are only ever added at the end. What a plug-in of an
 * older header leaves out counts as null. An entry that is marked optional may be null; the library
 * has a way without it. The table, and the texts that it gives, live as long as the process. */
typedef struct hetcomm_device_table {
  /* sizeof(hetcomm_device_table_t) as the plug-in was built with it. An entry that it ends in the
   * middle of counts as left out. */
  uint64_t struct_size;
  /* Kind of device: "host", "sim-handle", ... At most 15 letters, digits, '-' and '_'. */
  const char* kind;
  /* 1: an address is a pointer, and the CPU may load and store through it. 0: it may not. */
  int32_t host_accessible;
  int32_t reserved; /* 0 */

  /* Frees the device. Its memory, streams and events have been freed before. May block. */
  void (*destroy)(void* device);
  /* Gives a name for people, which lives as long as the device. Null: that of its kind. */
  const char* (*name)(void* device);

  /* Allocates device memory of undefined contents, with which nothing that is in any stream has to
   * do any more. OUT_OF_MEMORY when there is no room. May block. */
  hetcomm_status_t (*allocate)(void* device, uint64_t size_bytes, void** out_address);
  /* Frees an allocation; nothing uses it any more. Never fails. May block. */
  void (*free)(void* device, void* address);
  /* Gives base and size of the allocation that contains |address|, which may be any number.
   * NOT_FOUND when it is not this device's. Optional where the memory is |host_accessible|. */
  hetcomm_status_t (*find)(void* device, const void* address, void** out_base, uint64_t* out_size);
  /* Optional: gives the file that the allocation |address| is a mapping of, and where in it the
   * allocation begins, so that other processes can map it too. The device keeps the file open until
   * the allocation is freed. NOT_FOUND when the allocation is no mapping of a file. */
  hetcomm_status_t (*shared_file)(void* device, const void* address, int* out_file,
                                  uint64_t* out_offset);

  /* The entries of streams and events (stream_create, stream_destroy, event_record, event_query,
   * event_wait, event_release) come together. They may be null where a copy is over when its call
   * returns, and the entries of notices and of users' streams are null, too; then streams that the
   * library passes mean nothing.
   *
   * Creates a stream, which runs its copies and reductions in order. Those of different streams
   * overlap. */
  hetcomm_status_t (*stream_create)(void* device, void** out_stream);
  /* Waits until all copies and reductions of the stream have ended, and frees it. Its events
   * stay until they are released. */
  void (*stream_destroy)(void* device, void* stream);

  /* Starts to copy |size_bytes| at |address| + |offset| into host memory. Both stay valid until
   * an event that was recorded after the copy has completed. A call, as of all copies, may last
   * as long as the copy; then nothing else of its process moves meanwhile. */
  hetcomm_status_t (*copy_to_host)(void* device, void* stream, void* host, const void* address,
                                   uint64_t offset, uint64_t size_bytes);
  /* Starts to copy |size_bytes| of host memory to |address| + |offset|. Both stay valid until an
   * event that was recorded after the copy has completed. The device may read the host memory at
   * any time from the call on: what another copy writes there has been waited for before the
   * call. */
  hetcomm_status_t (*copy_from_host)(void* device, void* stream, void* address, uint64_t offset,
                                     const void* host, uint64_t size_bytes);
  /* Optional: start to copy |rows| of the allocation |address| into host memory, where they lie
   * behind each other in their order, and back. As copy_to_host and copy_from_host else. They
   * come together. */
  hetcomm_status_t (*copy_rows_to_host)(void* device, void* stream, void* host, const void* address,
                                        const hetcomm_device_rows_t* rows);
  hetcomm_status_t (*copy_rows_from_host)(void* device, void* stream, void* address,
                                          const hetcomm_device_rows_t* rows, const void* host);

  /* Creates an event, which completes when all copies and reductions have that were put into the
   * stream before it. */
  hetcomm_status_t (*event_record)(void* device, void* stream, void** out_event);
  /* Returns OK when the event has completed, PENDING when it has not, and the error of a copy or
   * reduction that failed. */
  hetcomm_status_t (*event_query)(void* device, void* event);
  /* Blocks until the event has completed. Returns OK, or the error of a copy that failed. */
  hetcomm_status_t (*event_wait)(void* device, void* event);
  /* Frees the event. */
  void (*event_release)(void* device, void* event);

  /* Optional: makes host memory reachable by the device's copy engines at full speed. After a
   * failure the library copies from and to the memory all the same. May block, with many vendors
   * until the device has done what its streams hold. So while it holds back a user's stream the
   * library's own threads call none of these: allocate(), free(), stream_destroy(),
   * event_release(), pin_host(), unpin_host(), allocate_host(), free_host(). A user's call may. */
  hetcomm_status_t (*pin_host)(void* device, void* host, uint64_t size_bytes);
  /* Ends what pin_host() did for the memory that begins at |host|. It comes with pin_host(). May
   * block. */
  void (*unpin_host)(void* device, void* host);

  /* The two entries below let network interfaces reach [address + offset, + size_bytes) by
   * themselves. A transport tries them in this order. They return UNSUPPORTED where this memory has
   * no such way.
   *
   * Optional: gives a dma-buf of the range, which begins at |*out_offset| of it. The caller closes
   * |*out_file|. */
  hetcomm_status_t (*export_dmabuf)(void* device, const void* address, uint64_t offset,
                                    uint64_t size_bytes, int* out_file, uint64_t* out_offset);
  /* Optional: gives the address by which the kernel, or a vendor's peer memory module, may find the
   * range, so that plain registration can be tried. The CPU need not be able to touch it. */
  hetcomm_status_t (*registrable_address)(void* device, const void* address, uint64_t offset,
                                          uint64_t size_bytes, void** out_address);
  /* Optional: makes what network interfaces have written into the device's memory visible to
   * everything that is started after this call. Null where that needs nothing. */
  hetcomm_status_t (*flush_remote_writes)(void* device);
  /* Optional: gives the PCI address of the device, such as "0000:3b:00.0", by which the NICs near
   * it are found; null where it has none. The text lives as long as the device. */
  const char* (*pci_address)(void* device);
  /* Optional: begins to use |size_bytes| from |address| on that allocate() has not given
   * (hetcomm_memory_wrap), so that find() knows it, and the vendor's object stays until release()
   * where the vendor counts its users; else the owner keeps it.
   * Each call is ended by one of release(), with the same address. Where they are null find()
   * knows all memory of the device. They come together. */
  hetcomm_status_t (*retain)(void* device, void* address, uint64_t size_bytes);
  void (*release)(void* device, void* address);
  /* Optional: allocates host memory that the device's copy engines reach at full speed, for
   * devices whose vendor cannot pin what others have allocated. The CPU, other devices and network
   * interfaces use it, too. The library frees it before the device. Both may block. They come
   * together. */
  hetcomm_status_t (*allocate_host)(void* device, uint64_t size_bytes, void** out_host);
  void (*free_host)(void* device, void* host);
  /* Optional: adds 1 to the eventfd |file| as soon as |event| has completed, with an error or
   * without; at once where it has already. event_query() says so by then: the library asks once
   * when |file| was written, and may sleep for long if the answer is PENDING. The event may be
   * released before that. The caller keeps |file| open until the device was destroyed. Without
   * this entry the library polls while copies run. */
  hetcomm_status_t (*event_notify)(void* device, void* event, int file);

  /* The six entries below put operations into the order of a stream that the user has made
   * (hetcomm_stream_wrap). They come together; where the vendor cannot hold a stream back,
   * user_stream_hold() and hold_end() are null, and the device has streams that go on
   * (HETCOMM_STREAM_NOT_HELD) only. The library copies nothing there.
   *
   * Optional: begins to use the user's stream |native|, which the vendor's own type names: a
   * cl_command_queue, a cudaStream_t. INVALID_ARGUMENT where it is no stream of this device. It is
   * NULL only where |flags| has HETCOMM_DEVICE_NULL_STREAM. The stream stays the user's, who keeps
   * it until user_stream_close(), or the device retains it. */
  hetcomm_status_t (*user_stream_open)(void* device, void* native, void** out_user_stream);
  /* Ends what user_stream_open() has begun. Its events have been released, and its holds ended. */
  void (*user_stream_close)(void* device, void* user_stream);
  /* Creates an event, which completes when everything has that was put into the user's stream
   * before this call. event_query() and the other entries of events take it. UNSUPPORTED while the
   * stream is captured. */
  hetcomm_status_t (*user_stream_record)(void* device, void* user_stream, void** out_event);
  /* Lets everything that is put into the user's stream after this call wait until hold_end(): by a
   * wait for a value that the CPU writes, where the vendor has one, else by an event that the CPU
   * sets, else by a function that the vendor calls in the stream and that blocks. Other streams go
   * on. UNSUPPORTED while the stream is captured, or where the vendor has none of these. */
  hetcomm_status_t (*user_stream_hold)(void* device, void* user_stream, void** out_hold);
  /* Ends a hold, and frees it, also after the device has failed. It does not wait for anything of
   * the stream. */
  void (*hold_end)(void* device, void* hold);
  /* Gives what user_stream_open() takes for a stream of stream_create(), which stays the device's
   * (hetcomm_stream_create). */
  hetcomm_status_t (*stream_native)(void* device, void* stream, void** out_native);
  /* Optional: writes what the vendor has said when the device failed last, on any thread, in at
   * most |size| bytes with the NUL; an empty text where it has said nothing. People read it
   * behind the status. */
  void (*error_text)(void* device, char* text, uint64_t size);
  /* Optional: starts to copy, row to row, |from_rows| of the allocation |from| to |to_rows| of the
   * allocation |to| of |to_device|, which is |device| or another one with this function. The stream
   * is |device|'s. Both allocations stay valid until an event that was recorded after the copy has
   * completed. Both sides have the same row_bytes and extents; else the call fails with
   * INVALID_ARGUMENT. They have no byte in common.
   * The library asks first, for each operation, with rows of no bytes, perhaps with a null stream,
   * and from any thread. OK says that there is a way between these allocations for all rows;
   * UNSUPPORTED says that there is none, and the library copies through the host. */
  hetcomm_status_t (*copy_rows_between)(void* device, void* stream, const void* from,
                                        const hetcomm_device_rows_t* from_rows, void* to_device,
                                        void* to, const hetcomm_device_rows_t* to_rows);
  /* Optional: starts to reduce memory of the device, behind all that the stream holds; copies
   * that are put there later see the result. Allocations stay valid until an event that was
   * recorded after this call has completed. Operators are those of hetcomm/datatype.h. Bits are
   * those of IEEE 754, with subnormal numbers; each operation is rounded to the nearest, and
   * none fused with another. FLOAT16, BFLOAT16 and the FLOAT8 types are calculated in float32:
   * the sum is rounded to that, divided, rounded to that, and then rounded to the type of |out|.
   * Which NaN a result is, and which of two zeros MIN and MAX take, is free. The library asks
   * first, for each operation, with no elements, perhaps with a null stream, and from any
   * thread. OK says that any number of elements can be reduced so, from these places on and from
   * others that are aligned as they are. UNSUPPORTED says that they cannot, since a place is not
   * aligned for its elements, say, or not yet, as while kernels are compiled: the library
   * calculates on the host. */
  hetcomm_status_t (*reduce)(void* device, void* stream,
                             const hetcomm_device_reduction_t* reduction);
  /* Optional: gives the NUMA node of the host near which the device is, by the kernel's number; -1
   * where it is near none. It counts where there is no PCI address. */
  int32_t (*numa_node)(void* device);
  /* Optional: returns 1 where copies are as fast with any host memory as with that of
   * allocate_host() or pin_host(), since the device's memory is the host's own; else 0. The library
   * then copies through host memory that other processes of the host can map. May be called at any
   * time, and does not block. */
  int32_t (*host_memory_suffices)(void* device);
  /* Optional: tells by one query which of |count| devices has the allocation that contains
   * |address|, which may be any number. |devices| are all devices of a context whose tables have
   * this function and this kind. Without it the library asks each of them by find(). NOT_FOUND:
   * it is memory of none of them. STALE_HANDLE: it was that of one, and was freed. */
  hetcomm_status_t (*locate)(void* const* devices, uint64_t count, const void* address,
                             hetcomm_device_place_t* out_place);
  /* Optional: writes, in at most |size| bytes with the NUL, which rule retain() of |size_bytes|
   * from |address| on goes by when it refuses; an empty text where it does not refuse. */
  void (*retain_rule)(void* device, void* address, uint64_t size_bytes, char* text, uint64_t size);
  /* Optional: returns 1 where |address|, which may be any number, names an object of the
   * vendor's, such as a handle that retain() has not taken: then it is no pointer to host
   * memory. Else 0. The library asks one device of a kind, and only when all have said that the
   * address is no memory of theirs. */
  int32_t (*names_object)(void* device, const void* address);
  /* HETCOMM_DEVICE_*, or 0. */
  uint64_t flags;
} hetcomm_device_table_t;

/* A device: what the functions of |table| take as their first argument is |instance|. */
typedef struct hetcomm_device {
  const hetcomm_device_table_t* table;
  void* instance;
} hetcomm_device_t;

/* Version of this header: it changes where what was there before means something else, and not with
 * entries that are added. A plug-in of another version is refused. */
#define HETCOMM_DEVICE_PLUGIN_VERSION 1

/* This is what a plug-in brings. It lives as long as the process. */
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
  /* Makes a device of |kind|, which its destroy() frees. |options| is what stands behind the kind's
   * name and a colon in HETCOMM_DEVICES, or "". On failure |text| gets the reason, in at most
   * |text_size| bytes with the NUL. May block. */
  hetcomm_status_t (*create)(const char* kind, const char* options, hetcomm_device_t* out_device,
                             char* text, uint64_t text_size);
  /* Optional: makes a device of |kind| for what a framework works with already, such as its
   * context or queue (hetcomm_device_from_native). It stays the framework's, which keeps it
   * until the device is destroyed, or the plug-in retains it. As create() else. */
  hetcomm_status_t (*create_from_native)(const char* kind, void* native,
                                         hetcomm_device_t* out_device, char* text,
                                         uint64_t text_size);
} hetcomm_device_plugin_t;

/* The type of the function hetcomm_device_plugin() that a plug-in exports, in C++ as extern "C" and
 * with HETCOMM_API before it. It is called for each
 * context, from any thread, and loads nothing of the vendor: that waits for create(). NULL: the
 * plug-in cannot be used here. */
typedef const hetcomm_device_plugin_t* (*hetcomm_device_plugin_function_t)(void);
#define HETCOMM_DEVICE_PLUGIN_FUNCTION "hetcomm_device_plugin"

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_DEVICE_PLUGIN_H_ */
