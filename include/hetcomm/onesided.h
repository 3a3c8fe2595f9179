/* Declares one-sided operations: put, get and atomics on memory of another rank.
 *
 *   owner                                         others
 *     hetcomm_memory_register (rights)
 *     hetcomm_memory_export  --bytes, by any way-->  hetcomm_memory_import
 *                                                    hetcomm_put, _get, _fetch_add, ...
 *     hetcomm_memory_wait_notification  <----------  put with HETCOMM_OPERATION_NOTIFY
 *     hetcomm_memory_unregister
 *
 * An operation completes when it has taken effect at the owner: the bytes of a put are then in
 * place, and visible to the owner and to later operations of all ranks. Operations are not ordered
 * with each other or with messages. Before you start an operation that depends on an earlier one,
 * wait for the earlier one, or flush. Until a put has completed, or its notification has arrived,
 * the bytes that it writes are undefined and the owner must not access them: if a connection
 * breaks, they can be written again.
 *
 * The owner's process performs the parts of an operation that the network cannot perform, but only
 * while it makes progress. So an owner whose context has no progress thread
 * (HETCOMM_PROGRESS_CALLER) must promise to keep calling functions that make progress
 * (HETCOMM_REGISTER_CALLER_PROGRESS).
 *
 * A call that returns a failure has rejected the operation, which then has no completion.
 * hetcomm_put, hetcomm_get and the atomics reject operations with these codes:
 *   INVALID_ARGUMENT   The options are invalid, a plain pointer is NULL or points to device memory,
 *                      an operation other than a put has HETCOMM_OPERATION_NOTIFY, or the offset of
 *                      an atomic is not a multiple of 8.
 *   OUT_OF_RANGE       The range extends past the remote memory, or the buffer past its memory.
 *   PERMISSION_DENIED  The owner did not grant the access.
 *
 * All other outcomes are in the status of the completion record:
 *   OK               The operation has taken effect.
 *   STALE_HANDLE     The owner has unregistered the memory.
 *   OUTCOME_UNKNOWN  A request for an atomic was sent to the owner, but no reply arrived.
 *   TIMED_OUT        The deadline passed. A put may have written some of its bytes.
 *   CANCELLED        The caller cancelled the operation. A put may have written some of its bytes.
 *   PEER_LOST        The owner died or left.
 *   UNREACHABLE      The owner may be alive, but no connection to it can be made.
 *   ABORTED          The communicator, or the one that the memory is registered on, was aborted. Or
 *                    the owner failed; the text has the owner's rank, status and reason.
 *   OUT_OF_MEMORY    Memory ran out on either side.
 *   another status   The owner refused the operation, or a device of this rank failed; the text
 *                    says which. */
#ifndef HETCOMM_ONESIDED_H_
#define HETCOMM_ONESIDED_H_

#include <hetcomm/operation.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Access that peers have to a registered memory. Flags are combined by bitwise OR. */
enum {
  /* Peers may put. */
  HETCOMM_ACCESS_PUT = 1,
  /* Peers may get. */
  HETCOMM_ACCESS_GET = 2,
  /* Peers may perform atomics. Requires memory that the CPU can access. */
  HETCOMM_ACCESS_ATOMIC = 4,
  /* Peers may do all of the above. */
  HETCOMM_ACCESS_ALL = 7
};

/* Flags of a registration. */
enum {
  /* In a context without a progress thread: this process promises to call functions that wait or
   * test while peers use the memory. Between its calls the peers' operations may not make
   * progress. */
  HETCOMM_REGISTER_CALLER_PROGRESS = 1
};

/* Lets the ranks of |communicator|, which must be of the memory's context, use |memory| until it is
 * unregistered. |access| is a combination of HETCOMM_ACCESS_*, and |flags| of HETCOMM_REGISTER_*.
 * If |access| is HETCOMM_ACCESS_ALL and the memory is from hetcomm_memory_allocate, ranks on the
 * owner's host map it and access it without the owner's help. HETCOMM_SHM_MAP=off prevents this.
 * docs/security.md describes how far the owner has to trust ranks that map its memory. While a
 * memory is registered, neither it nor its communicator can be destroyed (BUSY).
 *   BUSY              The memory is already registered.
 *   INVALID_ARGUMENT  |access| is 0 or has unknown bits, |flags| has unknown bits, or the memory
 *                     and the communicator belong to different contexts.
 *   UNSUPPORTED       |access| has HETCOMM_ACCESS_ATOMIC and the CPU cannot access the memory. Or
 *                     the context has no progress thread and HETCOMM_REGISTER_CALLER_PROGRESS is
 *                     not set.
 *   ABORTED           The communicator was aborted.
 * [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_register(hetcomm_memory_t* memory, hetcomm_communicator_t* communicator,
                        uint32_t access, uint32_t flags) HETCOMM_NOEXCEPT;

/* Revokes all access and waits until no peer uses the memory any more. Pending operations of peers
 * fail with STALE_HANDLE. Once the call has returned OK, the memory is no longer read or written,
 * provided that peers that had mapped it follow the protocol. Notifications that were not received
 * are dropped. A |timeout_ns| of 0 means HETCOMM_TIMEOUT. TIMED_OUT: a peer is still using the
 * memory, or a copy is still running. The call can then be repeated, and the memory cannot be
 * destroyed until it has returned OK. INVALID_ARGUMENT: the memory is not registered. [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_unregister(hetcomm_memory_t* memory, uint64_t timeout_ns) HETCOMM_NOEXCEPT;

/* Maximum size of the bytes that hetcomm_memory_export() writes. */
#define HETCOMM_EXPORT_MAX_BYTES 1024

