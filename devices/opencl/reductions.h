// Reductions runs kernels that reduce memory in a context, element by element. A separate thread
// compiles a kernel when it is first needed. The thread ends when no kernel is left to compile.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "devices/device.h"
#include "devices/opencl/api.h"
#include "devices/opencl/location.h"
#include "devices/opencl/pointers.h"
#include "src/base/status.h"

namespace hetcomm::opencl {

// All functions may be called by any thread.
class Reductions {
 public:
  // |context|, |device| and |pointers| must outlive this object.
  Reductions(const Api& api, cl_context context, cl_device_id device, const Pointers& pointers)
      : api_(api), context_(context), device_(device), pointers_(pointers) {}
  Reductions(const Reductions&) = delete;
  Reductions& operator=(const Reductions&) = delete;
  // Waits for the kernel that is being compiled.
  ~Reductions();

  // The locations of the first operand, the second operand and the result.
  using Locations = std::array<Location, 3>;

  // Checks whether |what|, which sizes_of() has accepted, can be performed. kUnsupported: it
  // cannot, or its kernel has not been compiled yet. May throw std::bad_alloc.
  Code prepare(const DeviceReduction& what, const Locations& locations);
  // Starts a reduction that prepare() has accepted.
  cl_int start(cl_command_queue queue, const DeviceReduction& what, const Locations& locations,
               cl_event* out_event);

 private:
  enum class Division : uint8_t { kNone, kByFactor, kByQuotient };
  // The properties that select a kernel: type, operator, type of the first operand, type of the
  // result, and division.
  using Variant = std::tuple<int32_t, int32_t, int32_t, int32_t, Division>;
  enum class State : uint8_t { kCompiling, kReady, kNever };
  struct Kernel {
    State state = State::kCompiling;
    cl_program program = nullptr;
    cl_kernel kernel = nullptr;
  };

  static Variant variant_of(const DeviceReduction& what);
  bool can_calculate(const Variant& variant) const;
  bool are_usable(const DeviceReduction& what, const Locations& locations) const;
  bool runs(cl_kernel kernel) const;
  bool start_compiler();
  void run_compiler();
  void compile(const Variant& variant, cl_program* out_program, cl_kernel* out_kernel);
  cl_int set_argument(cl_kernel kernel, cl_uint index, const Location& location) const;

  const Api& api_;
  const cl_context context_;
  const cl_device_id device_;
  const Pointers& pointers_;
  std::mutex mutex_;  // guards the members below and the arguments of kernels
  std::map<Variant, Kernel> kernels_;
  std::vector<Variant> wanted_;  // kernels to compile
  bool compiling_ = false;       // the compiler thread has work
  std::thread compiler_;
};

}  // namespace hetcomm::opencl
