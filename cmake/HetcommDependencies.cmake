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

# Its headers; the loader library is looked for when a process uses it.
set(HETCOMM_OPENCL_INCLUDE_DIR)
if(HETCOMM_WITH_OPENCL)
  find_path(HETCOMM_OPENCL_HEADERS CL/cl.h)
  mark_as_advanced(HETCOMM_OPENCL_HEADERS)
  if(HETCOMM_OPENCL_HEADERS)
    set(HETCOMM_OPENCL_INCLUDE_DIR ${HETCOMM_OPENCL_HEADERS})
  else()
    message(STATUS "hetcomm: no headers of OpenCL; devices of kind opencl are left out")
  endif()
endif()

# Where tests find run-times of OpenCL beside the system's.
set(HETCOMM_OPENCL_ENVIRONMENT)
if(EXISTS ${PROJECT_SOURCE_DIR}/build/opencl/vendors)
  set(HETCOMM_OPENCL_ENVIRONMENT OCL_ICD_VENDORS=${PROJECT_SOURCE_DIR}/build/opencl/vendors)
endif()

if(HETCOMM_WITH_MPI)
  find_package(MPI QUIET COMPONENTS C)
  if(MPI_C_FOUND)
    message(STATUS "hetcomm: MPI ${MPI_C_VERSION}, ${MPI_C_COMPILER}")
  else()
    message(STATUS "hetcomm: no MPI; libhetcomm_mpi is left out")
  endif()
endif()
