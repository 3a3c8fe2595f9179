/* Collective operations.
 *
 * Every rank of the communicator (or of the list in the options) calls the same operations with the
 * same arguments in the same order. Operations on different lists, and on different communicators,
 * are not ordered with each other. All are asynchronous: the buffers belong to the operation until
 * its request has completed. Any operation may wait for all of its ranks. The order in which
 * elements are reduced depends on ranks, size and algorithm only, so that all ranks get the same
 * bits, in every run.
 *
 * Shapes. n is the number of ranks that take part, r is this rank's place among them, and |x| is
 * the length of buffer x, a whole number of elements. A buffer that has one part for each rank has
 * them in the order of the ranks. In place means that two buffers may be one. A call whose buffers
 * to send and to receive into overlap in another way gets INVALID_ARGUMENT, where they are in
 * memory that the host reaches or in one memory handle.
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
 * The forms with "v" take an array of n buffers, of any lengths, instead of the one with parts. The
 * buffer of this rank in it is as long as its counterpart: |recvs[r]| = |send| where recvs is an
 * array, |sends[r]| = |recv| where sends is one, and |recvs[r]| = |sends[r]| in alltoallv. In place
 * is as above, with buffer r for part r. Arrays are copied. Buffers may lie on any devices,
 * different ones on different ranks.
 *
 * Mismatches. A rank whose own lengths do not fit together gets INVALID_ARGUMENT from the call,
 * which then does not count: it may call again, and the others wait for that, or until
 * hetcomm_collective_refuse tells them. Ranks whose arguments differ from each other (operation,
 * order, size, type, operator, factor, root, algorithm, flags, lengths of parts) get the outcome
 * MISMATCH, with a text that says which rank differs in what. In alltoallv, gatherv and scatterv a
 * receiver compares the length of each part with what the sender sends. HETCOMM_COLLECTIVE_CHECK=0,
 * set on all ranks, turns the comparison of arguments off; then a mismatch has no defined result.
 *
 * A rank that does not wait for the others in an operation may end it with OK before they have made
 * their calls, and so where they make other ones. That is the root of a broadcast or scatter, a
 * rank that is not the root of a reduce or gather, and a rank between them in a tree. A rank takes
 * data only from ranks that have made the same calls so far. So after calls that differ, the next
 * operation that waits for all ranks (barrier, allreduce, allgather, reduce_scatter, alltoall,
 * split of a communicator) ends with MISMATCH on every rank. The ranks that find the difference
 * fail the collective operations on all ranks, without waiting for a further call. The length of a
 * part of alltoallv, gatherv or scatterv is known to two ranks, and a difference comes out with its
 * data: what was called before that may end with OK. Where no call follows, the log says what was
 * found when the communicator is destroyed.
 *
 * Failures. An operation that fails on one rank, by a mismatch, its deadline, the loss of a rank, a
 * cancel or for want of memory, fails the collective operations of the communicator on all ranks:
 * those under way end, and later ones end at once, with a text that names operation, rank, status
 * and reason. The operation has its own status on the rank where it failed first. All others have
 * MISMATCH or PEER_LOST where that is the reason, and ABORTED where it is another one. Messages and
 * one-sided operations go on. What an operation that failed has left in its receive buffers is not
 * defined, and in place that holds for what it was to send.                                      */
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
  /* Barrier only: at the deadline the first rank says who is missing. */
  HETCOMM_COLLECTIVE_MONITORED = 2,
  /* Barrier only, together with MONITORED: all missing ranks are named and not one alone. */
  HETCOMM_COLLECTIVE_WAIT_ALL = 4
};

typedef struct hetcomm_collective_options {
  /* The caller sets it to sizeof(hetcomm_collective_options_t). */
  size_t struct_size;
  /* Deadline of the operation, counted from its submission. 0: HETCOMM_TIMEOUT, which is 30 minutes
   * unless set. */
  uint64_t timeout_ns;
  /* Ranks of the communicator that take part, this one among them, each once. Roots and parts are
   * counted by the place in this list. NULL: all ranks take part, in their order. */
  const int32_t* ranks;
  /* Length of |ranks|; 0 where that is NULL. */
  size_t rank_count;
  /* Name of the algorithm, such as "ring" or "two_level". NULL: the library chooses by size and by
   * rank placement. */
  const char* algorithm;
  /* Factor of PREMUL_SUM; other operators ignore it. */
  double factor;
  /* HETCOMM_COLLECTIVE_*. */
  uint32_t flags;
  /* Has to be 0. */
  uint32_t reserved;
  /* The operation starts when this group is started. NULL: it starts at once. */
  hetcomm_group_t* group;
  /* The operation starts after what this stream holds, and the stream waits for it
   * (hetcomm/stream.h). NULL: it is in no stream's order. */
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
 * All else is the status in the completion record: OK, MISMATCH, TIMED_OUT, CANCELLED, PEER_LOST,
 * UNREACHABLE, ABORTED, OUT_OF_MEMORY, UNSUPPORTED (this list of ranks cannot be told from another
 * one that was used before), or that of a device that failed.
 *
 * Threads may call them at once on different communicators and lists; on one, the calls of all
 * ranks have to come in one order, which is the caller's to see to. [any-thread] */

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
 * long as |send|, and |send| is as long on all ranks. [any-thread] */
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
 * rank i. |send| is n times as long as |recv|, and |recv| is as long on all ranks. [any-thread] */
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
 * |recv| is as long as |send|, on all ranks, and both have n parts of whole elements.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_alltoall(hetcomm_communicator_t* communicator, hetcomm_buffer_t send, hetcomm_buffer_t recv,
                 hetcomm_datatype_t datatype, const hetcomm_collective_options_t* options,
                 hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to copy |sends|[i] of rank j into |recvs|[j] of rank i, for each i and j. Both arrays have
 * n buffers. The buffer that one rank sends to another is as long as the one that the other
 * receives it into. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_alltoallv(
    hetcomm_communicator_t* communicator, const hetcomm_buffer_t* sends,
    const hetcomm_buffer_t* recvs, hetcomm_datatype_t datatype,
    const hetcomm_collective_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to copy |send| of every rank into its part of |recv| of |root|. There |recv| is n times as
 * long as |send|, which is as long on all ranks. |recv| is ignored on other ranks. [any-thread] */
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

/* Starts to copy part i of |send| of |root| into |recv| of rank i, for each i. At the root |send|
 * is n times as long as |recv|, which is as long on all ranks. |send| is ignored on other ranks.
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

/* Starts to reduce |send| of the ranks up to this one, this one included, element by element, into
 * |recv|. With HETCOMM_COLLECTIVE_EXCLUSIVE this rank's elements are left out. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_scan(
    hetcomm_communicator_t* communicator, hetcomm_buffer_t send, hetcomm_buffer_t recv,
    hetcomm_datatype_t datatype, hetcomm_reduction_t reduction,
    const hetcomm_collective_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Tells the other ranks of the communicator that this rank refuses one collective call of all
 * ranks, for callers that check arguments before they call: the one that the others make next, or
 * have made and this rank has not. On them that call fails with MISMATCH and |reason|, of which 400
 * bytes are told and which may be NULL, and the collective operations of the communicator fail with
 * it. So nobody waits for the deadline. If all ranks refuse the same call, and go on with the same
 * one, nothing fails. Does not wait. A call that the library itself has rejected is not told to
 * anybody, since it may be made again. The function does nothing once the collective operations
 * have failed or the communicator was aborted. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_collective_refuse(
    hetcomm_communicator_t* communicator, const char* reason) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_COLLECTIVE_H_ */
