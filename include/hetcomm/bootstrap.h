/* Bootstrap: how the ranks of a job find each other. The library uses it only while a communicator
 * is created or rebuilt.                                                                        */
#ifndef HETCOMM_BOOTSTRAP_H_
#define HETCOMM_BOOTSTRAP_H_

#include <hetcomm/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hetcomm_bootstrap hetcomm_bootstrap_t;

/* Makes a bootstrap of the variables that a launcher sets. It takes rank and size from RANK and
 * WORLD_SIZE (torchrun's names), else from Open MPI, PMI, PMIx or Slurm, and the host and port of
 * rank 0 from MASTER_ADDR and MASTER_PORT, which may be missing in a step of Slurm. There are at
 * most 65536 ranks. HETCOMM_JOB names the job, else TORCHELASTIC_RUN_ID or the launcher's id of the
 * job does; jobs with different names never meet. The name that Slurm gives has SLURM_RESTART_COUNT
 * in it.
 *
 * Rank 0 hosts a small TCP store, on HETCOMM_STORE_PORT, else on MASTER_PORT when that is free,
 * else on the first free one of the next 16 ports. The others find it by handshake. The store
 * listens on the addresses of MASTER_ADDR that rank 0's host has, else on those of
 * HETCOMM_INTERFACE, else on all. Where no port is free rank 0 tries again until its time is over.
 * Ranks pass over the store of an earlier start of the job. The store lives until rank 0 destroys
 * its bootstrap. Communicators that exist do not need it. After its end none can be created or
 * rebuilt with the bootstrap: such calls end with BOOTSTRAP_FAILED within seconds.
 *
 * The job secret is HETCOMM_SECRET, or the contents of HETCOMM_SECRET_FILE. Without one the store
 * hands out a random key, which keeps strays out and no more, and rank 0 warns of it.
 *
 * Rank 0's store needs a descriptor for each rank. The soft limit of open files (RLIMIT_NOFILE) is
 * raised if it is too low for that, to what is needed and 256 more, unless HETCOMM_RAISE_LIMITS is
 * off; it is never lowered.
 *
 * The call waits until this rank has reached the store, for up to HETCOMM_BOOTSTRAP_TIMEOUT. A rank
 * that a store with another secret has turned away waits only until every port has given a result
 * twice, 5 s apart. A rank 0 that fails tells the others why, which takes it up to 2 s; they end
 * with its status.
 *   BOOTSTRAP_FAILED   A variable is missing or has no valid value, rank 0 cannot listen, or the
 *                      store was not reached in time; the text says which.
 *   PERMISSION_DENIED  The store refused the secret of this rank, another process has joined as
 *                      this rank, the secret file may not be read, or HETCOMM_REQUIRE_SECRET is on
 *                      and there is no secret.
 *   INVALID_ARGUMENT   A HETCOMM_* variable has no valid value, or the secret file is empty.
 *   NOT_FOUND          The secret file or the interface of HETCOMM_INTERFACE does not exist.
 *   OUT_OF_RESOURCES   The process has no threads left, or rank 0 may not open enough files; the
 *                      text has the number for `ulimit -n`.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_bootstrap_create_from_environment(
    hetcomm_context_t* context, hetcomm_bootstrap_t** out_bootstrap) HETCOMM_NOEXCEPT;

/* The functions below are the caller's. The library calls them inside hetcomm_communicator_create
 * and hetcomm_communicator_rebuild, on the thread that makes that call. They return a status. If
 * put, get or allgather fails, creation ends with BOOTSTRAP_FAILED; TIMED_OUT of put or allgather
 * stays TIMED_OUT. |user_data| has to live until the bootstrap is destroyed. Keys are text of at
 * most 256 bytes, closed by NUL. Arguments are valid during the call only. */

/* Stores |size| bytes under |key|, for all ranks to see. A bootstrap puts a key once. */
typedef hetcomm_status_t (*hetcomm_bootstrap_put_t)(void* user_data, const char* key,
                                                    const void* value, size_t size);

/* Waits up to |timeout_ns| until somebody has put |key|, and gives its value. |*inout_size| is the
 * room in |value| on entry, and the size of the value on return. When the room is too small the
 * function copies nothing and returns OK with the size that is needed. It returns TIMED_OUT when
 * the key did not appear. */
