/* Collective operations.
 *
 * Every rank of the communicator (or of the list in the options) calls the same operations with the
 * same arguments in the same order; operations on different lists, and on different communicators,
 * are not ordered with each other. All are asynchronous: the buffers belong to the operation until
 * its request has completed. What is reduced is reduced in an order that depends on ranks, size and
 * algorithm only, so that all ranks get the same bits, in every run. An operation may wait for all
 * of its ranks, whatever it is.
 *
 * A number of elements is the length of a buffer divided by the size of the type. Buffers may lie
 * on any devices, different ones on different ranks. Where a result has one part for each rank, the
 * parts are in the order of the ranks; the forms with "v" take one buffer for each rank instead,
 * of any length (arrays are copied). Buffers to be sent and to be received into do not overlap but
 * where an operation says that it works in place.
 *
 * Ranks whose arguments disagree (operation, order, size, type, operator, root) get MISMATCH, with
 * a text that says which rank differs in what (HETCOMM_COLLECTIVE_CHECK=0 on all: nobody looks). An
 * operation that fails on one rank, by that, by its deadline, by the loss of a rank or by being
 * cancelled, fails the collective operations of the communicator on all ranks: those under way end,
 * and later ones end at once, with a text that names operation, rank and reason. Messages and
 * one-sided operations go on.                                                                  */
#ifndef HETCOMM_COLLECTIVE_H_
#define HETCOMM_COLLECTIVE_H_

#include <hetcomm/operation.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, value, bytes) */
#define HETCOMM_DATATYPE_MAP(X) \
  X(BOOL, 0, 1)                 \
  X(INT8, 1, 1)                 \
  X(UINT8, 2, 1)                \
  X(INT16, 3, 2)                \
  X(UINT16, 4, 2)               \
  X(INT32, 5, 4)                \
  X(UINT32, 6, 4)               \
  X(INT64, 7, 8)                \
  X(UINT64, 8, 8)               \
  X(FLOAT16, 9, 2)              \
  X(BFLOAT16, 10, 2)            \
  X(FLOAT8_E4M3FN, 11, 1)       \
  X(FLOAT8_E5M2, 12, 1)         \
  X(FLOAT32, 13, 4)             \
  X(FLOAT64, 14, 8)             \
  X(COMPLEX64, 15, 8)           \
  X(COMPLEX128, 16, 16)

/* HETCOMM_FLOAT32, ... Fixed width: an enum has no size in an ABI. */
typedef int32_t hetcomm_datatype_t;
enum {
#define HETCOMM_DATATYPE_ENUM_(name, value, bytes) HETCOMM_##name = (value),
  HETCOMM_DATATYPE_MAP(HETCOMM_DATATYPE_ENUM_)
#undef HETCOMM_DATATYPE_ENUM_
      HETCOMM_DATATYPE_FORCE_INT_ = 0x7fffffff
};

/* SUM and PRODUCT of integers wrap. AVERAGE: that sum divided by the number of ranks, of integers
 * towards zero. PREMUL_SUM: the sum of options->factor times each rank's elements. MIN and MAX give
 * a NaN where an element is one, and are not defined for complex types, AND, OR and XOR for none
 * but integers (bit by bit) and BOOL.
 *
 * All ranks get the same bits. SUM, PRODUCT, AVERAGE and PREMUL_SUM of FLOAT16, BFLOAT16 and the
 * FLOAT8 types are calculated in float32, in the order of ranks, and rounded once: every algorithm,
 * size and transport gives the same bits. The order in which FLOAT32 and wider types are summed
 * depends on the algorithm.
 */
#define HETCOMM_REDUCTION_MAP(X) \
  X(SUM, 0)                      \
  X(PRODUCT, 1)                  \
  X(MIN, 2)                      \
  X(MAX, 3)                      \
  X(AND, 4)                      \
  X(OR, 5)                       \
  X(XOR, 6)                      \
  X(AVERAGE, 7)                  \
  X(PREMUL_SUM, 8)

