/* Declares one-sided operations: put, get and atomics on memory of another rank.
 *
 *   owner                                         others
 *     hetcomm_memory_register (rights)
 *     hetcomm_memory_export  --bytes, by any way-->  hetcomm_memory_import
 *                                                    hetcomm_put, _get, _fetch_add, ...
 *     hetcomm_memory_wait_notification  <----------  put with HETCOMM_OPERATION_NOTIFY
 *     hetcomm_memory_unregister
 *
 * An operation has completed when it has happened at the owner: the bytes of a put are then in
 * place, and visible to the owner and to later operations of all ranks. Operations are not ordered
 * with each other, nor with messages. Before starting an operation that depends on an earlier one,
 * wait for the earlier one, or flush. Until a put has completed, or its notification has come, the
 * bytes that it writes are undefined and the owner must not touch them: after a broken connection
 * they may be written again.
 *
 * The owner's process carries out the parts of an operation that the network cannot, and does so
 * only while it drives communication. So the owner of a context that makes progress only in its
 * calls (HETCOMM_PROGRESS_CALLER) has to promise that it will keep calling
 * (HETCOMM_REGISTER_CALLER_PROGRESS).
 *
 * A call that returns a failure has rejected the operation, and no completion will follow.
 * hetcomm_put, hetcomm_get and the atomics reject with:
 *   INVALID_ARGUMENT   The options are wrong, a plain pointer is NULL or leads to memory of a
 *                      device, an operation other than a put has HETCOMM_OPERATION_NOTIFY, or the
 *                      offset of an atomic is not a multiple of 8.
 *   OUT_OF_RANGE       The range ends past the remote memory, or the buffer past its memory.
 *   PERMISSION_DENIED  The owner did not grant the access.
 *
 * All other outcomes are in the status of the completion record:
 *   OK               The operation has happened.
 *   STALE_HANDLE     The owner has unregistered the memory.
 *   OUTCOME_UNKNOWN  The owner was asked for an atomic and its reply did not come.
 *   TIMED_OUT        The deadline passed. A put may have written any part of its bytes.
 *   CANCELLED        The caller cancelled it. A put may have written any part of its bytes.
 *   PEER_LOST        The owner died or left.
 *   UNREACHABLE      The owner may be alive, but no connection to it can be made.
 *   ABORTED          The communicator, or that of the registration, was aborted, or the owner
 *                    failed: the text has the owner's rank, status and reason.
 *   OUT_OF_MEMORY    Memory ran out on either side.
 *   another status   The owner refused the operation, or a device of this rank failed; the text
 *                    says which. */
#ifndef HETCOMM_ONESIDED_H_
#define HETCOMM_ONESIDED_H_

#include <hetcomm/operation.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Access that peers have to a registered memory; flags are combined by or. */
enum {
  /* Peers may put. */
  HETCOMM_ACCESS_PUT = 1,
  /* Peers may get. */
  HETCOMM_ACCESS_GET = 2,
  /* Peers may do atomics, on memory that the CPU may touch. */
  HETCOMM_ACCESS_ATOMIC = 4,
  /* Peers may do all of these. */
  HETCOMM_ACCESS_ALL = 7
};

/* Flags of a registration. */
enum {
  /* In a context of HETCOMM_PROGRESS_CALLER: this process promises to wait or test while peers use
   * the memory. Between its calls the peers' operations may make no progress. */
  HETCOMM_REGISTER_CALLER_PROGRESS = 1
};

