/* A communicator is a numbered set of processes that exchange messages. A process's rank is its
 * number in the communicator, from 0 up to the number of ranks less one. */
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
  /* Name that distinguishes jobs on one store, and appears in logs. All ranks give the same name.
   * NULL: "world", or, in a rebuild, the name of the old communicator. */
  const char* name;
  /* Generation of the communicator: messages of different epochs never match. All ranks give the
   * same epoch. A rebuild uses the higher of this epoch and the old communicator's, plus 1. */
  uint32_t epoch;
  /* Transports that may be used, such as "shm,tcp"; "^shm" means all but shm. NULL:
   * HETCOMM_TRANSPORTS, which allows every usable one unless set; in a rebuild, the choice that the
   * old communicator had. */
  const char* transports;
  /* Time limit of the call that takes these options. 0: HETCOMM_BOOTSTRAP_TIMEOUT. */
  uint64_t timeout_ns;
  /* 1: the communicator uses connections of an earlier one (hetcomm_communicator_create). All ranks
   * give the same value. */
  uint32_t share;
  /* 1: a rebuild leaves lost ranks out (hetcomm_communicator_rebuild). All ranks give the same
   * value. */
  uint32_t shrink;
} hetcomm_communicator_options_t;

/* Creates a communicator over all ranks of |bootstrap|. Collective: every rank calls it with the
 * same name and epoch. The call waits for all ranks. The ranks exchange here what they need to
 * connect; two ranks connect when they first communicate. |options| may be NULL.
 *   BOOTSTRAP_FAILED   A rank did not join in time, could not take part, or ended; the text names
 *                      it.
 *   PERMISSION_DENIED  The ranks have different secrets or jobs, or HETCOMM_REQUIRE_TLS refuses a
 *                      transport that was asked for.
 *   UNSUPPORTED        A transport that was asked for does not exist, or cannot run here; the text
 *                      says why.
 *   INVALID_ARGUMENT   |shrink| is set, or HETCOMM_CLUSTER, HETCOMM_HOST_LABEL or
 *                      HETCOMM_LINK_MODEL has a value that cannot be used, or a rank does not fit
 *                      rank 0's link model; the text names it.
 *   NOT_FOUND          HETCOMM_INTERFACE or HETCOMM_LINK_MODEL names nothing that exists.
 *   OUT_OF_RESOURCES   The process has no descriptors or threads left.
 *
 * With |share| the communicator uses the connections of an earlier communicator of |context|. All
 * ranks of |bootstrap| must belong to that communicator and be alive in it, and it must have the
 * same |transports| and secret. The ranks make one exchange over |bootstrap| to find out whether
 * there is such a communicator. No other rank takes part. If there is none, the ranks make
 * connections of their own.
 *
 * Shared connections stay open until the last of their communicators is destroyed, in whatever
 * order. An abort or a failure of one communicator does not affect the others. The loss of a rank
 * affects every communicator that the rank belongs to. If a rank destroys one of several
 * communicators, the other ranks notice only when their operations with it time out. Messages that
 * the rank sent before still leave while its context makes progress.
 *
 * One thread at a time may use |context| and |bootstrap| in this call. [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_create(hetcomm_context_t* context, hetcomm_bootstrap_t* bootstrap,
                            const hetcomm_communicator_options_t* options,
                            hetcomm_communicator_t** out_communicator) HETCOMM_NOEXCEPT;

/* Tells the other ranks that this one leaves, and frees the communicator. The last communicator on
 * its connections waits up to five seconds until accepted messages have left. With some vendors it
 * waits for streams that operations hold back (hetcomm/stream.h). BUSY: an operation on the
 * communicator is pending (cancel it, wait for it or abort first), or something still belongs to
 * the communicator: another one that was split from it, a group, queue, reshard plan, registered
 * memory or remote memory. After BUSY nothing has changed. NULL is accepted. [exclusive] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_destroy(hetcomm_communicator_t* communicator) HETCOMM_NOEXCEPT;

/* Gives the rank of this process in the communicator, and the number of ranks. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_rank(const hetcomm_communicator_t* communicator, int32_t* out_rank,
                          int32_t* out_size) HETCOMM_NOEXCEPT;

/* Waits until every rank has entered. The call is a collective operation (hetcomm/collective.h):
 * all ranks have to call their collective operations in the same order. |timeout_ns| 0 means
 * HETCOMM_TIMEOUT. The call returns the outcome: OK, TIMED_OUT, MISMATCH, PEER_LOST, UNREACHABLE,
 * ABORTED or OUT_OF_MEMORY. If it fails on one rank it fails on all, and so do all later collective
 * operations of the communicator. [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_communicator_barrier(
    hetcomm_communicator_t* communicator, uint64_t timeout_ns) HETCOMM_NOEXCEPT;

/* The |color| with which a rank takes part in a split and gets no communicator. */
#define HETCOMM_NO_COLOR (-1)

