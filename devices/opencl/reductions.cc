#include "devices/opencl/reductions.h"

#include <bit>
#include <exception>
#include <string_view>
#include <utility>

#include <fmt/core.h>

#include <hetcomm/datatype.h>

#include "src/system/signals_blocked.h"

namespace hetcomm::opencl {
namespace {

// Describes how kernels read and write the elements of a type, and in which type they calculate.
struct Element {
  std::string_view memory;  // type of an element in memory
  std::string_view number;  // type for calculation
  std::string_view load;    // reads element i of p
  std::string_view store;   // writes v to element i of p
};

constexpr std::string_view kPlainLoad = "p[i]";
constexpr std::string_view kPlainStore = "p[i] = v";

// Returns the element for |type|. Kernels treat integers as unsigned, so that they wrap around. For
// the minimum and maximum, signed types stay signed. If there is no kernel for the type, |memory|
// is empty.
Element element_of(int32_t type, int32_t reduction) {
  const bool compares = reduction == HETCOMM_REDUCE_MIN || reduction == HETCOMM_REDUCE_MAX;
  const auto integer = [&](std::string_view with_sign, std::string_view without, bool has_sign,
                           bool is_long) -> Element {
    const bool keeps = has_sign && compares;
    const std::string_view number = is_long ? (keeps ? "long" : "ulong") : (keeps ? "int" : "uint");
    return {keeps ? with_sign : without, number, kPlainLoad, kPlainStore};
  };
  const auto real = [&](Element element) {
    const bool adds = reduction == HETCOMM_REDUCE_SUM || reduction == HETCOMM_REDUCE_PRODUCT;
    return adds ? element : Element{};
  };
  switch (type) {
    case HETCOMM_BOOL:
      return {"uchar", "uint", "p[i] != 0", kPlainStore};
    case HETCOMM_INT8:
      return integer("char", "uchar", true, false);
    case HETCOMM_UINT8:
      return integer("char", "uchar", false, false);
    case HETCOMM_INT16:
      return integer("short", "ushort", true, false);
    case HETCOMM_UINT16:
      return integer("short", "ushort", false, false);
    case HETCOMM_INT32:
      return integer("int", "uint", true, false);
    case HETCOMM_UINT32:
      return integer("int", "uint", false, false);
    case HETCOMM_INT64:
      return integer("long", "ulong", true, true);
    case HETCOMM_UINT64:
      return integer("long", "ulong", false, true);
    case HETCOMM_FLOAT16:
      return real({"half", "float", "vload_half(i, p)", "vstore_half_rte(v, i, p)"});
    case HETCOMM_BFLOAT16:
      return real({"ushort", "float", "as_float((uint)p[i] << 16)",
                   "p[i] = isnan(v) ? 0x7fc0 : "
                   "(as_uint(v) + 0x7fff + (as_uint(v) >> 16 & 1)) >> 16"});
    case HETCOMM_FLOAT32:
      return real({"float", "float", kPlainLoad, kPlainStore});
    case HETCOMM_FLOAT64:
      return real({"double", "double", kPlainLoad, kPlainStore});
    default:
      return {};  // not supported here: the host reduces the other types
  }
}

// Returns the expression for the result of a and b.
std::string_view expression_of(int32_t reduction, bool is_bool) {
  switch (reduction) {
    case HETCOMM_REDUCE_SUM:
      return is_bool ? "a | b" : "a + b";
    case HETCOMM_REDUCE_PRODUCT:
      return is_bool ? "a & b" : "a * b";
    case HETCOMM_REDUCE_MIN:
      return is_bool ? "a & b" : "min(a, b)";
    case HETCOMM_REDUCE_MAX:
      return is_bool ? "a | b" : "max(a, b)";
    case HETCOMM_REDUCE_AND:
      return "a & b";
    case HETCOMM_REDUCE_OR:
      return "a | b";
    default:
      return "a ^ b";
  }
}

constexpr std::string_view kSource = R"(
#if IS_DOUBLE
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#pragma OPENCL FP_CONTRACT OFF
NUMBER load_first(global const FIRST* p, ulong i) { return LOAD_FIRST; }
NUMBER load_second(global const SECOND* p, ulong i) { return LOAD_SECOND; }
void store(global OUT* p, ulong i, NUMBER v) { STORE; }
kernel void reduce(global const FIRST* first, ulong first_at, global const SECOND* second,
                   ulong second_at, global OUT* out, ulong out_at, ulong elements, float divisor) {
  const ulong i = get_global_id(0);
  if (i >= elements) return;
  const NUMBER a = load_first(first + first_at, i);
  const NUMBER b = load_second(second + second_at, i);
  store(out + out_at, i, (RESULT) DIVIDED);
}
)";

// Returns the element size at each location. Kernels require alignment to these sizes.
std::array<uint64_t, 3> sizes_at(const DeviceReduction& what) {
  return {element_bytes(what.first_datatype), element_bytes(what.datatype),
          element_bytes(what.out_datatype)};
}

bool is_power_of_two(uint32_t number) { return std::has_single_bit(number); }

}  // namespace

