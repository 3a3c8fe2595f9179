/* A bootstrap lets the ranks of a job find each other. The library uses it only while a
 * communicator is created or rebuilt. */
#ifndef HETCOMM_BOOTSTRAP_H_
#define HETCOMM_BOOTSTRAP_H_

#include <hetcomm/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hetcomm_bootstrap hetcomm_bootstrap_t;

/* Makes a bootstrap from the environment variables that a launcher sets. Rank and size come from
 * RANK and WORLD_SIZE (torchrun's names), or otherwise from the variables of Open MPI, PMI, PMIx or
 * Slurm. The host and port of rank 0 come from MASTER_ADDR and MASTER_PORT. MASTER_ADDR is optional
 * in a Slurm step, and in an Open MPI job on one host. MASTER_PORT is optional with every launcher.
 * There are at most 65536 ranks. The job's name is the first of these that is set: HETCOMM_JOB,
 * TORCHELASTIC_RUN_ID, the launcher's job id. Jobs with different names never connect to each
 * other. A name from Slurm includes SLURM_RESTART_COUNT.
 *
 * Rank 0 hosts a small TCP store. Its port is HETCOMM_STORE_PORT if that is set. Otherwise it is
 * MASTER_PORT, or the first free one of the next 16 ports if MASTER_PORT is in use. The other ranks
 * identify the store by a handshake. The store listens on those addresses of MASTER_ADDR that rank
 * 0's host has. If the host has none of them, the store listens on the addresses of
 * HETCOMM_INTERFACE, or on all addresses if that variable is not set. If no port is free, rank 0
 * retries until its time limit. Ranks ignore the store of an earlier start of the job. The store
 * exists until rank 0 destroys its bootstrap. Existing communicators do not need the store. Without
 * the store no communicator can be created or rebuilt with the bootstrap: such calls return
 * BOOTSTRAP_FAILED within seconds.
 *
 * The job secret is HETCOMM_SECRET, or the contents of HETCOMM_SECRET_FILE. Without a secret the
 * store distributes a random key, and rank 0 logs a warning: the key keeps out processes that
 * connect by mistake, but not attackers.
 *
 * Rank 0's store needs a file descriptor for each rank. If the soft limit on open files
 * (RLIMIT_NOFILE) is too low, the library raises it to the number needed plus 256, unless
 * HETCOMM_RAISE_LIMITS is off. It never lowers the limit.
 *
 * The call waits for up to HETCOMM_BOOTSTRAP_TIMEOUT until this rank has connected to the store. If
 * a store with another secret refuses this rank, the call fails sooner: once the store has refused
 * the rank twice, at least 5 s apart, and attempts at all ports have had a result both times. If
 * rank 0 fails, it takes up to 2 s to report the reason to the other ranks, whose calls then return
 * its status.
 *   BOOTSTRAP_FAILED   A variable is missing or invalid, rank 0 cannot listen, or the store was not
 *                      reached in time; the text says which.
 *   PERMISSION_DENIED  The store refused the secret of this rank, another process has joined as
 *                      this rank, permission to read the secret file is denied, or
 *                      HETCOMM_REQUIRE_SECRET is on and there is no secret.
 *   INVALID_ARGUMENT   A HETCOMM_* variable has an invalid value, or the secret file is empty.
 *   NOT_FOUND          The secret file or the interface of HETCOMM_INTERFACE does not exist.
 *   OUT_OF_RESOURCES   The process cannot create another thread, or the limit on rank 0's open
 *                      files is too low; the text has the number for `ulimit -n`.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_bootstrap_create_from_environment(
    hetcomm_context_t* context, hetcomm_bootstrap_t** out_bootstrap) HETCOMM_NOEXCEPT;

/* The caller provides the functions below. The library calls them inside
 * hetcomm_communicator_create and hetcomm_communicator_rebuild, on the thread that makes that call.
 * Each function returns a status. If put, get or allgather fails, the creation of the communicator
 * fails with BOOTSTRAP_FAILED, or with TIMED_OUT if put or allgather returned TIMED_OUT.
 * |user_data| must stay valid until the bootstrap is destroyed. Keys are NUL-terminated strings of
 * at most 256 bytes. Arguments are valid only during the call. */

/* Stores |size| bytes under |key|, where all ranks can read them. A bootstrap stores each key only
 * once. */
typedef hetcomm_status_t (*hetcomm_bootstrap_put_t)(void* user_data, const char* key,
                                                    const void* value, size_t size);

/* Waits up to |timeout_ns| until a rank has put |key|, and gets its value. |*inout_size| is the
 * capacity of |value| on entry, and the size of the value on return. If the capacity is too small,
 * the function copies nothing and returns OK with the required size. It returns TIMED_OUT if the
 * key did not appear in time. */