/* Writes a description of the registered memory to |out_bytes|, and its size, at most
 * HETCOMM_EXPORT_MAX_BYTES, to |*out_size|. A peer needs the description to use the memory. It is
 * plain data, which can be sent to the peer in any way. It becomes invalid when the memory is
 * unregistered, even if the memory is registered again. OUT_OF_RANGE: the description has more than
 * |capacity| bytes, and nothing was written. INVALID_ARGUMENT: the memory is not registered. The
 * call must not run concurrently with hetcomm_memory_unregister. [any-thread] */
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

/* Makes a remote memory from |bytes|, the description of |size| bytes that hetcomm_memory_export()
 * wrote. The description is copied. The call does not communicate. The caller must destroy the
 * remote memory before |communicator|.
 *   INVALID_ARGUMENT   The bytes are malformed.
 *   PERMISSION_DENIED  The memory is registered on a communicator that shares no connections with
 *                      |communicator|: the two are of different jobs or epochs, or are not related
 *                      by a split or by |share|.
 *   OUT_OF_RANGE       The owner of the memory is not in |communicator|.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_memory_import(hetcomm_communicator_t* communicator, const void* bytes, size_t size,
                      hetcomm_remote_memory_t** out_remote) HETCOMM_NOEXCEPT;

/* Describes a remote memory. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_remote_memory_info(
    const hetcomm_remote_memory_t* remote, hetcomm_remote_memory_info_t* out_info) HETCOMM_NOEXCEPT;

/* Destroys the handle without affecting the memory itself. BUSY: operations on it are pending; the
 * call has changed nothing. NULL is accepted. [exclusive] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_remote_memory_destroy(hetcomm_remote_memory_t* remote) HETCOMM_NOEXCEPT;

/* Starts to write |buffer| to |remote|, starting at |offset|. The buffer belongs to the operation
 * until the operation has completed. With HETCOMM_OPERATION_NOTIFY in the options the owner is
 * notified with options->notify_value once all bytes are in place. |options| may be NULL. The top
 * of this header lists the errors.
 *
 * When an RDMA connection has failed, or a put has to end early, bytes of the put may still be in
 * the network. The put then completes, with whatever outcome, only after the owner has closed that
 * connection. This also applies to a put that ends by its deadline, a cancel or an abort. So a put
 * never overwrites data that is written after it has completed. The owner closes the connection
 * when it makes progress, or when it dies. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_put(
    hetcomm_remote_memory_t* remote, uint64_t offset, hetcomm_buffer_t buffer,
    const hetcomm_operation_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to read |remote|, starting at |offset|, into |buffer|. In all other respects the call
 * works like hetcomm_put. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_get(
    hetcomm_remote_memory_t* remote, uint64_t offset, hetcomm_buffer_t buffer,
    const hetcomm_operation_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to add |addend| to the 64-bit word at |offset|, and stores the word's previous value in
 * |*out_previous|, which belongs to the operation until the operation has completed. |out_previous|
 * may be NULL. The word has the owner's byte order. |offset| and the word's address at the owner
 * must be multiples of 8; a misaligned address ends the operation with INVALID_ARGUMENT. The
 * addition is atomic with respect to all other hetcomm atomics on the word, over any transport, and
 * to the owner's own lock-free atomic instructions. It is performed at most once. The outcome is
 * OUTCOME_UNKNOWN if a request was sent to the owner but no reply arrived, because the owner was
 * lost, the deadline passed or the caller cancelled. |options| may be NULL. The top of this header
 * lists the other errors. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_fetch_add(
    hetcomm_remote_memory_t* remote, uint64_t offset, uint64_t addend, uint64_t* out_previous,
    const hetcomm_operation_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to write |desired| to the 64-bit word at |offset| if the word equals |expected|, and
 * stores the word's previous value in |*out_previous|. The word was written if its previous value
 * equals |expected|. In all other respects the call works like hetcomm_fetch_add. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_compare_swap(
    hetcomm_remote_memory_t* remote, uint64_t offset, uint64_t expected, uint64_t desired,
    uint64_t* out_previous, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts an operation that completes when all one-sided operations that this process has started
 * earlier on |communicator| to |rank| have completed. This includes operations whose requests were
 * destroyed, and operations on other communicators that use the same connections (split, or
 * |share|). If some of these operations fail, the flush has the outcome of the first one that
 * failed. |options| may be NULL. INVALID_ARGUMENT: the options are invalid. OUT_OF_RANGE: the
 * communicator has no such rank. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_flush(
    hetcomm_communicator_t* communicator, int32_t rank, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Notification of a put that has arrived. The structure's layout is frozen: it has no struct_size
 * and never grows. */
typedef struct hetcomm_notification {
  /* The |notify_value| of the put. */
  uint64_t value;
  /* Rank that started the put, in the communicator of the registration. */
  int32_t source;
  uint32_t reserved;
  /* Offset in the memory, in bytes, of the first byte of the put. */
  uint64_t offset;
  /* Number of bytes of the put. */
  uint64_t length;
} hetcomm_notification_t;

/* Receives the next notification of the registered |memory|, waiting for one for up to
 * |timeout_ns|. A |timeout_ns| of 0 means HETCOMM_TIMEOUT. With HETCOMM_TIMEOUT_POLL the call only
 * makes progress once. Each notification is delivered once, in the order of arrival. Notifications
 * that are not received use up credits of the rank that puts; its puts wait while it has no
 * credits. The loss of a rank or an abort does not end the wait.
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