Reductions::~Reductions() {
  {
    const std::scoped_lock lock(mutex_);
    wanted_.clear();
  }
  if (compiler_.joinable()) compiler_.join();
  for (const auto& [variant, own] : kernels_) {
    if (own.kernel != nullptr) api_.ReleaseKernel(own.kernel);
    if (own.program != nullptr) api_.ReleaseProgram(own.program);
  }
}

Reductions::Variant Reductions::variant_of(const DeviceReduction& what) {
  const Division division = what.divisor == 1               ? Division::kNone
                            : is_power_of_two(what.divisor) ? Division::kByFactor
                                                            : Division::kByQuotient;
  return {what.datatype, what.reduction, what.first_datatype, what.out_datatype, division};
}

// Returns whether the device calculates exactly the same results as the host.
bool Reductions::can_calculate(const Variant& variant) const {
  const auto& [type, reduction, first, out, division] = variant;
  const Element element = element_of(type, reduction);
  if (element.memory.empty()) return false;
  const bool is_double = element.number == "double";
  if (!is_double && element.number != "float") return true;
  cl_device_fp_config known = 0;
  const cl_device_info what = is_double ? CL_DEVICE_DOUBLE_FP_CONFIG : CL_DEVICE_SINGLE_FP_CONFIG;
  cl_device_fp_config needed = CL_FP_DENORM | CL_FP_INF_NAN | CL_FP_ROUND_TO_NEAREST;
  if (division == Division::kByQuotient) needed |= CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT;
  return api_.GetDeviceInfo(device_, what, sizeof(known), &known, nullptr) == CL_SUCCESS &&
         (known & needed) == needed;
}

// Compiles a kernel and runs it once. Leaves |*out_kernel| null if that fails.
void Reductions::compile(const Variant& variant, cl_program* out_program, cl_kernel* out_kernel) {
  const auto& [type, reduction, first, out, division] = variant;
  const Element second_element = element_of(type, reduction);
  const Element first_element = element_of(first, reduction);
  const Element out_element = element_of(out, reduction);
  const auto define = [](std::string_view name, std::string_view text) {
    return fmt::format("#define {} {}\n", name, text);
  };
  const bool is_double = second_element.number == "double";
  try {
    const std::string source =
        define("IS_DOUBLE", is_double ? "1" : "0") + define("NUMBER", second_element.number) +
        define("FIRST", first_element.memory) + define("SECOND", second_element.memory) +
        define("OUT", out_element.memory) + define("LOAD_FIRST", first_element.load) +
        define("LOAD_SECOND", second_element.load) + define("STORE", out_element.store) +
        define("RESULT", expression_of(reduction, type == HETCOMM_BOOL)) +
        define("DIVIDED", division == Division::kNone       ? ""
                          : division == Division::kByFactor ? "* divisor"
                                                            : "/ divisor") +
        std::string(kSource);
    const char* text = source.c_str();
    cl_int status = CL_SUCCESS;
    *out_program = api_.CreateProgramWithSource(context_, 1, &text, nullptr, &status);
    const char* const options =
        division == Division::kByQuotient ? "-cl-fp32-correctly-rounded-divide-sqrt" : "";
    if (*out_program != nullptr &&
        api_.BuildProgram(*out_program, 1, &device_, options, nullptr, nullptr) == CL_SUCCESS) {
      *out_kernel = api_.CreateKernel(*out_program, "reduce", &status);
      if (*out_kernel != nullptr && !runs(*out_kernel)) {
        api_.ReleaseKernel(std::exchange(*out_kernel, nullptr));
      }
    }
  } catch (const std::bad_alloc&) {
    *out_kernel = nullptr;  // the host continues to calculate
  }
}

// Runs the kernel once with zero elements, since vendors complete the compilation only at the first
// launch. A later first launch might have to wait for commands that are blocked in users' queues.
// Returns whether the run succeeded.
bool Reductions::runs(cl_kernel kernel) const {
  constexpr size_t kItems = 64;
  const cl_ulong none = 0;
  const cl_float one = 1;
  cl_int status = CL_SUCCESS;
  const cl_mem buffer = api_.CreateBuffer(context_, CL_MEM_READ_WRITE, kItems, nullptr, &status);
  const cl_command_queue queue =
      buffer != nullptr ? api_.CreateCommandQueue(context_, device_, 0, &status) : nullptr;
  for (cl_uint i = 0; i < 3 && status == CL_SUCCESS; ++i) {
    status = api_.SetKernelArg(kernel, 2 * i, sizeof(buffer), &buffer);
    if (status == CL_SUCCESS) status = api_.SetKernelArg(kernel, 2 * i + 1, sizeof(none), &none);
  }
  if (status == CL_SUCCESS) status = api_.SetKernelArg(kernel, 6, sizeof(none), &none);
  if (status == CL_SUCCESS) status = api_.SetKernelArg(kernel, 7, sizeof(one), &one);
  if (status == CL_SUCCESS) {
    status =
        api_.EnqueueNDRangeKernel(queue, kernel, 1, nullptr, &kItems, nullptr, 0, nullptr, nullptr);
  }
  if (status == CL_SUCCESS) status = api_.Finish(queue);
  if (queue != nullptr) api_.ReleaseCommandQueue(queue);
  if (buffer != nullptr) api_.ReleaseMemObject(buffer);
  return status == CL_SUCCESS;
}

