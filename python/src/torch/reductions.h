// Performs reductions on a device with PyTorch, and determines which of them are exact.
//
// The library accepts only results with the same bits as on the host. Back-ends may flush small
// numbers to zero or round differently. Each combination of types and operator is therefore tested
// on a separate thread before its first use.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Device.h>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include <hetcomm/device_plugin.h>

namespace hetcomm::torch_backend {

// Returns whether |what| is a valid combination of types, operator and divisor.
bool is_well_formed(const hetcomm_device_reduction_t& what);

class Reductions {
 public:
  explicit Reductions(c10::Device device) : device_(device) {}
  Reductions(const Reductions&) = delete;
  Reductions& operator=(const Reductions&) = delete;
  // Waits for the trials that are in progress.
  ~Reductions();

  // Returns whether the well-formed |what| gives the same bits as PyTorch's CPU back-end, apart
  // from the bits of a NaN. If that has not been tested yet, starts a test and returns false. May
  // throw if memory runs out. [any-thread]
  bool are_exact(const hetcomm_device_reduction_t& what);

  // Reduces in the current stream. The tensors have one dimension and the types of |what|.
  static void reduce(const hetcomm_device_reduction_t& what, const at::Tensor& first,
                     const at::Tensor& second, const at::Tensor& out);

 private:
  // Operator, types and divisor of a reduction.
  using Variant = std::tuple<int32_t, int32_t, int32_t, int32_t, uint32_t>;
  enum class Verdict : uint8_t { kTrying, kExact, kOther };
  void run();
  Verdict try_out(const Variant& variant) const;

  const c10::Device device_;
  std::mutex mutex_;  // guards the members below
  std::map<Variant, Verdict> verdicts_;
  std::vector<Variant> wanted_;
  bool running_ = false;  // true while the thread has trials to run
  std::thread thread_;
};

// Returns the PyTorch type for |datatype|, or Undefined if PyTorch does not reduce such elements.
at::ScalarType scalar_type_of(int32_t datatype);

}  // namespace hetcomm::torch_backend
