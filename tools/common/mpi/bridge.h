// Joins jobs that MPI has launched, without linking with MPI. The code that needs MPI is in a
// module, libhetcomm_bench_mpi.so, which is loaded if mpirun has started this program.
#pragma once

#include <string>

#include <hetcomm/bootstrap.h>

namespace tools {

// Creates the bootstrap. Initializes MPI if necessary. Returns "", or the error.
std::string mpi_bootstrap(hetcomm_context_t* context, hetcomm_bootstrap_t** out_bootstrap);

// Finalizes MPI if mpi_bootstrap() has used it. Collective.
void mpi_finish();

}  // namespace tools

// The functions that the module exports.
extern "C" {
int hetcomm_bench_mpi_start(hetcomm_context_t* context, hetcomm_bootstrap_t** out_bootstrap);
void hetcomm_bench_mpi_finish(void);
}
