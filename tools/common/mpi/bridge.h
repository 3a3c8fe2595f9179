// MPI as a launcher, without linking with it. A separate module contains the code that needs MPI
// (libhetcomm_bench_mpi.so). It is loaded if mpirun has started this program.
#pragma once

#include <string>

#include <hetcomm/bootstrap.h>

namespace tools {

// Starts MPI if necessary. Returns "", or why there is no bootstrap.
std::string mpi_bootstrap(hetcomm_context_t* context, hetcomm_bootstrap_t** out_bootstrap);

// Ends MPI if mpi_bootstrap() started it. Collective.
void mpi_finish();

}  // namespace tools

// The module's functions.
extern "C" {
int hetcomm_bench_mpi_start(hetcomm_context_t* context, hetcomm_bootstrap_t** out_bootstrap);
void hetcomm_bench_mpi_finish(void);
}
