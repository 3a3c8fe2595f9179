/* A communicator is a numbered set of processes that exchange messages. The rank of a process is
 * its number in the communicator, from 0 to the number of ranks minus 1. The process itself is also
 * called a rank. */
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
  /* Name that distinguishes jobs on the same store, and appears in logs. All ranks must pass the
   * same name. NULL: "world", or the name of the old communicator in a rebuild. */
  const char* name;
  /* Generation of the communicator: messages of different epochs never match. All ranks must pass
   * the same epoch. A rebuild uses the higher of this epoch and the old communicator's, plus 1. */
  uint32_t epoch;
  /* Transports that the communicator may use, such as "shm,tcp"; "^shm" means all except shm. NULL:
   * the transports in HETCOMM_TRANSPORTS, or all usable ones if it is not set; in a rebuild, this
   * option of the old communicator. */
  const char* transports;
  /* Time limit of the call that takes these options. 0: HETCOMM_BOOTSTRAP_TIMEOUT. */
  uint64_t timeout_ns;
  /* 1: the communicator shares the connections of an earlier one (hetcomm_communicator_create). All
   * ranks must pass the same value. */
  uint32_t share;
  /* 1: a rebuild excludes lost ranks (hetcomm_communicator_rebuild). All ranks must pass the same
   * value. */
  uint32_t shrink;
} hetcomm_communicator_options_t;

/* Creates a communicator over all ranks of |bootstrap|. Collective: every rank calls it with the
 * same name and epoch. The call waits for all ranks, and exchanges the addresses and keys that they
 * need to connect. Two ranks connect when they first communicate. |options| may be NULL.
 *   BOOTSTRAP_FAILED   A rank did not join in time, could not participate, or exited; the text
 *                      names it.
 *   PERMISSION_DENIED  The ranks have different secrets or jobs, or HETCOMM_REQUIRE_TLS forbids a
 *                      requested transport.
 *   UNSUPPORTED        A requested transport does not exist, or cannot run here; the text says why.
 *   INVALID_ARGUMENT   |shrink| is set, HETCOMM_CLUSTER, HETCOMM_HOST_LABEL or HETCOMM_LINK_MODEL
 *                      has an invalid value, or a rank does not match rank 0's link model; the text
 *                      names it.
 *   NOT_FOUND          HETCOMM_INTERFACE or HETCOMM_LINK_MODEL names an interface or a file that
 *                      does not exist.
 *   OUT_OF_RESOURCES   The process has no file descriptors or threads left.
 *
 * With |share| the communicator uses the connections of an earlier communicator of |context|. All
 * ranks of |bootstrap| must belong to that communicator and be alive in it, and it must have the
 * same |transports| and secret. The ranks of |bootstrap| perform one exchange to find out whether
 * there is such a communicator. No other rank participates. If there is none, they open their own
 * connections.
 *
 * Shared connections stay open until the last of their communicators is destroyed. The
 * communicators can be destroyed in any order. An abort or a failure of one communicator does not
 * affect the others. The loss of a rank affects every communicator that the rank belongs to. If a
 * rank destroys one of the communicators, the other ranks notice only when their operations with
 * that rank time out. Messages that the rank has already posted are still sent while its context
 * makes progress.
 *
 * Only one thread at a time may use |context| and |bootstrap| in this call. [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_create(hetcomm_context_t* context, hetcomm_bootstrap_t* bootstrap,
                            const hetcomm_communicator_options_t* options,
                            hetcomm_communicator_t** out_communicator) HETCOMM_NOEXCEPT;

/* Notifies the other ranks that this one leaves, and frees the communicator. If no other
 * communicator uses its connections, the call waits up to five seconds until the messages that were
 * accepted for sending have been sent. With some vendors the call also waits for streams that
 * operations hold (hetcomm/stream.h). BUSY: an operation on the communicator is pending (cancel it,
 * wait for it or abort first), or an object of the communicator still exists: a communicator that
 * was split from it, a group, queue, reshard plan, registered memory or remote memory. After BUSY
 * nothing has changed. NULL is accepted. [exclusive] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_destroy(hetcomm_communicator_t* communicator) HETCOMM_NOEXCEPT;

/* Gets the rank of this process in the communicator, and the number of ranks. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_rank(const hetcomm_communicator_t* communicator, int32_t* out_rank,
                          int32_t* out_size) HETCOMM_NOEXCEPT;

/* Waits until every rank has entered the barrier. The call is a collective operation
 * (hetcomm/collective.h): all ranks must call their collective operations in the same order. A
 * |timeout_ns| of 0 means HETCOMM_TIMEOUT. The call returns the outcome: OK, TIMED_OUT, MISMATCH,
 * PEER_LOST, UNREACHABLE, ABORTED or OUT_OF_MEMORY. If it fails on one rank, it fails on all, and
 * so do all later collective operations of the communicator. [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_communicator_barrier(
    hetcomm_communicator_t* communicator, uint64_t timeout_ns) HETCOMM_NOEXCEPT;

/* The |color| of a rank that participates in a split without getting a new communicator. */
#define HETCOMM_NO_COLOR (-1)

