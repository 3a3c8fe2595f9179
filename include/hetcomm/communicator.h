/* Communicator: a numbered set of processes that exchange messages. A process's rank is its number
 * in the communicator, from 0 up to the number of ranks less one.                               */
#ifndef HETCOMM_COMMUNICATOR_H_
#define HETCOMM_COMMUNICATOR_H_

#include <hetcomm/bootstrap.h>
#include <hetcomm/request.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hetcomm_communicator hetcomm_communicator_t;

typedef struct hetcomm_communicator_options {
  /* The caller sets it to sizeof(hetcomm_communicator_options_t). */
  size_t struct_size;
  /* Name that tells jobs on one store apart and appears in logs. All ranks give the same name.
   * NULL: "world", or, in a rebuild, the name of the old communicator. */
  const char* name;
  /* Generation of the communicator; nothing of another epoch is ever matched. All ranks give the
   * same epoch. A rebuild takes one above this or the old one's, whichever is higher. */
  uint32_t epoch;
  /* Transports that may be used, such as "shm,tcp"; "^shm" means all but shm. NULL:
   * HETCOMM_TRANSPORTS, which allows every usable one unless set; in a rebuild, the choice that the
   * old communicator had. */
  const char* transports;
  /* Time limit of the call that takes these options. 0: HETCOMM_BOOTSTRAP_TIMEOUT. */
  uint64_t timeout_ns;
  /* 1: connections of an earlier communicator are used, see hetcomm_communicator_create. All ranks
   * give the same value. */
  uint32_t share;
  /* 1: lost ranks are left out, see hetcomm_communicator_rebuild. All ranks give the same value. */
  uint32_t shrink;
} hetcomm_communicator_options_t;

/* Creates a communicator over all ranks of |bootstrap|. Collective: every rank calls it with the
 * same name and epoch. The call waits for all ranks. They exchange their descriptors here; the
 * connection of two ranks is made when they first talk. |options| may be NULL.
 *   BOOTSTRAP_FAILED   A rank did not join in time, could not take part, or ended; the text names
 *                      it.
 *   PERMISSION_DENIED  The ranks have different secrets or jobs, or HETCOMM_REQUIRE_TLS refuses a
 *                      transport that was asked for.
 *   UNSUPPORTED        A transport that was asked for does not exist, or cannot run here; the text
 *                      says why.
 *   INVALID_ARGUMENT   |shrink| is set, or HETCOMM_CLUSTER, HETCOMM_HOST_LABEL or
 *                      HETCOMM_LINK_MODEL cannot be used as it is, or a rank does not fit rank
 *                      0's link model; the text names it.
 *   NOT_FOUND          HETCOMM_INTERFACE or HETCOMM_LINK_MODEL names nothing that exists.
 *   OUT_OF_RESOURCES   The process has no descriptors or threads left.
 *
 * With |share| the communicator uses the connections of an earlier communicator of |context|, if
 * there is one that all these ranks belong to and live in, with the same |transports| and secret.
 * The ranks find that out through |bootstrap|, which costs one exchange, and no other rank takes
 * part. If there is none, they make connections of their own. Shared connections stay open until
 * the last of their communicators is destroyed, in whatever order. An abort or a failure of one
 * communicator does not concern the others; the loss of a rank concerns every communicator that it
 * belongs to. If a rank destroys one of several communicators, the others notice when their
 * operations with it time out; the messages that it had sent leave while its context makes
 * progress.
 *
 * One thread at a time uses |context| and |bootstrap| in this call. [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_create(hetcomm_context_t* context, hetcomm_bootstrap_t* bootstrap,
                            const hetcomm_communicator_options_t* options,
                            hetcomm_communicator_t** out_communicator) HETCOMM_NOEXCEPT;

/* Tells the other ranks that this one leaves, and frees the communicator. The last communicator on
 * its connections waits up to five seconds until accepted messages have left. With some vendors it
 * waits for streams that operations hold back (hetcomm/stream.h). BUSY: an operation is
 * pending on it (cancel it, wait for it or abort first), a communicator that was split from it, a
 * group, a registered memory or a remote memory of it exists; then nothing has changed. NULL is
 * accepted. [exclusive] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_destroy(hetcomm_communicator_t* communicator) HETCOMM_NOEXCEPT;

/* Gives the rank of this process in the communicator, and the number of ranks. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_rank(const hetcomm_communicator_t* communicator, int32_t* out_rank,
                          int32_t* out_size) HETCOMM_NOEXCEPT;

/* Waits until every rank has entered. This is a collective operation (hetcomm/collective.h) that
 * the caller waits for: all ranks call their collective operations in one order. |timeout_ns| 0
 * means HETCOMM_TIMEOUT. The call returns the outcome: OK, TIMED_OUT, MISMATCH, PEER_LOST,
 * UNREACHABLE, ABORTED or OUT_OF_MEMORY. If it fails on one rank it fails on all, and so do all
 * later collective operations of the communicator. [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_communicator_barrier(
    hetcomm_communicator_t* communicator, uint64_t timeout_ns) HETCOMM_NOEXCEPT;

/* As the color of a split: this rank gets no communicator. */
#define HETCOMM_NO_COLOR (-1)

