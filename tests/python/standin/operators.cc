// Operators of the stand-in device: copies, asynchronous kernels, views, and the CPU for the rest.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <cstring>
#include <memory>
#include <thread>
#include <torch/library.h>
#include <vector>

#include "tests/python/standin/generator.h"
#include "tests/python/standin/memory.h"

namespace standin {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

bool is_ours(const at::Tensor& tensor) { return tensor.device().type() == kType; }

Stream& stream_of(const at::Tensor& tensor) { return current_stream(tensor.device().index()); }

// Allocation.

at::Tensor empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> type,
                 std::optional<at::Layout>, std::optional<c10::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(sizes, &device_allocator(), kKeys, c10::dtype_or_default(type),
                                   format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         std::optional<at::ScalarType> type, std::optional<at::Layout>,
                         std::optional<c10::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, &device_allocator(), kKeys,
                                           c10::dtype_or_default(type));
}

at::Tensor temporary_like(const at::Tensor& shape, c10::Device device, at::ScalarType type) {
  return empty(shape.sizes(), type, {}, device, {}, {});
}

// Kernels. They see device memory as CPU tensors over its alias, in the stream's thread.

at::Tensor as_the_device_sees_it(const at::Tensor& tensor) {
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  const size_t bytes = static_cast<size_t>(last + 1) * tensor.itemsize();
  void* const data = tensor.numel() == 0 ? nullptr : alias_of(tensor.const_data_ptr(), bytes);
  at::Tensor seen = at::from_blob(data, tensor.sizes(), tensor.strides(),
                                  at::TensorOptions().dtype(tensor.scalar_type()));
  if (tensor.is_conj()) seen._set_conj(true);
  if (tensor.is_neg()) seen._set_neg(true);
  return seen;
}

uint64_t enqueue_copy_kernel(const at::Tensor& to, const at::Tensor& from) {
  return stream_of(to).enqueue([target = as_the_device_sees_it(to),
                                source = as_the_device_sees_it(from)] { target.copy_(source); });
}

template <typename Convert>
c10::IValue converted(const c10::IValue& value, Convert convert) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? c10::IValue(convert(value.toTensor())) : value;
  }
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> list;
  for (const at::Tensor& each : value.toTensorVector()) list.push_back(convert(each));
  return list;
}

// Returns the tensor as a kernel sees it. A number on the CPU is read when the kernel is enqueued.
at::Tensor kernel_argument(const at::Tensor& tensor, int device) {
  if (is_ours(tensor)) {
    TORCH_CHECK(tensor.device().index() == device, "standin: the tensors are on two devices");
    return as_the_device_sees_it(tensor);
  }
  TORCH_CHECK(tensor.is_cpu() && tensor.dim() == 0, "standin: a tensor is not on the device");
  at::Tensor number = tensor.clone();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    number.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return number;
}

// All other operators wait for the device, and run on the CPU with copies.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  ++counts().fallbacks;
  const auto& arguments = op.schema().arguments();
  const size_t first = stack->size() - arguments.size();
  bool seeded = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].type()->str().find("Generator") == std::string::npos) continue;
    c10::IValue& value = (*stack)[first + i];
    value = cpu_generator_for(value.isNone() ? default_generator(current_device())
                                             : value.toGenerator());
    seeded = true;
  }
  if (seeded || !op.hasTag(at::Tag::nondeterministic_seeded)) {
    at::native::cpu_fallback(op, stack);
    return;
  }
  // Some random operators take no generator. Their kernels use the CPU's default generator.
  at::Generator used = at::detail::getDefaultCPUGenerator();
  const at::Tensor state = used.get_state();
  used.set_current_seed(cpu_generator_for(default_generator(current_device())).current_seed());
  at::native::cpu_fallback(op, stack);
  used.set_state(state);
}

// Runs an operator's CPU kernel in the current stream. The operator writes only tensors that it is
// given. Torch has checked the arguments, except for an output given by the caller. Errors in that
// kernel become errors of the stream.
void kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  check_alive();
  const auto& arguments = op.schema().arguments();
  const size_t first = stack->size() - arguments.size();
  std::vector<at::Tensor> written;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* const alias = arguments[i].alias_info();
    if (alias != nullptr && alias->isWrite()) written.push_back((*stack)[first + i].toTensor());
  }
  // An empty output may have to grow.
  for (const at::Tensor& output : written) {
    if (output.numel() == 0) return fallback(op, stack);
  }
  const int device = written.at(0).device().index();
  torch::jit::Stack ready;
  for (size_t i = 0; i < arguments.size(); ++i) {
    ready.push_back(converted((*stack)[first + i], [&](const at::Tensor& tensor) {
      return kernel_argument(tensor, device);
    }));
  }
  ++counts().kernels;
  current_stream(device).enqueue([op, ready = std::move(ready)]() mutable {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &ready);
  });
  stack->resize(first);
  for (const at::Tensor& output : written) stack->emplace_back(output);
}