typedef hetcomm_status_t (*hetcomm_bootstrap_get_t)(void* user_data, const char* key, void* value,
                                                    size_t* inout_size, uint64_t timeout_ns);

/* Waits up to |timeout_ns| for all of |count| keys, and gets their values. The value of key i is
 * written to |values| + i * |room|, and its size to |out_sizes|[i]. The function does not copy a
 * value that is larger than |room| bytes, but still writes its size. It returns TIMED_OUT if a key
 * did not appear in time. After a failure the library requests the keys one by one. */
typedef hetcomm_status_t (*hetcomm_bootstrap_get_many_t)(void* user_data, size_t count,
                                                         const char* const* keys, size_t room,
                                                         void* values, size_t* out_sizes,
                                                         uint64_t timeout_ns);

/* Removes |key| and its value. The library logs a failure and otherwise ignores it. */
typedef hetcomm_status_t (*hetcomm_bootstrap_delete_key_t)(void* user_data, const char* key);

/* Gathers |size| bytes from every rank, in rank order, into |out_values|, whose size is |size|
 * times the number of ranks. All ranks make these calls in the same order, with the same |size|.
 * The function must have its own time limit, because the library does not pass one. */
typedef hetcomm_status_t (*hetcomm_bootstrap_allgather_t)(void* user_data, const void* value,
                                                          size_t size, void* out_values);

typedef struct hetcomm_bootstrap_options {
  /* The caller sets it to sizeof(hetcomm_bootstrap_options_t). */
  size_t struct_size;
  /* Rank of this process, from 0 to |size| - 1. */
  int32_t rank;
  /* Number of ranks, from 1 to 65536. */
  int32_t size;
  /* Stores a value. Set both |put| and |get|, or neither. They may be NULL if |allgather| is set,
   * or if |size| is 1. */
  hetcomm_bootstrap_put_t put;
  /* Reads a value. NULL if |put| is NULL. */
  hetcomm_bootstrap_get_t get;
  /* Gathers values. If it is set, the library uses it instead of |put| and |get|. It may be NULL if
   * |put| and |get| are set, or if |size| is 1. */
  hetcomm_bootstrap_allgather_t allgather;
  /* Passed to all the functions. */
  void* user_data;
  /* Job secret of |secret_size| bytes, which the library copies. NULL: the secret is
   * HETCOMM_SECRET, or the contents of HETCOMM_SECRET_FILE. If neither is set, rank 0 distributes a
   * random key through |put| or |allgather|; the key is only as secure as these functions. */
  const void* secret;
  /* Length of |secret| in bytes; 0 with a NULL |secret|. */
  size_t secret_size;
  /* Reads multiple values in one call, which saves round trips if |put| and |get| are used. NULL:
   * |get| reads them one by one. */
  hetcomm_bootstrap_get_many_t get_many;
  /* Removes the random key once all ranks have read it. Only rank 0 calls it, and only if |put| and
   * |get| are used. NULL: the key stays in the store. */
  hetcomm_bootstrap_delete_key_t delete_key;
} hetcomm_bootstrap_options_t;

/* Makes a bootstrap from the caller's own functions, without calling them. |options| must not be
 * NULL.
 *   INVALID_ARGUMENT   |rank| or |size| is out of range, only one of |put| and |get| is set, there
 *                      are multiple ranks and no function to exchange values, |secret| and
 *                      |secret_size| are inconsistent, or the secret file is empty.
 *   PERMISSION_DENIED  There are multiple ranks and no secret, and HETCOMM_REQUIRE_SECRET or
 *                      HETCOMM_REQUIRE_TLS is on: the library cannot protect data that the caller's
 *                      functions exchange. Or permission to read the secret file is denied.
 *   NOT_FOUND          The secret file does not exist.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_bootstrap_create_from_callbacks(
    hetcomm_context_t* context, const hetcomm_bootstrap_options_t* options,
    hetcomm_bootstrap_t** out_bootstrap) HETCOMM_NOEXCEPT;

/* Gets this process's rank and the number of ranks. They are those of the launch, until a rebuild
 * with shrink excludes some ranks. The call must not run concurrently with such a rebuild.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_bootstrap_rank(
    const hetcomm_bootstrap_t* bootstrap, int32_t* out_rank, int32_t* out_size) HETCOMM_NOEXCEPT;

/* Frees the bootstrap. Communicators that were created from it remain valid. NULL is accepted.
 * [exclusive] */
HETCOMM_API void hetcomm_bootstrap_destroy(hetcomm_bootstrap_t* bootstrap) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_BOOTSTRAP_H_ */