/* HETCOMM_REDUCE_SUM, ... */
typedef int32_t hetcomm_reduction_t;
enum {
#define HETCOMM_REDUCTION_ENUM_(name, value) HETCOMM_REDUCE_##name = (value),
  HETCOMM_REDUCTION_MAP(HETCOMM_REDUCTION_ENUM_)
#undef HETCOMM_REDUCTION_ENUM_
      HETCOMM_REDUCE_FORCE_INT_ = 0x7fffffff
};

enum {
  /* Of a scan: without the own elements; the buffer of the first rank is left as it is. */
  HETCOMM_COLLECTIVE_EXCLUSIVE = 1,
  /* Of a barrier: at the deadline its first rank says who is missing. */
  HETCOMM_COLLECTIVE_MONITORED = 2,
  /* With MONITORED: all that are missing are named, not the first one. */
  HETCOMM_COLLECTIVE_WAIT_ALL = 4
};

typedef struct hetcomm_collective_options {
  size_t struct_size;
  uint64_t timeout_ns;    /* as for operations                                                  */
  const int32_t* ranks;   /* who takes part, in this order; NULL: all. Roots and parts are counted
                             by the place in this list                                          */
  size_t rank_count;      /* length of |ranks|                                                  */
  const char* algorithm;  /* by name: "ring", "two_level", ...; NULL: chosen by size and by how the
                             ranks lie to each other. UNSUPPORTED, with the names that there are,
                             for one that the operation does not have                           */
  double factor;          /* of PREMUL_SUM                                                      */
  uint32_t flags;         /* HETCOMM_COLLECTIVE_*                                               */
  uint32_t reserved;      /* 0                                                                  */
  hetcomm_group_t* group; /* the operation starts with this group; NULL: at once                */
} hetcomm_collective_options_t;

/* Size of an element in bytes. INVALID_ARGUMENT for a value that is no type. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_datatype_size(hetcomm_datatype_t datatype, size_t* out_size_bytes) HETCOMM_NOEXCEPT;

/* For all functions below: |options| may be NULL. INVALID_ARGUMENT, OUT_OF_RANGE, UNSUPPORTED (no
 * such algorithm, or an operator that is not defined for the type), OUT_OF_MEMORY: rejected on this
 * rank, no completion will follow, and the call does not count. Everything else is the operation's
 * outcome; its record names the own rank and the bytes that were sent and received into. Threads
 * may call them at once on different communicators and lists; on one, the calls of all ranks have
 * to come in one order. [any-thread] */