// Copies.

// Copies over the link to the device, in parts if its rate is limited.
void move_over_the_link(char* to, const char* from, size_t bytes) {
  const int64_t rate = settings().copy_rate;
  const size_t parts = rate > 0 ? 8 : 1;
  for (size_t i = 0; i < parts; ++i) {
    const size_t begin = bytes * i / parts;
    const size_t end = bytes * (i + 1) / parts;
    if (rate > 0) {
      const double seconds = static_cast<double>(end - begin) / static_cast<double>(rate);
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    }
    std::memcpy(to + begin, from + begin, end - begin);
  }
}

// Returns whether the bytes in memory, in order, are those of the tensor.
bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

bool same_layout(const at::Tensor& left, const at::Tensor& right) {
  return left.scalar_type() == right.scalar_type() && left.is_conj() == right.is_conj() &&
         left.is_neg() == right.is_neg() &&
         ((left.is_contiguous() && right.is_contiguous()) ||
          (left.strides() == right.strides() && left.is_non_overlapping_and_dense()));
}

void wait_for_copy(Stream& stream, uint64_t ticket) {
  ++counts().blocking_copies;
  stream.wait(ticket);
}

void copy_from_host(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  ++counts().copies_from_host;
  Stream& stream = stream_of(to);
  const at::Tensor source =
      same_layout(from, to) ? from
                            : from.to(to.scalar_type()).resolve_conj().resolve_neg().contiguous();
  const at::Tensor target =
      same_layout(source, to) ? to : temporary_like(to, to.device(), to.scalar_type());
  const size_t bytes = source.nbytes();
  char* const alias = alias_of(target.const_data_ptr(), bytes);
  const auto* const data = static_cast<const char*>(source.const_data_ptr());
  uint64_t ticket = 0;
  if (non_blocking && !is_pinned(data)) {
    // The host may change its pageable memory as soon as the call returns.
    const auto staged = std::make_shared<std::vector<char>>(data, data + bytes);
    ticket = stream.enqueue([=] { move_over_the_link(alias, staged->data(), staged->size()); });
  } else {
    ticket = stream.enqueue([=] { move_over_the_link(alias, data, bytes); });
    note_pinned_use(data, stream, ticket);
  }
  if (!target.is_same(to)) ticket = enqueue_copy_kernel(to, target);
  if (!non_blocking) wait_for_copy(stream, ticket);
}

void copy_to_host(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  ++counts().copies_to_host;
  Stream& stream = stream_of(from);
  at::Tensor source = from;
  at::Tensor target = to;
  if (!same_layout(from, to)) {
    if (from.scalar_type() != to.scalar_type() || !is_plain(from)) {
      source = temporary_like(from, from.device(), to.scalar_type());
      enqueue_copy_kernel(source, from);
    }
    if (!is_plain(to)) target = at::empty(to.sizes(), to.options());
  }
  const size_t bytes = source.nbytes();
  const char* const alias = alias_of(source.const_data_ptr(), bytes);
  auto* const data = static_cast<char*>(target.mutable_data_ptr());
  const uint64_t ticket = stream.enqueue([=] { move_over_the_link(data, alias, bytes); });
  note_pinned_use(data, stream, ticket);
  if (!non_blocking || !is_pinned(data)) wait_for_copy(stream, ticket);
  if (!target.is_same(to)) to.copy_(target);
}