/* Lets the ranks of |communicator|, which has to be of the memory's context, use |memory| until it
 * is unregistered. |access| is made of HETCOMM_ACCESS_*, |flags| of HETCOMM_REGISTER_*. If |access|
 * is HETCOMM_ACCESS_ALL, ranks of the owner's host map memory that hetcomm_memory_allocate gave,
 * and use it without the owner's help. HETCOMM_SHM_MAP=off prevents that. docs/security.md says how
 * far the owner has to trust ranks that map its memory. A registered memory cannot be freed, nor
 * its communicator destroyed (BUSY).
 *   BUSY              The memory is registered already.
 *   INVALID_ARGUMENT  |access| is 0 or has unknown bits, |flags| has unknown bits, or memory and
 *                     communicator are of different contexts.
 *   UNSUPPORTED       |access| has HETCOMM_ACCESS_ATOMIC and the CPU cannot touch the memory. Or
 *                     the context has no background thread and HETCOMM_REGISTER_CALLER_PROGRESS is
 *                     not set.
 *   ABORTED           The communicator was aborted.
 * [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_register(hetcomm_memory_t* memory, hetcomm_communicator_t* communicator,
                        uint32_t access, uint32_t flags) HETCOMM_NOEXCEPT;

/* Ends all access and waits until no peer uses the memory any more. Pending operations of peers
 * fail with STALE_HANDLE. Once the call has returned OK, the memory is no longer read or written,
 * as long as peers that had it mapped keep to the protocol. Notifications that were not taken are
 * dropped. |timeout_ns| 0 means HETCOMM_TIMEOUT. TIMED_OUT: a peer still uses the memory, or a copy
 * still runs. The call can then be made again, and the memory cannot be freed before it has
 * returned OK. INVALID_ARGUMENT: the memory is not registered. [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_unregister(hetcomm_memory_t* memory, uint64_t timeout_ns) HETCOMM_NOEXCEPT;

/* Largest size of exported bytes. */
#define HETCOMM_EXPORT_MAX_BYTES 1024

/* Writes the bytes that a peer needs to use the registered memory to |out_bytes|, and their number,
 * at most HETCOMM_EXPORT_MAX_BYTES, to |*out_size|. The bytes are plain data, which may be sent in
 * any way. They are useless once the memory is unregistered, even if it is registered again.
 * OUT_OF_RANGE: there are more than |capacity| bytes, and nothing was written. INVALID_ARGUMENT:
 * the memory is not registered. The call must not run beside hetcomm_memory_unregister.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_export(const hetcomm_memory_t* memory, size_t capacity, void* out_bytes,
                      size_t* out_size) HETCOMM_NOEXCEPT;

/* Registered memory of another rank, or of this one, as the target of one-sided operations. */
typedef struct hetcomm_remote_memory hetcomm_remote_memory_t;

typedef struct hetcomm_remote_memory_info_t {
  /* The caller sets it to sizeof(hetcomm_remote_memory_info_t). */
  size_t struct_size;
  /* Rank of the owner, in the communicator of the import. */
  int32_t rank;
  /* Access that the owner granted, HETCOMM_ACCESS_*. */
  uint32_t access;
  /* Size of the memory in bytes. */
  uint64_t size_bytes;
} hetcomm_remote_memory_info_t;

