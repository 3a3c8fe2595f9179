// MPI as a launcher, without linking with it: what needs MPI stands in a module of its own
// (libhetcomm_bench_mpi.so), which is loaded when mpirun has started this program.
#pragma once

#include <string>

#include <hetcomm/bootstrap.h>

namespace bench {

// Starts MPI if need be. "" or why there is no bootstrap.
std::string mpi_bootstrap(hetcomm_context_t* context, hetcomm_bootstrap_t** out_bootstrap);

// Ends MPI; nothing if it was not started. Collective.
void mpi_finish();

}  // namespace bench

// The module's functions.
extern "C" {
int hetcomm_bench_mpi_start(hetcomm_context_t* context, hetcomm_bootstrap_t** out_bootstrap);
void hetcomm_bench_mpi_finish(void);
}
