/* One-sided operations: put, get and atomics on memory of another rank.
 *
 *   owner                                         others
 *     hetcomm_memory_register (rights)
 *     hetcomm_memory_export  --bytes, by any way-->  hetcomm_memory_import
 *                                                    hetcomm_put, _get, _fetch_add, ...
 *     hetcomm_memory_wait_notification  <----------  put with HETCOMM_OPERATION_NOTIFY
 *     hetcomm_memory_unregister
 *
 * An operation has completed when it has happened at the owner: the bytes of a put are then in
 * place, and visible to the owner and to later operations of everybody. Operations are not ordered
 * with each other, nor with messages; wait for one, or flush, before starting one that builds on
 * it. Until a put has completed, or its notification has come, the bytes that it writes are
 * undefined and the owner must not touch them: after a broken connection they may be written again.
 *
 * What the network cannot do by itself the owner's process does while it drives communication. A
 * context that makes progress only in its calls (HETCOMM_PROGRESS_CALLER) therefore has to say that
 * it will keep calling (HETCOMM_REGISTER_CALLER_PROGRESS).                                       */
#ifndef HETCOMM_ONESIDED_H_
#define HETCOMM_ONESIDED_H_

#include <hetcomm/operation.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What peers may do to a registered memory. */
enum {
  HETCOMM_ACCESS_PUT = 1,
  HETCOMM_ACCESS_GET = 2,
  HETCOMM_ACCESS_ATOMIC = 4, /* host memory only */
  HETCOMM_ACCESS_ALL = 7
};

enum {
  /* In a context of HETCOMM_PROGRESS_CALLER: this process waits or tests while peers use the
   * memory; between its calls their operations may stand still. */
  HETCOMM_REGISTER_CALLER_PROGRESS = 1
};

/* Lets the ranks of |communicator| use |memory| as |access| says (HETCOMM_ACCESS_*), until it is
 * unregistered. Ranks of one host map memory of hetcomm_memory_allocate that grants
 * HETCOMM_ACCESS_ALL, unless HETCOMM_SHM_MAP=off, and use it without the owner's help;
 * docs/security.md says what that trusts them with. |flags| are HETCOMM_REGISTER_*. BUSY when it is
 * registered already; UNSUPPORTED for atomics on memory that the CPU cannot touch, and in caller
 * progress without HETCOMM_REGISTER_CALLER_PROGRESS. A registered memory cannot be freed, nor its
 * communicator destroyed (BUSY). [serial per memory] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_register(hetcomm_memory_t* memory, hetcomm_communicator_t* communicator,
                        uint32_t access, uint32_t flags) HETCOMM_NOEXCEPT;

/* Ends all access. Operations of peers that are under way fail with STALE_HANDLE; when the call has
 * returned OK nothing of the memory is read or written any more, as far as peers that had it mapped
 * keep to the protocol. Notifications that were not taken
 * are dropped. TIMED_OUT when a peer did not let go within |timeout_ns| (as for operations): it
 * can be called again, and until it has returned OK the memory cannot be freed. INVALID_ARGUMENT
 * when the memory is not registered. [serial per memory] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_unregister(hetcomm_memory_t* memory, uint64_t timeout_ns) HETCOMM_NOEXCEPT;

/* Writes what a peer needs to use the registered memory to |out_bytes|, and its size, which is at
 * most HETCOMM_EXPORT_MAX_BYTES, to |*out_size|. OUT_OF_RANGE when it is more than |capacity|. The
 * bytes are plain data, to be sent in any way; they are of no use once the memory is unregistered,
 * even if it is registered again. [any-thread] */
#define HETCOMM_EXPORT_MAX_BYTES 1024
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_export(const hetcomm_memory_t* memory, size_t capacity, void* out_bytes,
                      size_t* out_size) HETCOMM_NOEXCEPT;

/* Memory of a rank, as another one (or the same) sees it. */
typedef struct hetcomm_remote_memory hetcomm_remote_memory_t;

typedef struct hetcomm_remote_memory_info {
  size_t struct_size; /* sizeof at the caller's compile time: set it before the call             */
  int32_t rank;    /* of the owner, in the communicator                                          */
  uint32_t access; /* HETCOMM_ACCESS_*                                                           */
  uint64_t size_bytes;
} hetcomm_remote_memory_info_t;

