/* Communicator: a numbered set of processes that exchange messages.                            */
#ifndef HETCOMM_COMMUNICATOR_H_
#define HETCOMM_COMMUNICATOR_H_

#include <hetcomm/bootstrap.h>
#include <hetcomm/request.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hetcomm_communicator hetcomm_communicator_t;

typedef struct hetcomm_communicator_options {
  size_t struct_size;
  const char* name; /* tells jobs on one store apart and appears in logs; NULL: "world"         */
  uint32_t epoch;   /* generation of this communicator; nothing of another epoch is ever matched */
  const char* transports; /* "shm,tcp", or "^shm": all but shm; NULL: HETCOMM_TRANSPORTS, else
                             every usable one                                                  */
  uint64_t timeout_ns;    /* for the creation; 0: HETCOMM_BOOTSTRAP_TIMEOUT                       */
  uint32_t share;         /* 1: see hetcomm_communicator_create; alike on all ranks               */
  uint32_t shrink;        /* 1: see hetcomm_communicator_rebuild; alike on all ranks              */
} hetcomm_communicator_options_t;

/* Creates a communicator over all ranks of |bootstrap|. Collective: every rank calls it with the
 * same name and epoch. All descriptors are exchanged here; a connection of a pair is made when the
 * pair first talks. Fails with BOOTSTRAP_FAILED (the text names the missing ranks) or UNSUPPORTED
 * (a named transport cannot run here; the text says why).
 *
 * With |share| it uses the connections of an earlier communicator of |context| where there is one,
 * with the same |transports| and secret, that all these ranks are in and live in; the ranks find
 * that out through |bootstrap|, which costs one exchange, and only they take part. Where there is
 * none they make connections of their own. Connections that are shared stay open until the last of
 * their communicators is destroyed, in whatever order. An abort or failure of one communicator does
 * not concern the others; the loss of a rank concerns all that it is in. A rank that destroys one
 * of several communicators is noticed by the others only when their operations with it time out;
 * what it had sent leaves as the context makes progress. [serial on the context] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_create(hetcomm_context_t* context, hetcomm_bootstrap_t* bootstrap,
                            const hetcomm_communicator_options_t* options,
                            hetcomm_communicator_t** out_communicator) HETCOMM_NOEXCEPT;

/* Says goodbye and frees the communicator. BUSY while operations are pending on it (cancel, wait or
 * abort first) or while communicators split from it exist. The last one on its connections waits up
 * to five seconds until accepted messages have left. NULL is accepted. [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_destroy(hetcomm_communicator_t* communicator) HETCOMM_NOEXCEPT;

/* [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_rank(const hetcomm_communicator_t* communicator, int32_t* out_rank,
                          int32_t* out_size) HETCOMM_NOEXCEPT;

/* Waits until every rank has entered. A collective operation (hetcomm/collective.h) that the caller
 * waits for: called in one order with the others on all ranks; when it fails on one rank, by its
 * deadline or the loss of a rank for instance, it fails on all, and the collective operations of
 * the communicator with it. |timeout_ns| as for operations. [serial on the communicator] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_communicator_barrier(
    hetcomm_communicator_t* communicator, uint64_t timeout_ns) HETCOMM_NOEXCEPT;

#define HETCOMM_NO_COLOR (-1)

/* Splits into disjoint communicators, one per |color|, ranks ordered by |key|, then by old rank.
 * Collective, and fails, as the barrier. A rank that passes HETCOMM_NO_COLOR takes part and gets
 * NULL. What keeps one rank from taking part, as a wrong argument does, fails the call on all ranks
 * and nothing else. When it fails on one rank later, by its deadline for instance, a rank that has
 * heard of all others by then gets a communicator that is aborted. The new communicator uses the
 * connections of the old one, which must outlive it. [serial on the communicator] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_split(hetcomm_communicator_t* communicator, int32_t color, int32_t key,
                           hetcomm_communicator_t** out_communicator) HETCOMM_NOEXCEPT;

/* Ends every operation on the communicator, on all ranks, with ABORTED and |reason|. Later calls
 * on it fail at once. Not collective; a second abort changes nothing. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_communicator_abort(
    hetcomm_communicator_t* communicator, const char* reason) HETCOMM_NOEXCEPT;

/* Builds a communicator anew over the ranks of |bootstrap|, which may be fewer, more or others,
 * with an epoch one above |options->epoch| or the old one's, whichever is higher. Aborts
 * |communicator| first if nobody has; it must still be destroyed. Collective over the new ranks; a
 * rank that was not in the old one calls hetcomm_communicator_create with that epoch.
 *
 * With |options->shrink| the ranks are those of |bootstrap| that are left, in their old order: the
 * ranks that call this with shrink, as soon as every other rank is lost to one of them. They need
 * not know of the same losses. |bootstrap| is one from the environment, and |communicator|, or the
 * one that it was split from, has its ranks. On success |bootstrap| has the ranks of the new
 * communicator: hetcomm_bootstrap_rank tells them, and it can be shrunk again. Otherwise it is as
 * before. A rank that the others take for lost gets BOOTSTRAP_FAILED, as do all when a rank neither
 * comes nor is lost in time. BOOTSTRAP_FAILED at once when rank 0, which has the store, is lost:
 * then set RANK, WORLD_SIZE and MASTER_ADDR for the ranks that are left, and rebuild, without
 * shrink, with a new bootstrap from the environment. UNSUPPORTED for a bootstrap from callbacks:
 * make one of fewer ranks. Without shrink every rank of |bootstrap| has to come, a process in place
 * of one that died included. [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_rebuild(hetcomm_communicator_t* communicator, hetcomm_bootstrap_t* bootstrap,
                             const hetcomm_communicator_options_t* options,
                             hetcomm_communicator_t** out_communicator) HETCOMM_NOEXCEPT;

/* Generation of this communicator. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_communicator_epoch(
    const hetcomm_communicator_t* communicator, uint32_t* out_epoch) HETCOMM_NOEXCEPT;

/* OK while |rank| is believed alive; PEER_LOST with the reason in hetcomm_last_error() when it
 * died, left or cannot be reached. Does not communicate. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_communicator_peer_status(
    hetcomm_communicator_t* communicator, int32_t rank) HETCOMM_NOEXCEPT;

/* What went between this rank and one peer over one transport. */
typedef struct hetcomm_counters {
  size_t struct_size; /* sizeof at the caller's compile time: set that of the first entry        */
  char transport[16];
  int32_t connected; /* 1 while there is a connection                                 */
  int32_t reserved;
  uint64_t messages_sent; /* user messages, all protocols                                  */
  uint64_t messages_received;
  uint64_t bytes_sent; /* user bytes                                                    */
  uint64_t bytes_received;
  uint64_t eager_sent;      /* messages that waited for no receive                           */
  uint64_t rendezvous_sent; /* messages that waited for their receive                        */
  uint64_t bulk_by_put;     /* rendezvous written by the sender (tcp stream, shm ring)       */
  uint64_t bulk_by_get;     /* messages read by the receiver (single copy)                   */
  uint64_t failures;        /* connections lost                                              */
  uint64_t puts;            /* one-sided operations that this rank started                   */
  uint64_t gets;
  uint64_t atomics;
  uint64_t bulk_bytes; /* that this rank wrote or read as bulk data, all protocols               */
  uint64_t direct;     /* one-sided operations that needed no help of the owner's process     */
  uint64_t staged_chunks;       /* of device memory, sent or received through memory of the host */
  uint64_t device_bytes_direct; /* of device memory that the connection read or wrote by itself  */
  uint64_t device_bytes_staged; /* of device memory that went through chunks of host memory      */
} hetcomm_counters_t;

/* Counters of the pair with |rank|: writes up to |capacity| entries, one per transport used so
 * far, and their number. |out_counters| may be NULL when |capacity| is 0; else the struct_size of
 * its first entry is the distance between two. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_counters(hetcomm_communicator_t* communicator, int32_t rank, size_t capacity,
                              hetcomm_counters_t* out_counters, size_t* out_count) HETCOMM_NOEXCEPT;

/* Explains the choice of path to |rank|: a line per candidate with its score or why it lost.
 * Writes at most |capacity| bytes with the closing NUL and the size needed. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_explain(hetcomm_communicator_t* communicator, int32_t rank, size_t capacity,
                             char* out_text, size_t* out_size) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_COMMUNICATOR_H_ */