/* Splits the communicator into disjoint communicators, one for each |color|, which is 0 or more.
 * The new ranks are ordered by |key|, and by the old rank where keys are equal. A rank that passes
 * HETCOMM_NO_COLOR participates and gets NULL. The call is collective like the barrier, has the
 * same outcomes, and its time limit is HETCOMM_TIMEOUT. The new communicator uses the connections
 * of the old one and must be destroyed before it.
 *
 * If a rank cannot get a new communicator (INVALID_ARGUMENT: |color| is below -1 or
 * |out_communicator| is NULL; OUT_OF_MEMORY), the call fails with that status there and with
 * ABORTED on the other ranks, and nothing else fails. If a rank does not even have the memory to
 * notify the others, the collective operations of the communicator fail. The call can also fail on
 * one rank after others have succeeded, for instance at its deadline. The ranks that succeeded then
 * have a communicator that is aborted. [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_split(hetcomm_communicator_t* communicator, int32_t color, int32_t key,
                           hetcomm_communicator_t** out_communicator) HETCOMM_NOEXCEPT;

/* Ends every operation on the communicator, and on those that were split from it, with ABORTED and
 * |reason|, which may be NULL. The other ranks end their operations when the notification reaches
 * them; the call does not wait for that. Later operations on the communicator immediately end with
 * ABORTED. Not collective. A second abort has no effect. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_communicator_abort(
    hetcomm_communicator_t* communicator, const char* reason) HETCOMM_NOEXCEPT;

/* Builds a new communicator over the ranks of |bootstrap|, which may be fewer, more or different
 * ranks than before. The new epoch is the higher of |options->epoch| and the old communicator's,
 * plus 1. The call first aborts |communicator| if it is not aborted yet; the caller must still
 * destroy it. Collective over the new ranks: a rank that was not in the old communicator calls
 * hetcomm_communicator_create with the new epoch. |options| may be NULL. Errors are those of
 * hetcomm_communicator_create and those below.
 *
 * Without |options->shrink| every rank of |bootstrap| must participate, including each process that
 * replaces one that died.
 *
 * With |options->shrink| the new ranks are the surviving ranks of |bootstrap|, in their old order.
 * A rank survives if it also calls this function with shrink. The call proceeds as soon as at least
 * one survivor has noticed the loss of each missing rank. The survivors need not have noticed the
 * same losses. |bootstrap| must be made from the environment. |communicator|, or the one that it
 * was split from, must have the ranks of |bootstrap|. On success |bootstrap| has the ranks of the
 * new communicator, which hetcomm_bootstrap_rank returns, and can be shrunk again. After a failure
 * |bootstrap| is unchanged.
 *   INVALID_ARGUMENT  The ranks of |communicator| are not those of |bootstrap|.
 *   UNSUPPORTED       |bootstrap| was made from callbacks: make one with fewer ranks, and rebuild
 *                     with it without shrink.
 *   BOOTSTRAP_FAILED  The other ranks consider this rank lost. Or a rank neither participated nor
 *                     was found lost in time; all ranks then fail. Or rank 0, which hosts the
 *                     store, is lost; the call then fails immediately. If rank 0 is lost, set RANK,
 *                     WORLD_SIZE and MASTER_ADDR for the surviving ranks, make a new bootstrap from
 *                     the environment, and rebuild with it without shrink.
 *
 * Only one thread at a time may use |communicator| and |bootstrap| in this call. [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_rebuild(hetcomm_communicator_t* communicator, hetcomm_bootstrap_t* bootstrap,
                             const hetcomm_communicator_options_t* options,
                             hetcomm_communicator_t** out_communicator) HETCOMM_NOEXCEPT;

/* Gets the context in which the communicator was created. The pointer is borrowed. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_communicator_context(
    const hetcomm_communicator_t* communicator, hetcomm_context_t** out_context) HETCOMM_NOEXCEPT;

/* Gets the epoch of the communicator. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_communicator_epoch(
    const hetcomm_communicator_t* communicator, uint32_t* out_epoch) HETCOMM_NOEXCEPT;

/* Returns OK if the communicator still works, without communicating. ABORTED: it was aborted, on
 * this rank or another one; hetcomm_last_error() returns the reason. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_status(hetcomm_communicator_t* communicator) HETCOMM_NOEXCEPT;

/* Returns OK if no loss of |rank| is known, without communicating. PEER_LOST: it died or left.
 * UNREACHABLE: it may be alive, but no connection to it can be made. hetcomm_last_error() returns
 * the reason. OUT_OF_RANGE: the communicator has no such rank. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_communicator_peer_status(
    hetcomm_communicator_t* communicator, int32_t rank) HETCOMM_NOEXCEPT;

/* Counters of the traffic between this rank and one peer over one transport. A message counts once,
 * regardless of the protocol that transferred it. */