void copy_between_devices(const at::Tensor& to, const at::Tensor& from) {
  Stream& sender = stream_of(from);
  Stream& receiver = stream_of(to);
  at::Tensor source = from;
  if (from.scalar_type() != to.scalar_type() || !is_plain(from)) {
    source = temporary_like(from, from.device(), to.scalar_type());
    enqueue_copy_kernel(source, from);
  }
  const at::Tensor target = is_plain(to) ? to : temporary_like(to, to.device(), to.scalar_type());
  const size_t bytes = source.nbytes();
  const char* const data = alias_of(source.const_data_ptr(), bytes);
  char* const alias = alias_of(target.const_data_ptr(), bytes);
  sender.wait_for(receiver, receiver.last());
  const uint64_t ticket = sender.enqueue([=] { move_over_the_link(alias, data, bytes); });
  receiver.wait_for(sender, ticket);
  if (!target.is_same(to)) enqueue_copy_kernel(to, target);
}

// As with CUDA, a copy within a device or between two devices never waits.
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool non_blocking) {
  check_alive();
  if (to.numel() == 0) return to;
  const at::Tensor from = self.expand(to.sizes());
  if (next_copy_fails_later()) {
    stream_of(is_ours(to) ? to : from).enqueue([] { TORCH_CHECK(false, kLost); });
  }
  if (from.is_cpu()) {
    copy_from_host(to, from, non_blocking);
  } else if (to.is_cpu()) {
    copy_to_host(to, from, non_blocking);
  } else {
    TORCH_CHECK(is_ours(from) && is_ours(to), "standin: no copies to other devices than the CPU");
    ++counts().copies_on_device;
    if (from.device() == to.device()) {
      enqueue_copy_kernel(to, from);
    } else {
      copy_between_devices(to, from);
    }
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  if (to.sizes() != self.sizes()) to.resize_(self.sizes());
  return copy_from(self, to, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) { return self.cpu().item(); }

// Sizes, storages and streams.

void fit_storage(const at::Tensor& self) {
  const size_t bytes = at::detail::computeStorageNbytes(
      self.sizes(), self.strides(), self.itemsize(), static_cast<size_t>(self.storage_offset()));
  if (self.numel() > 0 && bytes > self.storage().nbytes()) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), bytes);
  }
}

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef sizes,
                          std::optional<at::MemoryFormat> format) {
  c10::TensorImpl& tensor = *self.unsafeGetTensorImpl();
  if (self.sizes() != sizes) tensor.set_sizes_contiguous(sizes);
  if (format) tensor.empty_tensor_restride(*format);
  fit_storage(self);
  return self;
}

at::Tensor& set_storage_(at::Tensor& self, at::Storage source, int64_t offset,
                         c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  at::native::checkSetStorage(self, std::move(source), offset, sizes, strides);
  c10::TensorImpl& tensor = *self.unsafeGetTensorImpl();
  if (strides.data() == nullptr) {
    tensor.set_sizes_contiguous(sizes);
    tensor.set_storage_offset(offset);
  } else {
    tensor.set_sizes_and_strides(sizes, strides, offset);
  }
  fit_storage(self);
  return self;
}

at::Tensor& set_nothing_(at::Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  return self.set_(at::Storage(at::Storage::use_byte_size_t(), 0, &device_allocator(), true), 0,
                   {0}, {});
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  device_allocator().recordStream(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar_dense);
  m.impl("resize_", resize_);
  m.impl("set_", set_nothing_);
  m.impl("set_.source_Storage", at::native::set_);
  m.impl("set_.source_Storage_storage_offset", set_storage_);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("record_stream", record_stream);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);

  // The functional and in-place forms of these operators reach the device as the form with an
  // output.
  for (const char* name : {"add.out",
                           "sub.out",
                           "mul.out",
                           "div.out",
                           "neg.out",
                           "sqrt.out",
                           "exp.out",
                           "reciprocal.out",
                           "rsqrt.out",
                           "addcmul.out",
                           "addcdiv.out",
                           "lerp.Scalar_out",
                           "mm.out",
                           "addmm.out",
                           "bmm.out",
                           "baddbmm.out",
                           "gelu.out",
                           "gelu_backward.grad_input",
                           "cat.out",
                           "clamp_min.out",
                           "threshold_backward.grad_input",
                           "sum.IntList_out",
                           "mean.out",
                           "_softmax.out",
                           "_softmax_backward_data.out",
                           "_log_softmax.out",
                           "_log_softmax_backward_data.out",
                           "eq.Tensor_out",
                           "ne.Tensor_out",
                           "ne.Scalar_out",
                           "eq.Scalar_out",
                           "maximum.out",
                           "minimum.out",
                           "fill_.Scalar",
                           "zero_"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&kernel>());
  }
}

// Copies read and write conjugated and negated views themselves.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace
}  // namespace standin
