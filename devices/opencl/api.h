// Loads the OpenCL functions from the loader library (libOpenCL.so.1). The loader dispatches to the
// run-times of all vendors. Nothing is loaded before the first open().
#pragma once

#ifndef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 300
#endif
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <CL/cl_ext.h>
#include <string>

#include "src/base/status.h"

namespace hetcomm::opencl {

// Names of the functions, without the prefix "cl".
#define HETCOMM_OPENCL_FUNCTIONS(X)         \
  X(BuildProgram)                           \
  X(CreateBuffer)                           \
  X(CreateCommandQueue)                     \
  X(CreateContext)                          \
  X(CreateKernel)                           \
  X(CreateProgramWithSource)                \
  X(CreateSubBuffer)                        \
  X(CreateUserEvent)                        \
  X(EnqueueBarrierWithWaitList)             \
  X(EnqueueCopyBuffer)                      \
  X(EnqueueCopyBufferRect)                  \
  X(EnqueueMapBuffer)                       \
  X(EnqueueMarkerWithWaitList)              \
  X(EnqueueNDRangeKernel)                   \
  X(EnqueueReadBuffer)                      \
  X(EnqueueReadBufferRect)                  \
  X(EnqueueUnmapMemObject)                  \
  X(EnqueueWriteBuffer)                     \
  X(EnqueueWriteBufferRect)                 \
  X(Finish)                                 \
  X(Flush)                                  \
  X(GetCommandQueueInfo)                    \
  X(GetContextInfo)                         \
  X(GetDeviceIDs)                           \
  X(GetDeviceInfo)                          \
  X(GetEventInfo)                           \
  X(GetExtensionFunctionAddressForPlatform) \
  X(GetMemObjectInfo)                       \
  X(GetPlatformIDs)                         \
  X(GetPlatformInfo)                        \
  X(ReleaseCommandQueue)                    \
  X(ReleaseContext)                         \
  X(ReleaseEvent)                           \
  X(ReleaseKernel)                          \
  X(ReleaseMemObject)                       \
  X(ReleaseProgram)                         \
  X(RetainCommandQueue)                     \
  X(RetainContext)                          \
  X(RetainMemObject)                        \
  X(SetEventCallback)                       \
  X(SetKernelArg)                           \
  X(SetUserEventStatus)                     \
  X(WaitForEvents)

struct Api {
#define HETCOMM_OPENCL_POINTER(name) decltype(&::cl##name) name = nullptr;
  HETCOMM_OPENCL_FUNCTIONS(HETCOMM_OPENCL_POINTER)
#undef HETCOMM_OPENCL_POINTER

  // Loads OpenCL if it is not loaded yet. NOT_FOUND: this process cannot load OpenCL. UNSUPPORTED:
  // the library is too old. The text gives the reason. The table lives as long as the process.
  // [any-thread]
  static Result<const Api*> open();
};

// Converts an OpenCL status to a Code. A status that indicates a lost device, or a lack of memory
// or resources, is stored for take_failure().
Code code_of(cl_int status);
// Returns and clears the last status that code_of() stored on this thread; CL_SUCCESS if there is
// none.
cl_int take_failure();
// Returns a name such as "CL_OUT_OF_RESOURCES", or the number of an unknown status.
std::string name_of(cl_int status);
inline Status status_of(cl_int status, const char* call) {
  if (status == CL_SUCCESS) return {};
  return {code_of(status), std::string(call) + ": " + name_of(status)};
}

}  // namespace hetcomm::opencl