void Reductions::run_compiler() {
  std::unique_lock lock(mutex_);
  while (!wanted_.empty()) {
    const Variant variant = wanted_.back();
    wanted_.pop_back();
    lock.unlock();
    cl_program program = nullptr;
    cl_kernel kernel = nullptr;
    compile(variant, &program, &kernel);
    lock.lock();
    kernels_.at(variant) = {.state = kernel != nullptr ? State::kReady : State::kNever,
                            .program = program,
                            .kernel = kernel};
  }
  compiling_ = false;
}

// Starts the compiler thread unless it is running. Call with the mutex held. Returns false if no
// thread can be started now.
bool Reductions::start_compiler() {
  if (compiling_) return true;
  if (compiler_.joinable()) compiler_.join();  // it has no work left
  const SignalsBlocked blocked;
  try {
    compiler_ = std::thread([this] { run_compiler(); });
  } catch (const std::exception&) {  // no thread, or no memory for one
    return false;
  }
  compiling_ = true;
  return true;
}

// Returns whether kernels can read the operands and write the result.
bool Reductions::are_usable(const DeviceReduction& what, const Locations& locations) const {
  const std::array<uint64_t, 3> sizes = sizes_at(what);
  for (size_t i = 0; i < locations.size(); ++i) {
    const Location& location = locations[i];
    if ((reinterpret_cast<uintptr_t>(location.pointer) + location.offset) % sizes[i] != 0)
      return false;
    if (location.pointer != nullptr) {
      if (!pointers_.are_arguments()) return false;
      continue;
    }
    // The caller may have created the buffer with flags that forbid this access by kernels.
    const bool is_out = i + 1 == locations.size();
    const cl_mem_flags forbids = is_out ? CL_MEM_READ_ONLY : CL_MEM_WRITE_ONLY;
    cl_mem_flags flags = 0;
    if (api_.GetMemObjectInfo(location.buffer, CL_MEM_FLAGS, sizeof(flags), &flags, nullptr) !=
            CL_SUCCESS ||
        (flags & forbids) != 0) {
      return false;
    }
  }
  return true;
}

Code Reductions::prepare(const DeviceReduction& what, const Locations& locations) {
  if (!are_usable(what, locations)) return Code::kUnsupported;
  const Variant variant = variant_of(what);
  const std::scoped_lock lock(mutex_);
  const auto known = kernels_.find(variant);
  if (known != kernels_.end()) {
    return known->second.state == State::kReady ? Code::kOk : Code::kUnsupported;
  }
  wanted_.reserve(wanted_.size() + 1);
  Kernel& fresh = kernels_[variant];
  if (!can_calculate(variant)) {
    fresh.state = State::kNever;
  } else if (start_compiler()) {
    wanted_.push_back(variant);
  } else {
    kernels_.erase(variant);
  }
  return Code::kUnsupported;
}

cl_int Reductions::set_argument(cl_kernel kernel, cl_uint index, const Location& location) const {
  return location.pointer != nullptr
             ? pointers_.set_argument(kernel, index, location.pointer)
             : api_.SetKernelArg(kernel, index, sizeof(location.buffer), &location.buffer);
}

cl_int Reductions::start(cl_command_queue queue, const DeviceReduction& what,
                         const Locations& locations, cl_event* out_event) {
  constexpr size_t kGroup = 64;  // work items are a multiple of this, to allow work-groups
  const std::array<uint64_t, 3> sizes = sizes_at(what);
  const cl_ulong elements = what.elements;
  const cl_float divisor = is_power_of_two(what.divisor) ? 1.0F / static_cast<float>(what.divisor)
                                                         : static_cast<float>(what.divisor);
  const std::scoped_lock lock(mutex_);
  const cl_kernel kernel = kernels_.at(variant_of(what)).kernel;
  cl_int status = CL_SUCCESS;
  for (cl_uint i = 0; i < locations.size() && status == CL_SUCCESS; ++i) {
    const cl_ulong at = locations[i].offset / sizes[i];
    status = set_argument(kernel, 2 * i, locations[i]);
    if (status == CL_SUCCESS) status = api_.SetKernelArg(kernel, 2 * i + 1, sizeof(at), &at);
  }
  if (status == CL_SUCCESS) status = api_.SetKernelArg(kernel, 6, sizeof(elements), &elements);
  if (status == CL_SUCCESS) status = api_.SetKernelArg(kernel, 7, sizeof(divisor), &divisor);
  if (status != CL_SUCCESS) return status;
  const size_t items = (elements + kGroup - 1) / kGroup * kGroup;
  return api_.EnqueueNDRangeKernel(queue, kernel, 1, nullptr, &items, nullptr, 0, nullptr,
                                   out_event);
}

}  // namespace hetcomm::opencl
