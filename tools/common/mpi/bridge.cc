#include "tools/common/mpi/bridge.h"

#include <dlfcn.h>

#include <fmt/core.h>

#include <hetcomm/status.h>

#include "tools/common/launch.h"

namespace tools {
namespace {

constexpr const char* kModule = "libhetcomm_bench_mpi.so";

void* module = nullptr;

// Loads the module. Searches in lib/ next to the program's folder, where build and installation put
// it, then in the loader's search path.
void* load_module() {
  const std::string program = own_path();
  const std::string bin = program.substr(0, program.rfind('/'));
  const std::string beside = bin + "/../lib/" + kModule;
  void* loaded = dlopen(beside.c_str(), RTLD_NOW | RTLD_GLOBAL);
  return loaded != nullptr ? loaded : dlopen(kModule, RTLD_NOW | RTLD_GLOBAL);
}

template <class Function>
Function symbol(const char* name) {
  return reinterpret_cast<Function>(dlsym(module, name));
}

}  // namespace

std::string mpi_bootstrap(hetcomm_context_t* context, hetcomm_bootstrap_t** out_bootstrap) {
  if (module == nullptr) module = load_module();
  if (module == nullptr) {
    const char* reason = dlerror();
    return fmt::format(
        "an MPI launcher has started this process, but {} cannot be loaded ({}); install the MPI "
        "that hetcomm was built with, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
        kModule, reason != nullptr ? reason : "unknown");
  }
  const auto start = symbol<decltype(&hetcomm_bench_mpi_start)>("hetcomm_bench_mpi_start");
  if (start == nullptr)
    return fmt::format("{} belongs to another version of this program", kModule);
  const int status = start(context, out_bootstrap);
  if (status == HETCOMM_OK) return "";
  return fmt::format("finding the other ranks by MPI: {}: {}", hetcomm_status_name(status),
                     hetcomm_last_error());
}

void mpi_finish() {
  if (module == nullptr) return;
  const auto finish = symbol<decltype(&hetcomm_bench_mpi_finish)>("hetcomm_bench_mpi_finish");
  if (finish != nullptr) finish();
}

}  // namespace tools