/* Makes a remote memory of exported |bytes|. INVALID_ARGUMENT when they cannot be read,
 * PERMISSION_DENIED when they were exported in a communicator that neither is |communicator| nor
 * was split from the same one, OUT_OF_RANGE when their owner is not in |communicator|. Does not
 * communicate. Release it before the communicator is destroyed.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_import(hetcomm_communicator_t* communicator, const void* bytes, size_t size,
                      hetcomm_remote_memory_t** out_remote) HETCOMM_NOEXCEPT;

/* [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_remote_memory_get_info(
    const hetcomm_remote_memory_t* remote, hetcomm_remote_memory_info_t* out_info) HETCOMM_NOEXCEPT;

/* BUSY while operations on it are pending. NULL is accepted. [serial per remote memory] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_remote_memory_release(hetcomm_remote_memory_t* remote) HETCOMM_NOEXCEPT;

/* Writes |buffer| to |remote| from |offset| on. With HETCOMM_OPERATION_NOTIFY in the options the
 * owner is notified with options->notify_value once all bytes are in place. The buffer belongs to
 * the operation until it has completed. The outcome is STALE_HANDLE when the memory was
 * unregistered, PEER_LOST when the owner died. OUT_OF_RANGE (past the memory) and PERMISSION_DENIED
 * (a right that was not granted): rejected, no completion will follow.
 *
 * Where the network may still hold bytes of a put (RDMA), its end, at its deadline, by a cancel or
 * by an abort too, waits until the owner has given up that connection: what others write after the
 * end of a put is never overwritten by it. The owner does so when it makes progress, or dies.
 * [any-thread]
 */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_put(
    hetcomm_remote_memory_t* remote, uint64_t offset, hetcomm_buffer_t buffer,
    const hetcomm_operation_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Reads |remote| from |offset| on into |buffer|. Otherwise as hetcomm_put. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_get(
    hetcomm_remote_memory_t* remote, uint64_t offset, hetcomm_buffer_t buffer,
    const hetcomm_operation_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Adds |addend| to the 64-bit word (of the owner's byte order, at an address that 8 divides) at
 * |offset| and gives its value before in |*out_previous|, which belongs to the operation until it
 * has completed and may be NULL. Atomic with all other hetcomm atomics on the word, by whatever way
 * they come, and with the owner's own lock-free atomic instructions. Happens at most once; the
 * outcome is OUTCOME_UNKNOWN when it was asked for and its answer did not come, be it that the
 * owner was lost, that the deadline passed, or that it was cancelled. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_fetch_add(
    hetcomm_remote_memory_t* remote, uint64_t offset, uint64_t addend, uint64_t* out_previous,
    const hetcomm_operation_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* The same: writes |desired| if the word equals |expected|. It did if |*out_previous| is
 * |expected|. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_compare_swap(
    hetcomm_remote_memory_t* remote, uint64_t offset, uint64_t expected, uint64_t desired,
    uint64_t* out_previous, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Completes when all one-sided operations that were started before on |communicator| towards |rank|
 * have, also those whose requests were released; its outcome is that of the first of them that
 * failed. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_flush(
    hetcomm_communicator_t* communicator, int32_t rank, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* A notified put that has arrived. Frozen layout. */
typedef struct hetcomm_notification {
  uint64_t value; /* of the user's                                                             */
  int32_t source; /* rank that put, in the communicator of the registration                    */
  uint32_t reserved;
  uint64_t offset; /* of what was put, in the memory                                            */
  uint64_t length;
} hetcomm_notification_t;

/* Takes the next notification of the registered |memory|, waiting for one for up to |timeout_ns|
 * (POLL: drives communication once). TIMED_OUT when there is none, STALE_HANDLE when the memory is
 * unregistered meanwhile. Each is given once, in the order of arrival. Those that are not taken
 * cost the putting rank credit: it waits when it has none. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_wait_notification(hetcomm_memory_t* memory, uint64_t timeout_ns,
                                 hetcomm_notification_t* out_notification) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_ONESIDED_H_ */
