/* Declares the collective operations.
 *
 * Every rank of the communicator (or of the list in the options) must call the same operations with
 * the same arguments in the same order. Operations on different lists, and on different
 * communicators, are not ordered with each other. All operations are asynchronous: the buffers
 * belong to the operation until its request has completed. Any operation may wait for all of its
 * ranks. The order in which elements are reduced depends only on ranks, size and algorithm, so all
 * ranks get the same bits in every run.
 *
 * Shapes. n is the number of participating ranks, r is this rank's index among them, and |x| is the
 * length of buffer x, which must be a whole number of elements. A buffer with one part for each
 * rank has the parts in rank order. The column "in place" says which two buffers may be the same.
 * If send and receive buffers overlap in any other way, the call returns INVALID_ARGUMENT. This
 * check covers buffers in memory that the host can access, and buffers in the same memory handle.
 *
 *   operation        lengths                                 in place
 *   broadcast        |buffer| equal on all ranks
 *   reduce           at the root |recv| = |send|             at the root, recv is send
 *   allreduce, scan  |recv| = |send|                         recv is send
 *   allgather        |recv| = n * |send|                     send is part r of recv
 *   reduce_scatter   |send| = n * |recv|                     recv is part r of send
 *   alltoall         |recv| = |send| = n equal parts         no
 *   gather           at the root |recv| = n * |send|         at the root, send is part r of recv
 *   scatter          at the root |send| = n * |recv|         at the root, recv is part r of send
 *
 * Functions whose names end in "v" take an array of n buffers, of any lengths, in place of the
 * buffer with parts. This rank's buffer in the array must be as long as its counterpart: |recvs[r]|
 * = |send| if recvs is an array, |sends[r]| = |recv| if sends is an array, and |recvs[r]| =
 * |sends[r]| in alltoallv. The rules for "in place" are as above, with buffer r in place of part r.
 * Arrays are copied. Buffers may be on any device, and on different devices on different ranks.
 *
 * Mismatches. If the lengths in a rank's call are inconsistent, the call returns INVALID_ARGUMENT
 * and does not count. The rank can call again. The other ranks wait until it does, or until
 * hetcomm_collective_refuse notifies them of the refusal. If the arguments of different ranks do
 * not match (operation, order, size, type, operator, factor, root, algorithm, flags, lengths of
 * parts), these ranks get the outcome MISMATCH, with a text that names the rank and the difference.
 * In alltoallv, gatherv and scatterv the receiver compares the expected length of each part with
 * the length that the sender sends. Setting HETCOMM_COLLECTIVE_CHECK=0 on all ranks disables the
 * comparison of arguments; the result of a mismatch is then undefined.
 *
 * In some operations not every rank waits for all others: the root of a broadcast or scatter, the
 * non-root ranks of a reduce or gather, and ranks between root and leaves in a tree. On such a rank
 * the operation may end with OK before the others have made their calls, even if their calls later
 * turn out to differ. A rank accepts data only from ranks that have made the same calls so far.
 * After calls that differ, the next operation that waits for all ranks (barrier, allreduce,
 * allgather, reduce_scatter, alltoall, split of a communicator) therefore ends with MISMATCH on
 * every rank. The ranks that detect the difference fail the collective operations on all ranks,
 * without waiting for a further call. In alltoallv, gatherv and scatterv only two ranks have the
 * length of a part. They detect a difference when the data arrives, and operations that were called
 * earlier can end with OK. If no further call follows, the log reports the difference when the
 * communicator is destroyed.
 *
 * Failures. If an operation fails on one rank, because of a mismatch, its deadline, the loss of a
 * rank, a cancel or a lack of memory, the collective operations of the communicator fail on all
 * ranks. Pending operations end, and later ones end immediately, with a text that names the
 * operation, rank, status and reason of the first failure. On the rank where it failed first, the
 * operation has the status of its failure. All other operations end with MISMATCH or PEER_LOST if
 * that is the reason, and otherwise with ABORTED. Messages and one-sided operations continue. After
 * a failed operation the contents of its receive buffers are undefined. If the operation was in
 * place, the contents of its send buffers are undefined too. */
#ifndef HETCOMM_COLLECTIVE_H_
#define HETCOMM_COLLECTIVE_H_

#include <hetcomm/datatype.h>
#include <hetcomm/operation.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Flags of a collective operation, combined by bitwise OR. */
enum {
  /* Scan only: excludes this rank's elements. The first rank's |recv| is unchanged. */
  HETCOMM_COLLECTIVE_EXCLUSIVE = 1,
  /* Barrier only: if the deadline passes, the text on the first rank names a missing rank. */
  HETCOMM_COLLECTIVE_MONITORED = 2,
  /* Barrier only, together with MONITORED: the text on the first rank names all missing ranks. */
  HETCOMM_COLLECTIVE_WAIT_ALL = 4
};

