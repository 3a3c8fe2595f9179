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
 * with each other, nor with messages: wait for one, or flush, before starting one that builds on
 * it. Until a put has completed, or its notification has come, the bytes that it writes are
 * undefined and the owner must not touch them: after a broken connection they may be written again.
 *
 * The owner's process does, while it drives communication, what the network cannot do by itself. A
 * context that makes progress only in its calls (HETCOMM_PROGRESS_CALLER) therefore has to say that
 * it will keep calling (HETCOMM_REGISTER_CALLER_PROGRESS).
 *
 * A call that returns a failure has rejected the operation, and no completion will follow.
 * hetcomm_put, hetcomm_get and the atomics reject with:
 *   INVALID_ARGUMENT   The options are wrong, a plain pointer is NULL or leads to memory of a
 *                      device, only a put may notify, or the offset of an atomic is no multiple of
 *                      8.
 *   OUT_OF_RANGE       The range ends past the remote memory, or the buffer past its memory.
 *   PERMISSION_DENIED  The owner did not grant the access.
 *
 * All else is the status in the completion record:
 *   OK                      It has happened.
 *   STALE_HANDLE            The owner has unregistered the memory.
 *   OUTCOME_UNKNOWN         An atomic was asked for and its answer did not come.
 *   TIMED_OUT, CANCELLED    The deadline passed, or the caller cancelled it. A put may have written
 *                           any part of its bytes.
 *   PEER_LOST, UNREACHABLE  The owner died or left; it lives and cannot be connected to.
 *   ABORTED                 The communicator, or that of the registration, was aborted, or the
 *                           owner failed: the text has its rank, its status and its reason.
 *   OUT_OF_MEMORY           Memory ran out on either side.
 *   another status          The owner refused it, or a device of this rank failed; the text says
 *                           which.                                                              */
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
   * the memory. Between its calls their operations may stand still. */
  HETCOMM_REGISTER_CALLER_PROGRESS = 1
};

/* Lets the ranks of |communicator|, which has to be of the memory's context, use |memory| until it
 * is unregistered. |access| is made of HETCOMM_ACCESS_*, |flags| of HETCOMM_REGISTER_*. Ranks of
 * one host map memory of hetcomm_memory_allocate that grants HETCOMM_ACCESS_ALL, unless
 * HETCOMM_SHM_MAP=off, and use it without the owner's help; docs/security.md says what that trusts
 * them with. A registered memory cannot be freed, nor its communicator destroyed (BUSY).
 *   BUSY              The memory is registered already.
 *   INVALID_ARGUMENT  |access| is 0 or has unknown bits, |flags| has unknown bits, or memory and
 *                     communicator are of different contexts.
 *   UNSUPPORTED       The memory is to grant atomics and the CPU cannot touch it; or the context
 *                     has no background thread and HETCOMM_REGISTER_CALLER_PROGRESS is not set.
 *   ABORTED           The communicator was aborted.
 * [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_register(hetcomm_memory_t* memory, hetcomm_communicator_t* communicator,
                        uint32_t access, uint32_t flags) HETCOMM_NOEXCEPT;

/* Ends all access and waits until peers have let go. Operations of peers that are under way fail
 * with STALE_HANDLE. When the call has returned OK nothing of the memory is read or written any
 * more, as far as peers that had it mapped keep to the protocol. Notifications that were not taken
 * are dropped. |timeout_ns| 0 means HETCOMM_TIMEOUT. TIMED_OUT: a peer did not let go, or a copy
 * still runs; the call can be made again, and until it has returned OK the memory cannot be freed.
 * INVALID_ARGUMENT: the memory is not registered. [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_unregister(hetcomm_memory_t* memory, uint64_t timeout_ns) HETCOMM_NOEXCEPT;

/* Largest size of exported bytes. */
#define HETCOMM_EXPORT_MAX_BYTES 1024

/* Writes the bytes that a peer needs to use the registered memory to |out_bytes|, and their number,
 * at most HETCOMM_EXPORT_MAX_BYTES, to |*out_size|. They are plain data, to be sent in any way, and
 * are of no use once the memory is unregistered, even if it is registered again. OUT_OF_RANGE: they
 * are more than |capacity|, and nothing was written. INVALID_ARGUMENT: the memory is not
 * registered. The call must not run beside hetcomm_memory_unregister. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_export(const hetcomm_memory_t* memory, size_t capacity, void* out_bytes,
                      size_t* out_size) HETCOMM_NOEXCEPT;

/* Registered memory of a rank, as another rank, or the same one, sees it. */
typedef struct hetcomm_remote_memory hetcomm_remote_memory_t;

