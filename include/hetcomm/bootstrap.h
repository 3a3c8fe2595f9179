/* Bootstrap: how the ranks of a job find each other. It is used while a communicator is created and
 * not afterwards.                                                                              */
#ifndef HETCOMM_BOOTSTRAP_H_
#define HETCOMM_BOOTSTRAP_H_

#include <hetcomm/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hetcomm_bootstrap hetcomm_bootstrap_t;

/* From the environment, with torchrun's names: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT. Where
 * the first two are missing, rank and size are those of Open MPI, PMI, PMIx or Slurm; in a step of
 * Slurm the other two may be missing as well. HETCOMM_JOB names the job, else TORCHELASTIC_RUN_ID
 * or the launcher's id of the job does: jobs with different names never meet. Rank 0 hosts a small
 * TCP store on HETCOMM_STORE_PORT, else on MASTER_PORT when that is free, else on the first free of
 * the next 16 ports; the others find it by handshake. It listens on the addresses of MASTER_ADDR
 * that rank 0's host has, else on those of HETCOMM_INTERFACE, else on all. The store lives until
 * rank 0 destroys its bootstrap; communicators do not need it once they are created, and none can
 * be created or rebuilt with it after that: such calls end with BOOTSTRAP_FAILED within seconds.
 * hetcomm_communicator_rebuild with shrink leaves lost ranks out of it. The job secret
 * is HETCOMM_SECRET or the contents of HETCOMM_SECRET_FILE; without one the store hands out a
 * random key, which keeps strays out and no more, and rank 0 warns of it. BOOTSTRAP_FAILED when a
 * variable is missing or the store is not reached within HETCOMM_BOOTSTRAP_TIMEOUT;
 * PERMISSION_DENIED where HETCOMM_REQUIRE_SECRET is on and there is no secret. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_bootstrap_create_from_environment(
    hetcomm_context_t* context, hetcomm_bootstrap_t** out_bootstrap) HETCOMM_NOEXCEPT;

/* Stores |size| bytes under |key|. Returns a status; must be safe to call from any one thread. */
typedef hetcomm_status_t (*hetcomm_bootstrap_put_t)(void* user_data, const char* key,
                                                    const void* value, size_t size);

/* Waits up to |timeout_ns| for |key|. |*inout_size| is the room in |value| on entry and the value's
 * size on return; when the room is too small nothing is copied and OK is returned with the size
 * needed. TIMED_OUT when the key did not appear. */
typedef hetcomm_status_t (*hetcomm_bootstrap_get_t)(void* user_data, const char* key, void* value,
                                                    size_t* inout_size, uint64_t timeout_ns);

/* The same for |count| keys at once, waiting for all of them: the value of key i to |values| + i *
 * |room|, its size to |out_sizes|[i]. A value larger than |room| is not copied, its size is given
 * all the same. TIMED_OUT when one of them did not appear. */
typedef hetcomm_status_t (*hetcomm_bootstrap_get_many_t)(void* user_data, size_t count,
                                                         const char* const* keys, size_t room,
                                                         void* values, size_t* out_sizes,
                                                         uint64_t timeout_ns);

/* Removes |key| and its value. */
typedef hetcomm_status_t (*hetcomm_bootstrap_delete_key_t)(void* user_data, const char* key);

/* Gathers |size| bytes of every rank, in rank order, into |out_values| (|size| times the number of
 * ranks). Collective: called by all ranks in the same order. */
typedef hetcomm_status_t (*hetcomm_bootstrap_allgather_t)(void* user_data, const void* value,
                                                          size_t size, void* out_values);

typedef struct hetcomm_bootstrap_options {
  size_t struct_size;
  int32_t rank;
  int32_t size;
  hetcomm_bootstrap_put_t put; /* put and get, or allgather, or all three                      */
  hetcomm_bootstrap_get_t get;
  hetcomm_bootstrap_allgather_t allgather; /* used where given                                 */
  void* user_data;
  const void* secret; /* job secret; NULL: HETCOMM_SECRET or file, else a random key that rank 0
                       * hands out through put or allgather: as safe as they are              */
  size_t secret_size; /* bytes                                                                 */
  hetcomm_bootstrap_get_many_t get_many; /* beside put and get, may be NULL: spares round trips */
  hetcomm_bootstrap_delete_key_t delete_key; /* beside put and get, may be NULL: rank 0 removes the
                                              * random key once all ranks have it              */
} hetcomm_bootstrap_options_t;

/* From the caller's own functions. They are called only inside hetcomm_communicator_create and
 * _rebuild, on the calling thread. PERMISSION_DENIED where several ranks have no configured secret
 * and HETCOMM_REQUIRE_SECRET or HETCOMM_REQUIRE_TLS is on: the library does not protect what goes
 * through the functions. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_bootstrap_create_from_callbacks(
    hetcomm_context_t* context, const hetcomm_bootstrap_options_t* options,
    hetcomm_bootstrap_t** out_bootstrap) HETCOMM_NOEXCEPT;

/* This process's rank and the number of ranks: those of the launch, until a rebuild with shrink
 * leaves some out. [any-thread, but beside such a rebuild] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_bootstrap_rank(
    const hetcomm_bootstrap_t* bootstrap, int32_t* out_rank, int32_t* out_size) HETCOMM_NOEXCEPT;

/* Frees the bootstrap; communicators made from it live on. NULL is accepted. [serial] */
HETCOMM_API void hetcomm_bootstrap_destroy(hetcomm_bootstrap_t* bootstrap) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_BOOTSTRAP_H_ */
