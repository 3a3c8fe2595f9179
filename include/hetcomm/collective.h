/* Declares the collective operations.
 *
 * Every rank of the communicator (or of the list in the options) calls the same operations with the
 * same arguments in the same order. Operations on different lists, and on different communicators,
 * are not ordered with each other. All operations are asynchronous: the buffers belong to the
 * operation until its request has completed. Any operation may wait for all of its ranks. The order
 * in which elements are reduced depends only on ranks, size and algorithm. So all ranks get the
 * same bits, in every run.
 *
 * Shapes. n is the number of ranks that take part, r is this rank's index among them, and |x| is
 * the length of buffer x, which is a whole number of elements. A buffer with one part for each rank
 * has the parts in the order of the ranks. The column "in place" says which two buffers may be the
 * same. If send and receive buffers overlap in another way, the call returns INVALID_ARGUMENT. This
 * check covers buffers in memory that the host can access, and buffers in one memory handle.
 *
 *   operation        lengths                                 in place
 *   broadcast        |buffer| alike on all ranks
 *   reduce           at the root |recv| = |send|             at the root, recv is send
 *   allreduce, scan  |recv| = |send|                         recv is send
 *   allgather        |recv| = n * |send|                     send is part r of recv
 *   reduce_scatter   |send| = n * |recv|                     recv is part r of send
 *   alltoall         |recv| = |send| = n equal parts         no
 *   gather           at the root |recv| = n * |send|         at the root, send is part r of recv
 *   scatter          at the root |send| = n * |recv|         at the root, recv is part r of send
 *
 * The functions with "v" at the end of their names take an array of n buffers, of any lengths,
 * instead of the buffer with parts. This rank's buffer in the array is as long as its counterpart:
 * |recvs[r]| = |send| where recvs is an array, |sends[r]| = |recv| where sends is one, and
 * |recvs[r]| = |sends[r]| in alltoallv. The rule for "in place" is as above, with buffer r for part
 * r. Arrays are copied. Buffers may lie on any devices, different ones on different ranks.
 *
 * Mismatches. If a rank's own lengths do not fit together, its call returns INVALID_ARGUMENT and
 * does not count. The rank may call again. The others wait until it does, or until
 * hetcomm_collective_refuse tells them of the refusal. Ranks whose arguments differ from each other
 * (operation, order, size, type, operator, factor, root, algorithm, flags, lengths of parts) get
 * the outcome MISMATCH, with a text that names the rank and the difference. In alltoallv, gatherv
 * and scatterv a receiver compares the length of each part with the length that the sender sends.
 * HETCOMM_COLLECTIVE_CHECK=0, set on all ranks, turns the comparison of arguments off; then a
 * mismatch has no defined result.
 *
 * Some ranks do not wait for all others in an operation: the root of a broadcast or scatter, the
 * other ranks of a reduce or gather, and ranks between root and leaves in a tree. Such a rank may
 * end the operation with OK before the others have made their calls, even if these turn out to be
 * different. A rank takes data only from ranks that have made the same calls so far. After calls
 * that differ, the next operation that waits for all ranks (barrier, allreduce, allgather,
 * reduce_scatter, alltoall, split of a communicator) therefore ends with MISMATCH on every rank.
 * The ranks that find the difference fail the collective operations on all ranks, without waiting
 * for a further call. In alltoallv, gatherv and scatterv only two ranks know the length of a part.
 * They find a difference when the data arrives, and operations that were called earlier may end
 * with OK. If no call follows, the log reports the difference when the communicator is destroyed.
 *
 * Failures. If an operation fails on one rank, because of a mismatch, its deadline, the loss of a
 * rank, a cancel or a lack of memory, all ranks are affected. The collective operations of the
 * communicator fail on all of them. Pending ones end, and later ones end at once, with a text that
 * names operation, rank, status and reason. On the rank where it failed first, the operation has
 * its own status. All others end with MISMATCH or PEER_LOST if that is the reason, and otherwise
 * with ABORTED. Messages and one-sided operations continue. After a failed operation the contents
 * of its receive buffers are undefined. If it was in place, the data to send is undefined as
 * well. */
#ifndef HETCOMM_COLLECTIVE_H_
#define HETCOMM_COLLECTIVE_H_

#include <hetcomm/datatype.h>
#include <hetcomm/operation.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Flags of a collective operation; they are combined by or. */
enum {
  /* Scan only: excludes this rank's elements. |recv| of the first rank is unchanged. */
  HETCOMM_COLLECTIVE_EXCLUSIVE = 1,
  /* Barrier only: if the deadline passes, the first rank's text names a missing rank. */
  HETCOMM_COLLECTIVE_MONITORED = 2,
  /* Barrier only, together with MONITORED: the text names all missing ranks. */
  HETCOMM_COLLECTIVE_WAIT_ALL = 4
};

