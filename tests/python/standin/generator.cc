// Random numbers for the stand-in device.
//
// The state is a seed and an offset of 8 bytes each, as DTensor requires. Each operator draws from
// its own CPU generator, which is seeded with both.
#include "tests/python/standin/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <cstring>

#include "tests/python/standin/stream.h"

namespace standin {
namespace {

constexpr uint64_t kOffsetOfOneOperator = 4;

struct Generator final : c10::GeneratorImpl {
  explicit Generator(int device)
      : GeneratorImpl({c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device)},
                      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.device().is_cpu() && state.numel() == 16 && state.itemsize() == 1,
                "standin: the state of a generator has 16 bytes on the CPU");
    const auto* const bytes = static_cast<const char*>(state.data());
    std::memcpy(&seed_, bytes, 8);
    std::memcpy(&offset_, bytes + 8, 8);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const at::Tensor state = at::empty({16}, at::TensorOptions().dtype(at::kByte));
    auto* const bytes = static_cast<char*>(state.mutable_data_ptr());
    std::memcpy(bytes, &seed_, 8);
    std::memcpy(bytes + 8, &offset_, 8);
    return state.getIntrusivePtr();
  }

 private:
  Generator* clone_impl() const override {
    auto* const clone = new Generator(device_.index());
    clone->seed_ = seed_;
    clone->offset_ = offset_;
    return clone;
  }

  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

}  // namespace

at::Generator new_generator(int device) { return at::make_generator<Generator>(device); }

const at::Generator& default_generator(int device) {
  static auto* const all =
      new std::array<at::Generator, kDevices>{new_generator(0), new_generator(1)};
  return all->at(static_cast<size_t>(device));
}

at::Generator cpu_generator_for(const at::Generator& generator) {
  c10::GeneratorImpl& state = *generator.unsafeGetGeneratorImpl();
  const std::lock_guard lock(state.mutex_);
  const uint64_t offset = state.get_offset();
  state.set_offset(offset + kOffsetOfOneOperator);
  return at::detail::createCPUGenerator(state.current_seed() ^ (offset * 0x9E3779B97F4A7C15u));
}

}  // namespace standin
