/* Makes a bootstrap over MPI. The function is in a library of its own (libhetcomm_mpi), so that
 * libhetcomm never needs MPI. */
#ifndef HETCOMM_MPI_H_
#define HETCOMM_MPI_H_

#include <mpi.h>

#include <hetcomm/bootstrap.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a bootstrap with the rank and the size of |comm|. Collective over |comm|: the call
 * duplicates it. MPI must be initialized, and must stay so while communicators are made from the
 * bootstrap. |comm| must stay valid for that time. The library calls MPI only inside this function,
 * hetcomm_communicator_create and hetcomm_communicator_rebuild, on the calling thread.
 *   INVALID_ARGUMENT  MPI is not initialized or was finalized, or |comm| is no communicator. Or the
 *                     size that the launcher set (OMPI_COMM_WORLD_SIZE, PMI_SIZE, ...) is not that
 *                     of MPI_COMM_WORLD, because the program was linked with another MPI than the
 *                     one that launched it.
 *   BOOTSTRAP_FAILED  |comm| cannot be duplicated.
 * The text of these failures goes to standard error, since hetcomm_last_error() belongs to
 * libhetcomm. All other errors are those of hetcomm_bootstrap_create_from_callbacks, with their
 * text in hetcomm_last_error(). [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_bootstrap_create_from_mpi(hetcomm_context_t* context, MPI_Comm comm,
                                  hetcomm_bootstrap_t** out_bootstrap) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_MPI_H_ */
