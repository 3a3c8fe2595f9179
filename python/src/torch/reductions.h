// Reductions that torch performs on a device: which of them are exact, and how they are performed.
//
// The library accepts only results with the same bits as on the host. Back-ends may flush small
// numbers to zero or round differently. So each combination of type and operator is tested before
// its first use, on a separate thread.
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

// Whether |what| follows the rules of its types, operators and divisors.
bool is_well_formed(const hetcomm_device_reduction_t& what);

class Reductions {
 public:
  explicit Reductions(c10::Device device) : device_(device) {}
  Reductions(const Reductions&) = delete;
  Reductions& operator=(const Reductions&) = delete;
  // Waits for a trial in progress.
  ~Reductions();

  // Whether |what|, which is well formed, gives the same bits as torch's CPU. False also if this
  // was not tested yet; a test then starts. May throw if out of memory. [any-thread]
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
  bool running_ = false;  // the thread has pending trials
  std::thread thread_;
};

// Converts the library's type to torch's. Undefined: torch does not reduce this type.
at::ScalarType scalar_type_of(int32_t datatype);

}  // namespace hetcomm::torch_backend