typedef struct hetcomm_remote_memory_info_t {
  /* The caller sets it to sizeof(hetcomm_remote_memory_info_t). */
  size_t struct_size;
  /* Rank of the owner, in the communicator of the import. */
  int32_t rank;
  /* Access that the owner granted, HETCOMM_ACCESS_*. */
  uint32_t access;
  /* Size of the memory. */
  uint64_t size_bytes;
} hetcomm_remote_memory_info_t;

/* Makes a remote memory of |size| exported |bytes|, which are copied. Does not communicate. Release
 * it before |communicator| is destroyed.
 *   INVALID_ARGUMENT   The bytes cannot be read.
 *   PERMISSION_DENIED  They were exported on a communicator that shares no connections with
 *                      |communicator|: one of another job or epoch, or one that neither split nor
 *                      |share| joins with it.
 *   OUT_OF_RANGE       Their owner is not in |communicator|.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_import(hetcomm_communicator_t* communicator, const void* bytes, size_t size,
                      hetcomm_remote_memory_t** out_remote) HETCOMM_NOEXCEPT;

/* Describes a remote memory. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_remote_memory_info(
    const hetcomm_remote_memory_t* remote, hetcomm_remote_memory_info_t* out_info) HETCOMM_NOEXCEPT;

/* Destroys the handle; the memory itself is not concerned. BUSY: operations on it are pending;
 * then nothing has changed. NULL is accepted. [exclusive] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_remote_memory_destroy(hetcomm_remote_memory_t* remote) HETCOMM_NOEXCEPT;

/* Starts to write |buffer| to |remote| from |offset| on. The buffer belongs to the operation until
 * it has completed. With HETCOMM_OPERATION_NOTIFY in the options the owner is notified with
 * options->notify_value once all bytes are in place. |options| may be NULL. The errors are those
 * above.
 *
 * Where the network may still hold bytes of a put (RDMA), its end waits until the owner has given
 * up that connection, an end by deadline, cancel or abort too. What others write after the end of a
 * put is therefore never overwritten by it. The owner gives the connection up when it makes
 * progress, or dies. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_put(
    hetcomm_remote_memory_t* remote, uint64_t offset, hetcomm_buffer_t buffer,
    const hetcomm_operation_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to read |remote| from |offset| on into |buffer|. Otherwise as hetcomm_put. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_get(
    hetcomm_remote_memory_t* remote, uint64_t offset, hetcomm_buffer_t buffer,
    const hetcomm_operation_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to add |addend| to the 64-bit word at |offset|, and gives its value before in
 * |*out_previous|, which belongs to the operation until it has completed and may be NULL. The word
 * has the owner's byte order. |offset| and the word's address at the owner are multiples of 8; a
 * wrong address ends the operation with INVALID_ARGUMENT. The addition is atomic with all other
 * hetcomm atomics on the word, by whatever way they come, and with the owner's own lock-free atomic
 * instructions. It happens at most once. The outcome is OUTCOME_UNKNOWN when it was asked for and
 * its answer did not come, because the owner was lost, the deadline passed or it was cancelled.
 * |options| may be NULL. The other errors are those above. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_fetch_add(
    hetcomm_remote_memory_t* remote, uint64_t offset, uint64_t addend, uint64_t* out_previous,
    const hetcomm_operation_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to write |desired| to the 64-bit word at |offset| if it equals |expected|, and gives its
 * value before in |*out_previous|: it was written if that is |expected|. Otherwise as
 * hetcomm_fetch_add. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_compare_swap(
    hetcomm_remote_memory_t* remote, uint64_t offset, uint64_t expected, uint64_t desired,
    uint64_t* out_previous, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts an operation that completes when all one-sided operations have that this process started
 * before, on |communicator|, towards |rank|, also those whose requests were destroyed. Its outcome
 * is that of the first of them that failed. Operations on other communicators that use the same
 * connections (split, or |share|) count as well. |options| may be NULL. INVALID_ARGUMENT: the
 * options are wrong. OUT_OF_RANGE: the communicator has no such rank. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_flush(
    hetcomm_communicator_t* communicator, int32_t rank, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* A notified put that has arrived. Frozen layout: it has no struct_size and never grows. */
typedef struct hetcomm_notification {
  /* The |notify_value| of the put. */
  uint64_t value;
  /* Rank that put, in the communicator of the registration. */
  int32_t source;
  uint32_t reserved;
  /* Where the bytes of the put begin in the memory. */
  uint64_t offset;
  /* Number of bytes of the put. */
  uint64_t length;
} hetcomm_notification_t;

/* Takes the next notification of the registered |memory|, and waits for one for up to |timeout_ns|;
 * 0 means HETCOMM_TIMEOUT, and HETCOMM_TIMEOUT_POLL drives communication once. Each notification is
 * given once, in the order of arrival. Those that are not taken cost the putting rank credit: it
 * waits when it has none. The loss of a rank and an abort do not end the wait.
 *   TIMED_OUT         There is none.
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