/* Makes a remote memory from |size| exported |bytes|, which are copied. Does not communicate. The
 * caller destroys it before |communicator|.
 *   INVALID_ARGUMENT   The bytes cannot be read.
 *   PERMISSION_DENIED  The bytes were exported on a communicator that shares no connections with
 *                      |communicator|. The two are of different jobs or epochs, or neither a
 *                      split nor |share| joins them.
 *   OUT_OF_RANGE       The owner of the memory is not in |communicator|.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_import(hetcomm_communicator_t* communicator, const void* bytes, size_t size,
                      hetcomm_remote_memory_t** out_remote) HETCOMM_NOEXCEPT;

/* Describes a remote memory. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_remote_memory_info(
    const hetcomm_remote_memory_t* remote, hetcomm_remote_memory_info_t* out_info) HETCOMM_NOEXCEPT;

/* Destroys the handle; the memory itself stays as it is. BUSY: operations on it are pending; then
 * nothing has changed. NULL is accepted. [exclusive] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_remote_memory_destroy(hetcomm_remote_memory_t* remote) HETCOMM_NOEXCEPT;

/* Starts to write |buffer| to |remote| from |offset| on. The buffer belongs to the operation until
 * it has completed. With HETCOMM_OPERATION_NOTIFY in the options the owner is notified with
 * options->notify_value once all bytes are in place. |options| may be NULL. The top of this header
 * lists the errors.
 *
 * When a connection has failed, or a put has to end early, the network may still hold bytes of the
 * put (RDMA). The put then completes, with any outcome, only after the owner has given up that
 * connection. That also holds for an end by a deadline, a cancel or an abort. So a put never
 * overwrites what others write after its end. The owner gives the connection up when it makes
 * progress, or dies. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_put(
    hetcomm_remote_memory_t* remote, uint64_t offset, hetcomm_buffer_t buffer,
    const hetcomm_operation_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to read |remote| from |offset| on into |buffer|. Otherwise the call works like
 * hetcomm_put. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_get(
    hetcomm_remote_memory_t* remote, uint64_t offset, hetcomm_buffer_t buffer,
    const hetcomm_operation_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to add |addend| to the 64-bit word at |offset|, and gives the word's previous value in
 * |*out_previous|, which belongs to the operation until it has completed and may be NULL. The word
 * has the owner's byte order. |offset| and the word's address at the owner are multiples of 8; a
 * wrong address ends the operation with INVALID_ARGUMENT. The addition is atomic with all other
 * hetcomm atomics on the word, over any transport, and with the owner's own lock-free atomic
 * instructions. It happens at most once. The outcome is OUTCOME_UNKNOWN if the owner was asked and
 * its reply did not come, because the owner was lost, the deadline passed or the caller cancelled.
 * |options| may be NULL. The top of this header lists the other errors. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_fetch_add(
    hetcomm_remote_memory_t* remote, uint64_t offset, uint64_t addend, uint64_t* out_previous,
    const hetcomm_operation_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to write |desired| to the 64-bit word at |offset| if the word equals |expected|, and gives
 * the word's previous value in |*out_previous|. The word was written if its previous value is
 * |expected|. Otherwise the call works like hetcomm_fetch_add. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_compare_swap(
    hetcomm_remote_memory_t* remote, uint64_t offset, uint64_t expected, uint64_t desired,
    uint64_t* out_previous, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts an operation that completes when all one-sided operations have completed that this process
 * started earlier, on |communicator|, towards |rank|. Operations whose requests were destroyed are
 * included. The flush has the outcome of the first of these operations that failed. Operations on
 * other communicators that use the same connections (split, or |share|) count as well. |options|
 * may be NULL. INVALID_ARGUMENT: the options are wrong. OUT_OF_RANGE: the communicator has no such
 * rank. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_flush(
    hetcomm_communicator_t* communicator, int32_t rank, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* A notified put that has arrived. Frozen layout: it has no struct_size and never grows. */
typedef struct hetcomm_notification {
  /* The |notify_value| of the put. */
  uint64_t value;
  /* Rank that started the put, in the communicator of the registration. */
  int32_t source;
  uint32_t reserved;
  /* Offset in the memory, in bytes, at which the bytes of the put begin. */
  uint64_t offset;
  /* Number of bytes of the put. */
  uint64_t length;
} hetcomm_notification_t;

/* Takes the next notification of the registered |memory|, and waits for one for up to |timeout_ns|.
 * 0 means HETCOMM_TIMEOUT. With HETCOMM_TIMEOUT_POLL the call drives communication once. Each
 * notification is given once, in the order of arrival. Notifications that are not taken use up the
 * putting rank's credit, and puts wait while it has none. The loss of a rank and an abort do not
 * end the wait.
 *   TIMED_OUT         No notification has arrived.
 *   STALE_HANDLE      The memory was unregistered while the call waited.
 *   INVALID_ARGUMENT  The memory is not registered.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_wait_notification(hetcomm_memory_t* memory, uint64_t timeout_ns,
                                 hetcomm_notification_t* out_notification) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_ONESIDED_H_ */