/* Splits into disjoint communicators, one for each |color|, which is 0 or more. Their ranks are
 * ordered by |key|, and by the old rank where keys are equal. A rank that passes HETCOMM_NO_COLOR
 * takes part and gets NULL. The call is collective like the barrier, has the same outcomes, and its
 * time limit is HETCOMM_TIMEOUT. The new communicator uses the connections of the old one and has
 * to be destroyed before it.
 *
 * If a rank cannot get a new communicator (INVALID_ARGUMENT: |color| is below -1 or
 * |out_communicator| is NULL; OUT_OF_MEMORY), the call fails with that status there and with
 * ABORTED on the other ranks, and nothing else fails. If a rank has not even the memory to tell the
 * others, the collective operations of the communicator fail. The call may also fail on a rank
 * later, at its deadline for instance. A rank that has heard from all others by then gets a
 * communicator that is aborted. [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_split(hetcomm_communicator_t* communicator, int32_t color, int32_t key,
                           hetcomm_communicator_t** out_communicator) HETCOMM_NOEXCEPT;

/* Ends every operation on the communicator, and on those that were split from it, with ABORTED and
 * |reason|, which may be NULL. The other ranks end theirs when the news reaches them; the call does
 * not wait for that. Later operations on the communicator end at once with ABORTED. Not collective.
 * A second abort changes nothing. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_communicator_abort(
    hetcomm_communicator_t* communicator, const char* reason) HETCOMM_NOEXCEPT;

/* Builds a communicator anew over the ranks of |bootstrap|, which may be fewer, more or others. The
 * new epoch is the higher of |options->epoch| and the old communicator's, plus 1. The call aborts
 * |communicator| first if nobody has; the caller still has to destroy it. Collective over the new
 * ranks: a rank that was not in the old communicator calls hetcomm_communicator_create with the new
 * epoch. |options| may be NULL. Errors are those of hetcomm_communicator_create and the following.
 *
 * Without |options->shrink| every rank of |bootstrap| has to take part, including each process that
 * replaces one that died.
 *
 * With |options->shrink| the new ranks are those of |bootstrap| that are left, in their old order.
 * A rank is left if it calls this function with shrink too. The call goes on as soon as each
 * missing rank is lost to at least one of the ranks that are left. These ranks need not know of the
 * same losses. |bootstrap| has to be made from the environment. |communicator|, or the one that it
 * was split from, has to have the ranks of |bootstrap|. On success |bootstrap| has the ranks of the
 * new communicator: hetcomm_bootstrap_rank gives them, and it can be shrunk again. After a failure
 * |bootstrap| is unchanged.
 *   INVALID_ARGUMENT  The ranks of |communicator| are not those of |bootstrap|.
 *   UNSUPPORTED       |bootstrap| was made from callbacks: make one of fewer ranks, and rebuild
 *                     with it without shrink.
 *   BOOTSTRAP_FAILED  The others consider this rank lost. Or, on all ranks, a rank neither took
 *                     part nor was lost in time. Or, at once, rank 0, which has the store, is lost.
 *                     If rank 0 is lost, set RANK, WORLD_SIZE and MASTER_ADDR for the ranks that
 *                     are left, make a new bootstrap from the environment, and rebuild with it
 *                     without shrink.
 *
 * One thread at a time may use |communicator| and |bootstrap| in this call. [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_rebuild(hetcomm_communicator_t* communicator, hetcomm_bootstrap_t* bootstrap,
                             const hetcomm_communicator_options_t* options,
                             hetcomm_communicator_t** out_communicator) HETCOMM_NOEXCEPT;

/* Gives the context in which the communicator was created. It is borrowed. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_communicator_context(
    const hetcomm_communicator_t* communicator, hetcomm_context_t** out_context) HETCOMM_NOEXCEPT;

/* Gives the epoch of the communicator. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_communicator_epoch(
    const hetcomm_communicator_t* communicator, uint32_t* out_epoch) HETCOMM_NOEXCEPT;

/* Returns whether the communicator still works, without communicating. OK: it does. ABORTED: it was
 * aborted, on this rank or another one; hetcomm_last_error() has the reason. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_status(hetcomm_communicator_t* communicator) HETCOMM_NOEXCEPT;

/* Returns whether |rank| is believed alive, without communicating. OK: it is. PEER_LOST: it died or
 * left. UNREACHABLE: it may be alive, but no connection to it can be made. hetcomm_last_error() has
 * the reason. OUT_OF_RANGE: the communicator has no such rank. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_communicator_peer_status(
    hetcomm_communicator_t* communicator, int32_t rank) HETCOMM_NOEXCEPT;

/* Traffic between this rank and one peer over one transport. A message counts once, whatever
 * protocol carried it. */
