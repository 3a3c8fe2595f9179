/* Declares a bootstrap over MPI. The function is in a separate library (libhetcomm_mpi), so
 * libhetcomm does not depend on MPI. */
#ifndef HETCOMM_MPI_H_
#define HETCOMM_MPI_H_

#include <mpi.h>

#include <hetcomm/bootstrap.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Creates a bootstrap with the rank and the size of |comm|. The call is collective over |comm|,
 * which it duplicates. MPI must be initialized, and must stay initialized while communicators are
 * created from the bootstrap. |comm| must stay valid during that time. The library calls MPI only
 * inside this function, hetcomm_communicator_create and hetcomm_communicator_rebuild, on the
 * calling thread.
 *   INVALID_ARGUMENT  MPI is not initialized or was finalized, or |comm| is not a communicator. Or
 *                     the size that the launcher has set (OMPI_COMM_WORLD_SIZE, PMI_SIZE, ...)
 *                     differs from the size of MPI_COMM_WORLD, because the program was linked
 *                     against a different MPI from the one that launched it.
 *   BOOTSTRAP_FAILED  |comm| cannot be duplicated.
 * The text of these failures is written to standard error, because hetcomm_last_error() belongs to
 * libhetcomm. All other errors are those of hetcomm_bootstrap_create_from_callbacks, with their
 * text in hetcomm_last_error(). [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_bootstrap_create_from_mpi(hetcomm_context_t* context, MPI_Comm comm,
                                  hetcomm_bootstrap_t** out_bootstrap) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_MPI_H_ */