typedef struct hetcomm_counters {
  /* The caller sets it to sizeof(hetcomm_counters_t) in the first entry. */
  size_t struct_size;
  /* Name of the transport, NUL-terminated. */
  char transport[16];
  /* 1 if the peer is currently connected over this transport, otherwise 0. */
  int32_t connected;
  int32_t reserved;
  /* Messages that this rank sent, including those of collective operations. */
  uint64_t messages_sent;
  /* Messages that this rank received, including those of collective operations. */
  uint64_t messages_received;
  /* Bytes of the messages that this rank sent. */
  uint64_t bytes_sent;
  /* Bytes of the messages that this rank received. */
  uint64_t bytes_received;
  /* Sent messages that did not wait for the peer's receive. */
  uint64_t eager_sent;
  /* Sent messages that waited for the peer's receive. */
  uint64_t rendezvous_sent;
  /* Transfers to this rank whose data the sender wrote (tcp stream, shm ring). This includes
   * transfers whose data stays in the sender's memory, if this rank maps that memory. */
  uint64_t bulk_by_put;
  /* Transfers to this rank whose data this rank read from the sender's memory. */
  uint64_t bulk_by_get;
  /* Connections that were lost. */
  uint64_t failures;
  /* Puts that this rank started. */
  uint64_t puts;
  /* Gets that this rank started. */
  uint64_t gets;
  /* Atomics that this rank started. */
  uint64_t atomics;
  /* Bytes that this rank wrote or read as bulk data, with any protocol. */
  uint64_t bulk_bytes;
  /* One-sided operations of this rank that completed without the help of the owner's process. */
  uint64_t direct;
  /* Chunks of device memory that were sent or received through host memory. */
  uint64_t staged_chunks;
  /* Bytes of device memory that the connection accessed directly. */
  uint64_t device_bytes_direct;
  /* Bytes of device memory that were staged through host memory. */
  uint64_t device_bytes_staged;
  /* Parts of messages that the receiver copied directly from the sender's memory, which it had
   * mapped. Both sides count them. */
  uint64_t mapped_chunks;
} hetcomm_counters_t;