typedef struct hetcomm_collective_options {
  /* The caller sets it to sizeof(hetcomm_collective_options_t). */
  size_t struct_size;
  /* Time limit of the operation, from its submission. 0: HETCOMM_TIMEOUT, which is 30 minutes
   * unless set. */
  uint64_t timeout_ns;
  /* Ranks of the communicator that take part, each once, this rank included. Roots and parts are
   * numbered by the position in this list. NULL: all ranks take part, in their order. */
  const int32_t* ranks;
  /* Number of entries of |ranks|. 0 if |ranks| is NULL. */
  size_t rank_count;
  /* Name of the algorithm, such as "ring" or "two_level". NULL: the library chooses by size and by
   * rank placement. */
  const char* algorithm;
  /* Factor of PREMUL_SUM; other operators ignore it. */
  double factor;
  /* Any of HETCOMM_COLLECTIVE_*, combined by or. */
  uint32_t flags;
  /* Has to be 0. */
  uint32_t reserved;
  /* The operation starts when this group is started. NULL: it starts at once. */
  hetcomm_group_t* group;
  /* The operation starts after the work that this stream holds, and later work in the stream waits
   * for it (hetcomm/stream.h). NULL: the operation is not in a stream. */
  hetcomm_stream_t* stream;
} hetcomm_collective_options_t;

/* For all functions below: |options| may be NULL. A call that returns a failure has rejected the
 * operation on this rank: no completion will follow, and the call does not count.
 *   INVALID_ARGUMENT  Lengths do not fit together or are no whole number of elements; type,
 *                     operator or flags are unknown; WAIT_ALL comes without MONITORED; the list of
 *                     ranks is empty, longer than the communicator, has a rank twice or lacks this
 *                     one; a plain pointer is NULL or leads to memory of a device; the group
 *                     belongs to another communicator, or the stream to another context.
 *   OUT_OF_RANGE      There is no such root, a rank of the list is not in the communicator, a
 *                     buffer ends past its memory or the address space, or the buffers together are
 *                     longer than 2^64 - 1 bytes.
 *   UNSUPPORTED       The operation has no such algorithm (the text names those that it has), or
 *                     the operator is not defined for the type.
 * All other outcomes are in the status of the completion record: OK, MISMATCH, TIMED_OUT,
 * CANCELLED, PEER_LOST, UNREACHABLE, ABORTED, OUT_OF_MEMORY, or the status of a device that failed.
 * In a completion record UNSUPPORTED means that the library cannot tell this list of ranks from
 * another one that was used before.
 *
 * Several threads may call these functions at once on different communicators and lists. For one
 * communicator and list, the caller has to make the calls in the same order on all ranks.
 * [any-thread] */