/* Completes when all ranks have called it. */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_barrier(hetcomm_communicator_t* communicator, const hetcomm_collective_options_t* options,
                hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* |buffer| of rank |root| goes to that of all. */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_broadcast(hetcomm_communicator_t* communicator, int32_t root, hetcomm_buffer_t buffer,
                  hetcomm_datatype_t datatype, const hetcomm_collective_options_t* options,
                  hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* |send| of all ranks, element by element, into |recv| of |root|, which may be its |send|. On other
 * ranks |recv| is not looked at. */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reduce(
    hetcomm_communicator_t* communicator, int32_t root, hetcomm_buffer_t send,
    hetcomm_buffer_t recv, hetcomm_datatype_t datatype, hetcomm_reduction_t reduction,
    const hetcomm_collective_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* The same into |recv| of every rank, which may be its |send|. */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_allreduce(
    hetcomm_communicator_t* communicator, hetcomm_buffer_t send, hetcomm_buffer_t recv,
    hetcomm_datatype_t datatype, hetcomm_reduction_t reduction,
    const hetcomm_collective_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* |send| of every rank becomes a part of |recv| of all. In place: |send| is the own part of |recv|.
 */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_allgather(
    hetcomm_communicator_t* communicator, hetcomm_buffer_t send, hetcomm_buffer_t recv,
    hetcomm_datatype_t datatype, const hetcomm_collective_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;
/* |recvs|: a buffer for each rank, with the same lengths on all ranks. */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_allgatherv(
    hetcomm_communicator_t* communicator, hetcomm_buffer_t send, const hetcomm_buffer_t* recvs,
    hetcomm_datatype_t datatype, const hetcomm_collective_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* The reduction of |send| of all ranks; each gets its part. In place: |recv| is the own part of
 * |send|. */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reduce_scatter(
    hetcomm_communicator_t* communicator, hetcomm_buffer_t send, hetcomm_buffer_t recv,
    hetcomm_datatype_t datatype, hetcomm_reduction_t reduction,
    const hetcomm_collective_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;
/* |sends|: a buffer for each rank, with the same lengths on all ranks. */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reduce_scatterv(
    hetcomm_communicator_t* communicator, const hetcomm_buffer_t* sends, hetcomm_buffer_t recv,
    hetcomm_datatype_t datatype, hetcomm_reduction_t reduction,
    const hetcomm_collective_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Part i of |send| of rank j becomes part j of |recv| of rank i. INVALID_ARGUMENT where buffers to
 * be sent and to be received into overlap, in memory that the host reaches or of one handle. */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_alltoall(hetcomm_communicator_t* communicator, hetcomm_buffer_t send, hetcomm_buffer_t recv,
                 hetcomm_datatype_t datatype, const hetcomm_collective_options_t* options,
                 hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;
/* |sends| and |recvs|: a buffer for each rank. What one sends to another is as long as the other
 * expects. */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_alltoallv(
    hetcomm_communicator_t* communicator, const hetcomm_buffer_t* sends,
    const hetcomm_buffer_t* recvs, hetcomm_datatype_t datatype,
    const hetcomm_collective_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* |send| of every rank becomes a part of |recv| of |root|. In place: |send| of the root is its part
 * of |recv|. On other ranks |recv| is not looked at. */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_gather(
    hetcomm_communicator_t* communicator, int32_t root, hetcomm_buffer_t send,
    hetcomm_buffer_t recv, hetcomm_datatype_t datatype, const hetcomm_collective_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;
/* |recvs|: at the root a buffer for each rank, elsewhere not looked at. */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_gatherv(
    hetcomm_communicator_t* communicator, int32_t root, hetcomm_buffer_t send,
    const hetcomm_buffer_t* recvs, hetcomm_datatype_t datatype,
    const hetcomm_collective_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* The parts of |send| of |root| become |recv| of the ranks. In place: |recv| of the root is its
 * part of |send|. On other ranks |send| is not looked at. */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_scatter(
    hetcomm_communicator_t* communicator, int32_t root, hetcomm_buffer_t send,
    hetcomm_buffer_t recv, hetcomm_datatype_t datatype, const hetcomm_collective_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;
/* |sends|: at the root a buffer for each rank, elsewhere not looked at. */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_scatterv(
    hetcomm_communicator_t* communicator, int32_t root, const hetcomm_buffer_t* sends,
    hetcomm_buffer_t recv, hetcomm_datatype_t datatype, const hetcomm_collective_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* The reduction of |send| of the ranks up to this one into |recv|, which may be |send|. */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_scan(
    hetcomm_communicator_t* communicator, hetcomm_buffer_t send, hetcomm_buffer_t recv,
    hetcomm_datatype_t datatype, hetcomm_reduction_t reduction,
    const hetcomm_collective_options_t* options, hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Tells the other ranks of the communicator that this one does not make the collective call which
 * they make next, or have made and it has not: for callers that check arguments before they call.
 * There the call fails with MISMATCH and |reason| (400 bytes of it), and the collective operations
 * of the communicator with it; nobody waits for the deadline. Where all ranks refuse the same call,
 * and then go on with the same, nothing fails. Does not wait; what this library refuses by itself
 * it tells nobody, since the call may be made again. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_collective_refuse(
    hetcomm_communicator_t* communicator, const char* reason) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_COLLECTIVE_H_ */
