// GradientNorm computes the norm of gradients from their parts.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hetcomm::pipeline {

class GradientNorm {
 public:
  // |type| is the p of the p-norm, and is positive. If it is infinite, the norm is the maximum
  // absolute value.
  explicit GradientNorm(double type) : type_(type) {}

  // Adds |count| elements of |datatype|, one of HETCOMM_INT8 to HETCOMM_COMPLEX128.
  void add(const std::byte* data, uint64_t count, int32_t datatype);
  // Adds the part of another rank.
  void add(double part, bool has_nonfinite);

  // Returns the sum of powers, or the maximum absolute value if the type is infinite.
  double part() const { return part_; }
  // Returns whether any element was infinite or NaN.
  bool has_nonfinite() const { return has_nonfinite_; }
  double norm() const;

 private:
  template <typename Read>
  void add_each(uint64_t count, Read&& read);

  double type_;
  double part_ = 0;
  bool has_nonfinite_ = false;
};

}  // namespace hetcomm::pipeline