/* Gets the counters of this rank's traffic with |rank|, one entry for each transport that the
 * traffic has used. Writes at most |capacity| entries, and their total number to |*out_count|.
 * |out_counters| may be NULL when |capacity| is 0. OUT_OF_RANGE: the communicator has no such rank.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_counters(hetcomm_communicator_t* communicator, int32_t rank, size_t capacity,
                              hetcomm_counters_t* out_counters, size_t* out_count) HETCOMM_NOEXCEPT;

/* Explains how the path to |rank| is selected, as text with one line for each candidate, which has
 * its estimated cost or the reason why it cannot be used. Writes at most |capacity| bytes,
 * including the terminating NUL, to |out_text|, and the size that the full text needs, including
 * its NUL, to |*out_size|. |out_text| may be NULL when |capacity| is 0. OUT_OF_RANGE: the
 * communicator has no such rank. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_explain(hetcomm_communicator_t* communicator, int32_t rank, size_t capacity,
                             char* out_text, size_t* out_size) HETCOMM_NOEXCEPT;

/* Lists every pair of a network interface of this rank and one of |rank|, for data of device
 * |device| (an index, as in hetcomm_device_info). Each entry has the distance from the device to
 * the interface, the rate, the device's share of the rate, the estimated time to transfer 64 KiB,
 * and the reason why the pair is used or not. The list ends with the interfaces of this machine
 * that no transport uses, each with the reason. |format| is HETCOMM_TOPOLOGY_TEXT, a table, or
 * HETCOMM_TOPOLOGY_JSON (hetcomm/topology.h). |capacity|, |out_text| and |*out_size| are as for
 * hetcomm_communicator_explain. OUT_OF_RANGE: there is no such rank, or no such device.
 * INVALID_ARGUMENT: |format| is neither of these. Fails like hetcomm_context_topology if the
 * machine's topology cannot be read. [any-thread] */
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
  /* A link that connects a cluster to all others. */
  HETCOMM_LINK_UPLINK = 3,
  /* A link that connects two clusters, or the hosts of one cluster. */
  HETCOMM_LINK_TRUNK = 4
};

/* A resource on the route between two ranks, such as a PCIe link or a NIC. All pairs of ranks whose
 * routes cross the same resource share its rate. */
typedef struct hetcomm_link_resource {
  /* The caller sets it to sizeof(hetcomm_link_resource_t) in the first entry. */
  size_t struct_size;
  /* Name of the resource in the link model, NUL-terminated. */
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
  /* Rate of the route while no other pair of ranks uses any of its resources. 0: unknown. */
  uint64_t bytes_per_s;
} hetcomm_link_t;

/* Describes the route from the host memory of rank |from| to that of rank |to|, according to the
 * link model. All ranks have the same model: rank 0 reads it from the file in HETCOMM_LINK_MODEL
 * when the communicator is created. If the variable is not set, or its file has only transport
 * costs, the model is estimated from the network interfaces and PCIe links of the hosts, and from
 * typical figures of the transports. The route uses the first network interface of each rank. Ranks
 * that use multiple interfaces together get a higher rate than the route reports. Writes at most
 * |capacity| of the resources on the route, in order, and their total number to |*out_count|.
 * |out_resources| may be NULL when |capacity| is 0. NOT_FOUND: there is no model, because the job
 * has more than 4096 hosts, 128 clusters or 32768 resources. OUT_OF_RANGE: the communicator has no
 * such rank. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_link(hetcomm_communicator_t* communicator, int32_t from, int32_t to,
                          size_t capacity, hetcomm_link_resource_t* out_resources,
                          size_t* out_count, hetcomm_link_t* out_link) HETCOMM_NOEXCEPT;

/* Describes, as hetcomm_communicator_link does, the route from device |from_device| of rank |from|
 * to device |to_device| of rank |to|. The route uses the preferred network interface of each
 * device, and the PCIe links of that interface. Devices are numbered in the context of the rank
 * that owns them. Between ranks on the same host the route is the one between their host memories.
 * OUT_OF_RANGE: there is no such rank, or the rank has no such device. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_communicator_device_link(
    hetcomm_communicator_t* communicator, int32_t from, int32_t from_device, int32_t to,
    int32_t to_device, size_t capacity, hetcomm_link_resource_t* out_resources, size_t* out_count,
    hetcomm_link_t* out_link) HETCOMM_NOEXCEPT;

/* Writes the link model in |format|, one of HETCOMM_TOPOLOGY_* (hetcomm/topology.h). |capacity|,
 * |out_text| and |*out_size| are as for hetcomm_communicator_explain. NOT_FOUND: there is no model.
 * INVALID_ARGUMENT: |format| is unknown. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_communicator_link_model(hetcomm_communicator_t* communicator, int32_t format,
                                size_t capacity, char* out_text, size_t* out_size) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_COMMUNICATOR_H_ */
