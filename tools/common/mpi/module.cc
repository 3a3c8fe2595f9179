// Contains the part of the tools that is linked with MPI. See bridge.h.
//
// The next two lines exclude MPI's C++ bindings, which some releases still contain. They need an
// additional library.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <hetcomm/mpi.h>

#include "tools/common/mpi/bridge.h"

int hetcomm_bench_mpi_start(hetcomm_context_t* context, hetcomm_bootstrap_t** out_bootstrap) {
  int started = 0;
  MPI_Initialized(&started);
  if (started == 0) MPI_Init(nullptr, nullptr);
  return hetcomm_bootstrap_create_from_mpi(context, MPI_COMM_WORLD, out_bootstrap);
}

void hetcomm_bench_mpi_finish(void) {
  int started = 0;
  int finished = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&finished);
  if (started != 0 && finished == 0) MPI_Finalize();
}