/* Splits into disjoint communicators, one for each |color|, which is 0 or more. Their ranks are in
 * the order of |key|, and of the old ranks where keys are equal. A rank that passes
 * HETCOMM_NO_COLOR takes part and gets NULL. Collective like the barrier, with HETCOMM_TIMEOUT for
 * its time limit, and with its outcomes. The new communicator uses the connections of the old one
 * and has to be destroyed before it.
 *
 * If a rank cannot take part (INVALID_ARGUMENT: |color| is below -1 or |out_communicator| is NULL;
 * OUT_OF_MEMORY), the call fails with that status there and with ABORTED on the other ranks, and
 * nothing else fails. If the call fails on a rank later, at its deadline for instance, a rank that
 * has heard from all others by then gets a communicator that is aborted. [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_split(hetcomm_communicator_t* communicator, int32_t color, int32_t key,
                           hetcomm_communicator_t** out_communicator) HETCOMM_NOEXCEPT;

/* Ends every operation on the communicator, and on those that were split from it, with ABORTED and
 * |reason|, which may be NULL. The other ranks do so when they hear of it; the call does not wait
 * for them. Later operations on it end at once with ABORTED. Not collective. A second abort changes
 * nothing. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_communicator_abort(
    hetcomm_communicator_t* communicator, const char* reason) HETCOMM_NOEXCEPT;

/* Builds a communicator anew over the ranks of |bootstrap|, which may be fewer, more or others. Its
 * epoch is one above |options->epoch| or the old one's, whichever is higher. The call aborts
 * |communicator| first if nobody has; the caller still has to destroy that. Collective over the new
 * ranks: a rank that was not in the old communicator calls hetcomm_communicator_create with the new
 * epoch. |options| may be NULL. Errors are those of hetcomm_communicator_create and the following.
 *
 * Without |options->shrink| every rank of |bootstrap| has to come, a process that replaces one that
 * died included.
 *
 * With |options->shrink| the new ranks are those of |bootstrap| that are left, in their old order.
 * A rank is left if it calls this with shrink too. The ranks go on as soon as every other rank is
 * lost to one of them; they need not know of the same losses. |bootstrap| has to come from the
 * environment, and |communicator|, or the one that it was split from, has to have its ranks. On
 * success |bootstrap| has the ranks of the new communicator: hetcomm_bootstrap_rank tells them, and
 * it can be shrunk again. After a failure |bootstrap| is as before.
 *   INVALID_ARGUMENT  The ranks of |communicator| are not those of |bootstrap|.
 *   UNSUPPORTED       |bootstrap| was made from callbacks: make one of fewer ranks, and rebuild
 *                     with it without shrink.
 *   BOOTSTRAP_FAILED  The others take this rank for lost; or, on all ranks, a rank neither came nor
 *                     was lost in time; or, at once, rank 0, which has the store, is lost. In that
 *                     case set RANK, WORLD_SIZE and MASTER_ADDR for the ranks that are left, make a
 *                     new bootstrap from the environment, and rebuild with it without shrink.
 *
 * One thread at a time uses |communicator| and |bootstrap| in this call. [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_rebuild(hetcomm_communicator_t* communicator, hetcomm_bootstrap_t* bootstrap,
                             const hetcomm_communicator_options_t* options,
                             hetcomm_communicator_t** out_communicator) HETCOMM_NOEXCEPT;

/* Gives the generation of the communicator. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_communicator_epoch(
    const hetcomm_communicator_t* communicator, uint32_t* out_epoch) HETCOMM_NOEXCEPT;

/* Says whether |rank| is believed alive, without communicating. OK: it is. PEER_LOST: it died or
 * left. UNREACHABLE: it may live, and no connection to it can be made. hetcomm_last_error() has the
 * reason. OUT_OF_RANGE: the communicator has no such rank. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_communicator_peer_status(
    hetcomm_communicator_t* communicator, int32_t rank) HETCOMM_NOEXCEPT;

/* Counts the traffic between this rank and one peer over one transport. A message counts once,
 * whatever protocol carried it. */
