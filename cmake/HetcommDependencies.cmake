# Everything that hetcomm takes from elsewhere, found in one place.
# Modules name the imported target that they use in DEPENDS.

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(hwy 1.0.3 REQUIRED)
find_package(OpenSSL 3.0 REQUIRED COMPONENTS Crypto SSL)
find_package(nlohmann_json REQUIRED)

if(HETCOMM_BUILD_TOOLS)
  find_package(CLI11 REQUIRED)
endif()

if(HETCOMM_BUILD_TESTS)
  find_package(GTest REQUIRED)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
endif()

if(HETCOMM_WITH_MPI)
  find_package(MPI QUIET COMPONENTS C)
  if(MPI_C_FOUND)
    message(STATUS "hetcomm: MPI ${MPI_C_VERSION}, ${MPI_C_COMPILER}")
  else()
    message(STATUS "hetcomm: no MPI; libhetcomm_mpi is left out")
  endif()
endif()