typedef struct hetcomm_counters {
  /* The caller sets it in the first entry, to sizeof(hetcomm_counters_t). */
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
  /* Sent messages that did not wait for the peer's receive. */
  uint64_t eager_sent;
  /* Sent messages that waited for the peer's receive. */
  uint64_t rendezvous_sent;
  /* Transfers to this rank whose data the sender wrote (tcp stream, shm ring). Transfers whose data
   * the sender left in its own memory count, too, if this rank maps that memory. */
  uint64_t bulk_by_put;
  /* Transfers to this rank whose data this rank read out of the sender's memory. */
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
  /* One-sided operations of this rank that did not need the owner's process. */
  uint64_t direct;
  /* Chunks of device memory that were sent or received through memory of the host. */
  uint64_t staged_chunks;
  /* Bytes of device memory that the connection read or wrote by itself. */
  uint64_t device_bytes_direct;
  /* Bytes of device memory that went through chunks of host memory. */
  uint64_t device_bytes_staged;
  /* Parts of messages that the receiver copied directly out of the sender's memory, which it had
   * mapped. Both sides count them. */
  uint64_t mapped_chunks;
} hetcomm_counters_t;

/* Gives the counters of this rank's traffic with |rank|, one entry for each transport that it has
 * used. Writes at most |capacity| entries, and their total number to |*out_count|. |out_counters|
 * may be NULL when |capacity| is 0. OUT_OF_RANGE: the communicator has no such rank.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_counters(hetcomm_communicator_t* communicator, int32_t rank, size_t capacity,
                              hetcomm_counters_t* out_counters, size_t* out_count) HETCOMM_NOEXCEPT;

/* Explains in text how a path to |rank| is chosen: one line for each candidate, with its estimate
 * or the reason against it. Writes at most |capacity| bytes with the closing NUL to |out_text|, and
 * the size that the whole text needs, with its NUL, to |*out_size|. |out_text| may be NULL when
 * |capacity| is 0. OUT_OF_RANGE: the communicator has no such rank. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_explain(hetcomm_communicator_t* communicator, int32_t rank, size_t capacity,
                             char* out_text, size_t* out_size) HETCOMM_NOEXCEPT;

/* Lists every pairing of a network interface of this rank with one of |rank|, for data of device
 * |device| (an index, as in hetcomm_device_info). Each entry has the distance from the device to
 * the interface, the rate, the device's share of it, the estimated time of 64 KiB, and the reason
 * why the pairing is used or not. The list ends with the interfaces of this machine that no
 * transport uses, each with the reason. |format| is HETCOMM_TOPOLOGY_TEXT, a table, or
 * HETCOMM_TOPOLOGY_JSON (hetcomm/topology.h). |capacity|, |out_text| and |*out_size| are as for
 * hetcomm_communicator_explain. OUT_OF_RANGE: there is no such rank, or no such device.
 * INVALID_ARGUMENT: there is no such format. Fails as hetcomm_context_topology does if the machine
 * cannot be read. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_communicator_explain_pairings(
    hetcomm_communicator_t* communicator, int32_t rank, int32_t device, int32_t format,
    size_t capacity, char* out_text, size_t* out_size) HETCOMM_NOEXCEPT;

/* Kinds of link resources. */
enum {
  /* Memory of a host. */
  HETCOMM_LINK_MEMORY = 0,
  /* A link of the PCIe tree. */
  HETCOMM_LINK_PCIE = 1,
  /* One direction of a NIC. */
  HETCOMM_LINK_NIC = 2,
  /* A link that joins a cluster to all others. */
  HETCOMM_LINK_UPLINK = 3,
  /* A link that joins two clusters, or the hosts of one cluster. */
  HETCOMM_LINK_TRUNK = 4
};