typedef struct hetcomm_counters {
  /* The caller sets that of the first entry to sizeof(hetcomm_counters_t). */
  size_t struct_size;
  /* Name of the transport, closed by NUL. */
  char transport[16];
  /* 1: the peer is connected over this transport now. */
  int32_t connected;
  int32_t reserved;
  /* Messages that this rank sent, those of collective operations included. */
  uint64_t messages_sent;
  /* Messages that this rank received, those of collective operations included. */
  uint64_t messages_received;
  /* Bytes of the messages that this rank sent. */
  uint64_t bytes_sent;
  /* Bytes of the messages that this rank received. */
  uint64_t bytes_received;
  /* Messages sent that did not wait for their receive. */
  uint64_t eager_sent;
  /* Messages sent that waited for their receive. */
  uint64_t rendezvous_sent;
  /* Transfers to this rank whose data the sender wrote (tcp stream, shm ring), or left in memory of
   * its own that this rank maps. */
  uint64_t bulk_by_put;
  /* Transfers to this rank whose data it read out of the sender's memory. */
  uint64_t bulk_by_get;
  /* Connections that were lost. */
  uint64_t failures;
  /* Puts that this rank started. */
  uint64_t puts;
  /* Gets that this rank started. */
  uint64_t gets;
  /* Atomics that this rank started. */
  uint64_t atomics;
  /* Bytes that this rank wrote or read as bulk data, whatever protocol they belong to. */
  uint64_t bulk_bytes;
  /* One-sided operations of this rank that needed no help of the owner's process. */
  uint64_t direct;
  /* Chunks of device memory that were sent or received through memory of the host. */
  uint64_t staged_chunks;
  /* Bytes of device memory that the connection read or wrote by itself. */
  uint64_t device_bytes_direct;
  /* Bytes of device memory that went through chunks of host memory. */
  uint64_t device_bytes_staged;
  /* Parts of messages that their receiver copied out of memory of the sender that it had mapped.
   * Both sides count them. */
  uint64_t mapped_chunks;
} hetcomm_counters_t;

/* Gives the counters of the pair with |rank|, one entry for each transport that it has used. Writes
 * at most |capacity| entries, and the number that there are to |*out_count|. |out_counters| may be
 * NULL when |capacity| is 0. OUT_OF_RANGE: the communicator has no such rank. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_counters(hetcomm_communicator_t* communicator, int32_t rank, size_t capacity,
                              hetcomm_counters_t* out_counters, size_t* out_count) HETCOMM_NOEXCEPT;

/* Explains the choice of path to |rank| in lines of text, one for each candidate, with its estimate
 * or the reason against it. Writes at most |capacity| bytes with the closing NUL to |out_text|, and
 * the size that the whole text needs, with its NUL, to |*out_size|. |out_text| may be NULL when
 * |capacity| is 0. OUT_OF_RANGE: the communicator has no such rank. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_explain(hetcomm_communicator_t* communicator, int32_t rank, size_t capacity,
                             char* out_text, size_t* out_size) HETCOMM_NOEXCEPT;

/* Lists every pairing of a network interface of this rank with one of |rank|, for data of device
 * |device| (an index, as hetcomm_device_info takes it): distance from the device to the
 * interface, rate, the device's share of it, estimated time of 64 KiB, and why the pairing is
 * used or not; then this machine's interfaces that no transport uses, with the reason. |format|
 * is HETCOMM_TOPOLOGY_TEXT, a table, or HETCOMM_TOPOLOGY_JSON (hetcomm/topology.h). |capacity|,
 * |out_text| and |*out_size| are as for hetcomm_communicator_explain. OUT_OF_RANGE: there is no
 * such rank, or no such device. INVALID_ARGUMENT: there is no such format. Fails as
 * hetcomm_context_topology does where the machine cannot be read. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_communicator_explain_pairings(
    hetcomm_communicator_t* communicator, int32_t rank, int32_t device, int32_t format,
    size_t capacity, char* out_text, size_t* out_size) HETCOMM_NOEXCEPT;

/* Kinds of what carries bytes between ranks. */
enum {
  /* The bytes cross the memory of a host. */
  HETCOMM_LINK_MEMORY = 0,
  /* The bytes cross a link of the PCIe tree. */
  HETCOMM_LINK_PCIE = 1,
  /* One direction of a NIC. */
  HETCOMM_LINK_NIC = 2,
  /* It joins a cluster to all others. */
  HETCOMM_LINK_UPLINK = 3,
  /* It joins two clusters, or the hosts of one. */
  HETCOMM_LINK_TRUNK = 4
};

