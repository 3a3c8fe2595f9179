/* Bootstrap over MPI, in a library of its own (libhetcomm_mpi), so that libhetcomm never needs MPI.
 */
#ifndef HETCOMM_MPI_H_
#define HETCOMM_MPI_H_

#include <mpi.h>

#include <hetcomm/bootstrap.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Ranks and size of |comm|, whose functions are called inside hetcomm_communicator_create only, on
 * the calling thread. Collective over |comm|. MPI must be initialized and stay so while the
 * bootstrap exists. Fails with INVALID_ARGUMENT when the launcher's size (OMPI_COMM_WORLD_SIZE,
 * PMI_SIZE, ...) differs from that of MPI_COMM_WORLD: then the program was linked with another MPI
 * than the one that launched it. |comm| must stay valid while communicators are made from the
 * bootstrap. The text of a failure goes to standard error: hetcomm_last_error() belongs to the
 * other library. [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_bootstrap_create_from_mpi(hetcomm_context_t* context, MPI_Comm comm,
                                  hetcomm_bootstrap_t** out_bootstrap) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_MPI_H_ */