typedef struct hetcomm_collective_options {
  /* The caller sets it to sizeof(hetcomm_collective_options_t). */
  size_t struct_size;
  /* Time limit of the operation, counted from its submission. 0: HETCOMM_TIMEOUT, whose default is
   * 30 minutes. */
  uint64_t timeout_ns;
  /* Ranks of the communicator that participate, each once, including this rank. Roots and parts are
   * numbered by the position in this list. NULL: all ranks participate, in rank order. */
  const int32_t* ranks;
  /* Number of entries in |ranks|. Must be 0 if |ranks| is NULL. */
  size_t rank_count;
  /* Name of the algorithm, such as "ring" or "two_level". NULL: the library selects one by size and
   * rank placement. */
  const char* algorithm;
  /* Factor of PREMUL_SUM; other operators ignore it. */
  double factor;
  /* Any of HETCOMM_COLLECTIVE_*, combined by bitwise OR. */
  uint32_t flags;
  /* Must be 0. */
  uint32_t reserved;
  /* The operation starts when this group is started. NULL: it starts immediately. */
  hetcomm_group_t* group;
  /* The operation starts after the work that was submitted to this stream before it, and later work
   * in the stream waits for it (hetcomm/stream.h). NULL: the operation is not in a stream. */
  hetcomm_stream_t* stream;
} hetcomm_collective_options_t;

/* For all functions below: |options| may be NULL. A call that returns a failure has rejected the
 * operation on this rank: the operation has no completion, and the call does not count.
 *   INVALID_ARGUMENT  Lengths are inconsistent or not a whole number of elements; type, operator or
 *                     flags are unknown; WAIT_ALL is set without MONITORED; the list of ranks is
 *                     empty, is longer than the communicator, contains a rank twice or does not
 *                     contain this one; a plain pointer is NULL or points to device memory; the
 *                     group belongs to another communicator, or the stream to another context.
 *   OUT_OF_RANGE      There is no such root, a rank in the list is not in the communicator, a
 *                     buffer extends past its memory or the address space, or the total length of
 *                     the buffers exceeds 2^64 - 1 bytes.
 *   UNSUPPORTED       The operation does not have this algorithm (the text lists those it has), or
 *                     the operator is not defined for the type.
 * All other outcomes are in the status of the completion record: OK, MISMATCH, TIMED_OUT,
 * CANCELLED, PEER_LOST, UNREACHABLE, ABORTED, OUT_OF_MEMORY, or the status of a device that failed.
 * In a completion record UNSUPPORTED means that the library cannot distinguish this list of ranks
 * from one that was used earlier.
 *
 * Multiple threads may call these functions concurrently on different communicators and lists. For
 * each communicator and list, the caller must make the calls in the same order on all ranks.
 * [any-thread] */