typedef hetcomm_status_t (*hetcomm_bootstrap_get_t)(void* user_data, const char* key, void* value,
                                                    size_t* inout_size, uint64_t timeout_ns);

/* Waits up to |timeout_ns| for |count| keys at once, and gives their values. The value of key i
 * goes to |values| + i * |room|, its size to |out_sizes|[i]. The function does not copy a value
 * that is larger than |room|, but gives its size. It returns TIMED_OUT when a key did not
 * appear. After a failure the library asks for the keys one by one. */
typedef hetcomm_status_t (*hetcomm_bootstrap_get_many_t)(void* user_data, size_t count,
                                                         const char* const* keys, size_t room,
                                                         void* values, size_t* out_sizes,
                                                         uint64_t timeout_ns);

/* Removes |key| and its value. A failure is logged and changes nothing else. */
typedef hetcomm_status_t (*hetcomm_bootstrap_delete_key_t)(void* user_data, const char* key);

/* Gathers |size| bytes of every rank, in rank order, into |out_values|, which has room for |size|
 * times the number of ranks. All ranks call it in the same order, with the same |size|. It has its
 * own time limit: that of the communicator's creation does not reach it. */
typedef hetcomm_status_t (*hetcomm_bootstrap_allgather_t)(void* user_data, const void* value,
                                                          size_t size, void* out_values);

typedef struct hetcomm_bootstrap_options {
  /* The caller sets it to sizeof(hetcomm_bootstrap_options_t). */
  size_t struct_size;
  /* Rank of this process, from 0 to |size| - 1. */
  int32_t rank;
  /* Number of ranks, from 1 to 65536. */
  int32_t size;
  /* Stores a value. It comes together with |get|. NULL: |allgather| is given, or |size| is 1. */
  hetcomm_bootstrap_put_t put;
  /* Reads a value. It comes together with |put|. */
  hetcomm_bootstrap_get_t get;
  /* Gathers values; it is used instead of |put| and |get| when all are given. NULL: |put| and |get|
   * are given, or |size| is 1. */
  hetcomm_bootstrap_allgather_t allgather;
  /* Passed to all the functions. */
  void* user_data;
  /* Job secret, of |secret_size| bytes. Copied. NULL: HETCOMM_SECRET or HETCOMM_SECRET_FILE, else a
   * random key that rank 0 hands out through |put| or |allgather|, which is as safe as they are. */
  const void* secret;
  /* Length of |secret| in bytes; 0 with a NULL |secret|. */
  size_t secret_size;
  /* Reads several values at once, which saves round trips where |put| and |get| are used. NULL:
   * |get| reads them one by one. */
  hetcomm_bootstrap_get_many_t get_many;
  /* Removes the random key once all ranks have it; rank 0 calls it, where |put| and |get| are used.
   * NULL: the key stays in the store. */
  hetcomm_bootstrap_delete_key_t delete_key;
} hetcomm_bootstrap_options_t;

/* Makes a bootstrap of the caller's own functions. |options| must not be NULL. No function is
 * called yet.
 *   INVALID_ARGUMENT   |rank| or |size| is out of its range, |put| and |get| do not come together,
 *                      there are several ranks and no way to exchange, |secret| and |secret_size|
 *                      do not fit together, or the secret file is empty.
 *   PERMISSION_DENIED  There are several ranks and no secret, and HETCOMM_REQUIRE_SECRET or
 *                      HETCOMM_REQUIRE_TLS is on: the library does not protect what goes through
 *                      the functions. Or the secret file may not be read.
 *   NOT_FOUND          The secret file does not exist.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_bootstrap_create_from_callbacks(
    hetcomm_context_t* context, const hetcomm_bootstrap_options_t* options,
    hetcomm_bootstrap_t** out_bootstrap) HETCOMM_NOEXCEPT;

/* Gives this process's rank and the number of ranks: those of the launch, until a rebuild with
 * shrink leaves some out. It must not run beside such a rebuild. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_bootstrap_rank(
    const hetcomm_bootstrap_t* bootstrap, int32_t* out_rank, int32_t* out_size) HETCOMM_NOEXCEPT;

/* Frees the bootstrap. Communicators that were made from it live on. NULL is
 * accepted. [exclusive] */
HETCOMM_API void hetcomm_bootstrap_destroy(hetcomm_bootstrap_t* bootstrap) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_BOOTSTRAP_H_ */