/* A resource that bytes cross between two ranks, such as a PCIe link or a NIC. Other pairs of ranks
 * that cross the same resource share its rate. */
typedef struct hetcomm_link_resource {
  /* The caller sets it in the first entry, to sizeof(hetcomm_link_resource_t). */
  size_t struct_size;
  /* Name of the resource in the link model, closed by NUL. */
  char name[128];
  /* One of HETCOMM_LINK_*. */
  int32_t kind;
  int32_t reserved;
  /* Rate of the resource in bytes per second. */
  uint64_t bytes_per_s;
} hetcomm_link_resource_t;

/* The route from one rank to another, according to the link model. */
typedef struct hetcomm_link {
  /* The caller sets it to sizeof(hetcomm_link_t). */
  size_t struct_size;
  /* Latency of the whole route. 0: unknown. */
  uint64_t latency_ns;
  /* Rate of the route while no other pair of ranks uses it. 0: unknown. */
  uint64_t bytes_per_s;
} hetcomm_link_t;

/* Describes the route from the host memory of rank |from| to that of rank |to|, according to the
 * link model. All ranks have the same model: rank 0 reads it from the file in HETCOMM_LINK_MODEL
 * when the communicator is created. If the variable names no link model, it is estimated from the
 * network interfaces and PCIe links of the hosts and from known figures of the transports. The
 * route uses the first network interface of each rank. Ranks that use several interfaces together
 * get a higher rate than the route says. Writes at most |capacity| of the resources that the bytes
 * cross, in order, and their total number to |*out_count|. |out_resources| may be NULL when
 * |capacity| is 0. NOT_FOUND: there is no model, because the job has more than 4096 hosts, 128
 * clusters or 32768 resources. OUT_OF_RANGE: the communicator has no such rank. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_link(hetcomm_communicator_t* communicator, int32_t from, int32_t to,
                          size_t capacity, hetcomm_link_resource_t* out_resources,
                          size_t* out_count, hetcomm_link_t* out_link) HETCOMM_NOEXCEPT;

/* Describes, as hetcomm_communicator_link does, the route from device |from_device| of rank |from|
 * to device |to_device| of rank |to|. The route uses the network interface that comes first for the
 * data of each device, and the PCIe links of that interface. Devices are numbers in the context of
 * the rank that owns them. Between ranks of one host the route is the one between their host
 * memories. OUT_OF_RANGE: there is no such rank, or the rank has no such device. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_communicator_device_link(
    hetcomm_communicator_t* communicator, int32_t from, int32_t from_device, int32_t to,
    int32_t to_device, size_t capacity, hetcomm_link_resource_t* out_resources, size_t* out_count,
    hetcomm_link_t* out_link) HETCOMM_NOEXCEPT;

/* Writes the link model in |format|, one of HETCOMM_TOPOLOGY_* (hetcomm/topology.h). |capacity|,
 * |out_text| and |*out_size| are as for hetcomm_communicator_explain. NOT_FOUND: there is no model.
 * INVALID_ARGUMENT: there is no such format. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_link_model(hetcomm_communicator_t* communicator, int32_t format,
                                size_t capacity, char* out_text, size_t* out_size) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_COMMUNICATOR_H_ */