/* Starts a barrier, which completes when all ranks have called it. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_barrier(hetcomm_communicator_t* communicator, const hetcomm_collective_options_t* options,
                hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to copy the |buffer| of |root| into the |buffer| of every other rank. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_broadcast(hetcomm_communicator_t* communicator, int32_t root, hetcomm_buffer_t buffer,
                  hetcomm_datatype_t datatype, const hetcomm_collective_options_t* options,
                  hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to reduce the |send| buffers of all ranks, element by element, into |recv| on |root|.
 * |recv| is ignored on other ranks. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reduce(
    hetcomm_communicator_t* communicator, int32_t root, hetcomm_buffer_t send,
    hetcomm_buffer_t recv, hetcomm_datatype_t datatype, hetcomm_reduction_t reduction,
    const hetcomm_collective_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to reduce the |send| buffers of all ranks, element by element, into |recv| on every rank.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_allreduce(
    hetcomm_communicator_t* communicator, hetcomm_buffer_t send, hetcomm_buffer_t recv,
    hetcomm_datatype_t datatype, hetcomm_reduction_t reduction,
    const hetcomm_collective_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to copy the |send| buffer of every rank into that rank's part of |recv| on all ranks.
 * |recv| is n times as long as |send|, and |send| has the same length on all ranks. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_allgather(
    hetcomm_communicator_t* communicator, hetcomm_buffer_t send, hetcomm_buffer_t recv,
    hetcomm_datatype_t datatype, const hetcomm_collective_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to copy the |send| buffer of each rank i into |recvs|[i] on all ranks. |recvs| has n
 * buffers, with the same lengths on all ranks. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_allgatherv(
    hetcomm_communicator_t* communicator, hetcomm_buffer_t send, const hetcomm_buffer_t* recvs,
    hetcomm_datatype_t datatype, const hetcomm_collective_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to reduce the |send| buffers of all ranks, element by element. Part i of the result is
 * written to |recv| on rank i. |send| is n times as long as |recv|, and |recv| has the same length
 * on all ranks. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reduce_scatter(
    hetcomm_communicator_t* communicator, hetcomm_buffer_t send, hetcomm_buffer_t recv,
    hetcomm_datatype_t datatype, hetcomm_reduction_t reduction,
    const hetcomm_collective_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to reduce the |sends|[i] of all ranks, element by element, into |recv| on rank i, for each
 * i. |sends| has n buffers, with the same lengths on all ranks. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reduce_scatterv(
    hetcomm_communicator_t* communicator, const hetcomm_buffer_t* sends, hetcomm_buffer_t recv,
    hetcomm_datatype_t datatype, hetcomm_reduction_t reduction,
    const hetcomm_collective_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to copy part i of rank j's |send| buffer into part j of rank i's |recv| buffer, for each i
 * and j. |recv| and |send| have the same length, which is the same on all ranks, and consist of n
 * equal parts of whole elements. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_alltoall(hetcomm_communicator_t* communicator, hetcomm_buffer_t send, hetcomm_buffer_t recv,
                 hetcomm_datatype_t datatype, const hetcomm_collective_options_t* options,
                 hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to copy rank j's |sends|[i] into rank i's |recvs|[j], for each i and j. Both arrays have n
 * buffers. Each buffer that a rank sends must be as long as the buffer that it is received into.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_alltoallv(
    hetcomm_communicator_t* communicator, const hetcomm_buffer_t* sends,
    const hetcomm_buffer_t* recvs, hetcomm_datatype_t datatype,
    const hetcomm_collective_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to copy the |send| buffer of every rank into that rank's part of |recv| on |root|. |send|
 * has the same length on all ranks, and the root's |recv| is n times as long. |recv| is ignored on
 * other ranks. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_gather(
    hetcomm_communicator_t* communicator, int32_t root, hetcomm_buffer_t send,
    hetcomm_buffer_t recv, hetcomm_datatype_t datatype, const hetcomm_collective_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to copy the |send| buffer of each rank i into |recvs|[i] on |root|. At the root |recvs|
 * has n buffers, each as long as the |send| of its rank. |recvs| is ignored on other ranks and may
 * be NULL there. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_gatherv(
    hetcomm_communicator_t* communicator, int32_t root, hetcomm_buffer_t send,
    const hetcomm_buffer_t* recvs, hetcomm_datatype_t datatype,
    const hetcomm_collective_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to copy part i of |root|'s |send| buffer into |recv| on rank i, for each i. |recv| has the
 * same length on all ranks, and the root's |send| is n times as long. |send| is ignored on other
 * ranks. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_scatter(
    hetcomm_communicator_t* communicator, int32_t root, hetcomm_buffer_t send,
    hetcomm_buffer_t recv, hetcomm_datatype_t datatype, const hetcomm_collective_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to copy |root|'s |sends|[i] into |recv| on rank i, for each i. At the root |sends| has n
 * buffers, each as long as the |recv| of its rank. |sends| is ignored on other ranks and may be
 * NULL there. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_scatterv(
    hetcomm_communicator_t* communicator, int32_t root, const hetcomm_buffer_t* sends,
    hetcomm_buffer_t recv, hetcomm_datatype_t datatype, const hetcomm_collective_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to reduce the |send| buffers of the first rank up to and including this one, element by
 * element, into |recv|. HETCOMM_COLLECTIVE_EXCLUSIVE excludes this rank's elements. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_scan(
    hetcomm_communicator_t* communicator, hetcomm_buffer_t send, hetcomm_buffer_t recv,
    hetcomm_datatype_t datatype, hetcomm_reduction_t reduction,
    const hetcomm_collective_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Notifies the other ranks of the communicator that this rank will not make its next collective
 * call. The function is for callers that check arguments before they call. It does not apply to
 * calls on a list of ranks. The other ranks may already have made the call. On those ranks the call
 * fails with MISMATCH and |reason|. The collective operations of the communicator then fail too, so
 * no rank waits until its deadline. |reason| may be NULL; at most 400 bytes of it are sent. If all
 * ranks refuse the same call, and make the same call next, nothing fails. The function does not
 * wait. The library itself sends no such notification when it rejects a call, because the caller
 * may repeat the call. The function has no effect once the collective operations have failed or the
 * communicator was aborted. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_collective_refuse(
    hetcomm_communicator_t* communicator, const char* reason) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_COLLECTIVE_H_ */