/* Starts a barrier, which completes when all ranks have called it. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_barrier(hetcomm_communicator_t* communicator, const hetcomm_collective_options_t* options,
                hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to copy |buffer| of |root| into |buffer| of all other ranks. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_broadcast(hetcomm_communicator_t* communicator, int32_t root, hetcomm_buffer_t buffer,
                  hetcomm_datatype_t datatype, const hetcomm_collective_options_t* options,
                  hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to reduce |send| of all ranks, element by element, into |recv| of |root|. |recv| is
 * ignored on other ranks. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reduce(
    hetcomm_communicator_t* communicator, int32_t root, hetcomm_buffer_t send,
    hetcomm_buffer_t recv, hetcomm_datatype_t datatype, hetcomm_reduction_t reduction,
    const hetcomm_collective_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to reduce |send| of all ranks, element by element, into |recv| of every rank.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_allreduce(
    hetcomm_communicator_t* communicator, hetcomm_buffer_t send, hetcomm_buffer_t recv,
    hetcomm_datatype_t datatype, hetcomm_reduction_t reduction,
    const hetcomm_collective_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to copy |send| of every rank into its part of |recv| on all ranks. |recv| is n times as
 * long as |send|, and |send| has the same length on all ranks. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_allgather(
    hetcomm_communicator_t* communicator, hetcomm_buffer_t send, hetcomm_buffer_t recv,
    hetcomm_datatype_t datatype, const hetcomm_collective_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to copy |send| of rank i into |recvs|[i] on all ranks, for each i. |recvs| has n buffers,
 * with the same lengths on all ranks. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_allgatherv(
    hetcomm_communicator_t* communicator, hetcomm_buffer_t send, const hetcomm_buffer_t* recvs,
    hetcomm_datatype_t datatype, const hetcomm_collective_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to reduce |send| of all ranks, element by element; part i of the result goes to |recv| of
 * rank i. |send| is n times as long as |recv|, and |recv| has the same length on all ranks.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reduce_scatter(
    hetcomm_communicator_t* communicator, hetcomm_buffer_t send, hetcomm_buffer_t recv,
    hetcomm_datatype_t datatype, hetcomm_reduction_t reduction,
    const hetcomm_collective_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to reduce |sends|[i] of all ranks, element by element, into |recv| of rank i, for each i.
 * |sends| has n buffers, with the same lengths on all ranks. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reduce_scatterv(
    hetcomm_communicator_t* communicator, const hetcomm_buffer_t* sends, hetcomm_buffer_t recv,
    hetcomm_datatype_t datatype, hetcomm_reduction_t reduction,
    const hetcomm_collective_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to copy part i of |send| of rank j into part j of |recv| of rank i, for each i and j.
 * |recv| and |send| have one length, the same on all ranks, and n equal parts of whole elements.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_alltoall(hetcomm_communicator_t* communicator, hetcomm_buffer_t send, hetcomm_buffer_t recv,
                 hetcomm_datatype_t datatype, const hetcomm_collective_options_t* options,
                 hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to copy |sends|[i] of rank j into |recvs|[j] of rank i, for each i and j. Both arrays have
 * n buffers. Each buffer that a rank sends is as long as the buffer into which the other rank
 * receives it. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_alltoallv(
    hetcomm_communicator_t* communicator, const hetcomm_buffer_t* sends,
    const hetcomm_buffer_t* recvs, hetcomm_datatype_t datatype,
    const hetcomm_collective_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to copy |send| of every rank into its part of |recv| of |root|. |send| has the same length
 * on all ranks, and |recv| of the root is n times as long. |recv| is ignored on other ranks.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_gather(
    hetcomm_communicator_t* communicator, int32_t root, hetcomm_buffer_t send,
    hetcomm_buffer_t recv, hetcomm_datatype_t datatype, const hetcomm_collective_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to copy |send| of rank i into |recvs|[i] of |root|, for each i. At the root |recvs| has n
 * buffers, each as long as |send| of its rank. |recvs| is ignored on other ranks and may be NULL
 * there. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_gatherv(
    hetcomm_communicator_t* communicator, int32_t root, hetcomm_buffer_t send,
    const hetcomm_buffer_t* recvs, hetcomm_datatype_t datatype,
    const hetcomm_collective_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to copy part i of |send| of |root| into |recv| of rank i, for each i. |recv| has the same
 * length on all ranks, and |send| of the root is n times as long. |send| is ignored on other ranks.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_scatter(
    hetcomm_communicator_t* communicator, int32_t root, hetcomm_buffer_t send,
    hetcomm_buffer_t recv, hetcomm_datatype_t datatype, const hetcomm_collective_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to copy |sends|[i] of |root| into |recv| of rank i, for each i. At the root |sends| has n
 * buffers, each as long as |recv| of its rank. |sends| is ignored on other ranks and may be NULL
 * there. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_scatterv(
    hetcomm_communicator_t* communicator, int32_t root, const hetcomm_buffer_t* sends,
    hetcomm_buffer_t recv, hetcomm_datatype_t datatype, const hetcomm_collective_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to reduce |send| of all ranks from the first up to and including this one, element by
 * element, into |recv|. HETCOMM_COLLECTIVE_EXCLUSIVE leaves out this rank's elements.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_scan(
    hetcomm_communicator_t* communicator, hetcomm_buffer_t send, hetcomm_buffer_t recv,
    hetcomm_datatype_t datatype, hetcomm_reduction_t reduction,
    const hetcomm_collective_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Tells the other ranks of the communicator that this rank refuses its next collective call. It is
 * for callers that check arguments before they call. Calls on a list of ranks do not count. The
 * other ranks may have made the call already. On them the call fails with MISMATCH and |reason|.
 * The collective operations of the communicator then fail, too, so no rank waits for the deadline.
 * |reason| may be NULL; at most 400 bytes of it are sent. If all ranks refuse the same call, and
 * make the same call next, nothing fails. The function does not wait. The library does not report a
 * call that it has rejected itself, since that call may be made again. The function does nothing
 * once the collective operations have failed or the communicator was aborted. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_collective_refuse(
    hetcomm_communicator_t* communicator, const char* reason) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_COLLECTIVE_H_ */