/* One of the things that bytes cross on their way from one rank to another. Other pairs of ranks
 * that cross the same one share its rate. */
typedef struct hetcomm_link_resource {
  /* The caller sets that of the first entry to sizeof(hetcomm_link_resource_t). */
  size_t struct_size;
  /* Its name in the link model, closed by NUL. */
  char name[128];
  /* One of HETCOMM_LINK_*. */
  int32_t kind;
  int32_t reserved;
  /* The rate of the resource. */
  uint64_t bytes_per_s;
} hetcomm_link_resource_t;

/* The way from one rank to another, by the link model. */
typedef struct hetcomm_link {
  /* The caller sets it to sizeof(hetcomm_link_t). */
  size_t struct_size;
  /* Latency of the whole. 0: unknown. */
  uint64_t latency_ns;
  /* Rate while no other pair uses it. 0: unknown. */
  uint64_t bytes_per_s;
} hetcomm_link_t;

/* Tells what the link model says of the way of bytes from the host memory of rank |from| to that of
 * rank |to|. All ranks have the same model: the one that rank 0 has read from HETCOMM_LINK_MODEL
 * when the communicator was created. Where that names none, the model is estimated from the network
 * interfaces and PCIe links of the hosts and from the figures of transports. Ranks that use several
 * interfaces together get more than this way, which goes over the first of them. Writes at most
 * |capacity| of the resources that the bytes cross, in order, and the number that there are to
 * |*out_count|. |out_resources| may be NULL when |capacity| is 0. NOT_FOUND: there is no model, as
 * the job has more than 4096 hosts, 128 clusters or 32768 resources. OUT_OF_RANGE: the communicator
 * has no such rank. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_link(hetcomm_communicator_t* communicator, int32_t from, int32_t to,
                          size_t capacity, hetcomm_link_resource_t* out_resources,
                          size_t* out_count, hetcomm_link_t* out_link) HETCOMM_NOEXCEPT;

/* Does what hetcomm_communicator_link does for the way from device |from_device| of rank |from| to
 * device |to_device| of rank |to|: over the network interface that comes first for the data of each
 * device, and over its PCIe links. Devices are numbers in the context of the rank that owns them.
 * Between ranks of one host the way is that between their host memories. OUT_OF_RANGE: there is no
 * such rank, or the rank has no such device. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_communicator_device_link(
    hetcomm_communicator_t* communicator, int32_t from, int32_t from_device, int32_t to,
    int32_t to_device, size_t capacity, hetcomm_link_resource_t* out_resources, size_t* out_count,
    hetcomm_link_t* out_link) HETCOMM_NOEXCEPT;

/* Writes the link model in a form of HETCOMM_TOPOLOGY_* (hetcomm/topology.h). |capacity|,
 * |out_text| and |*out_size| are as for hetcomm_communicator_explain. NOT_FOUND: there is no model.
 * INVALID_ARGUMENT: there is no such format. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_link_model(hetcomm_communicator_t* communicator, int32_t format,
                                size_t capacity, char* out_text, size_t* out_size) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_COMMUNICATOR_H_ */
