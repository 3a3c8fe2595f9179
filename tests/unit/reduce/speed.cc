// Measures the speed of combining compared with copying: GB/s of all bytes read and written, best
// and median of many short alternating rounds, and the time of the smallest call. Not a test.
//
//   reduce_speed [rounds]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "src/reduce/reduce.h"
#include "src/system/clock.h"

namespace hetcomm::test {
namespace {

using reduce::Operator;
using reduce::Type;

constexpr size_t kLargest = 64u << 20;
constexpr size_t kInputs = 4;

struct Buffers {
  std::vector<std::byte> in[kInputs];
  std::vector<std::byte> out;
};

template <class Run>
double seconds(const Run& run, size_t repeats) {
  const uint64_t start = now_ns();
  for (size_t i = 0; i < repeats; ++i) run();
  return static_cast<double>(now_ns() - start) * 1e-9;
}

void run(int rounds) {
  static constexpr struct {
    const char* name;
    Type type;
  } kTypes[] = {{"float32", Type::kFloat32},
                {"float16", Type::kFloat16},
                {"bfloat16", Type::kBfloat16},
                {"e4m3fn", Type::kFloat8E4M3fn},
                {"int8", Type::kInt8}};
  Buffers buffers;
  const std::byte* in[kInputs];
  for (size_t k = 0; k < kInputs; ++k) {
    buffers.in[k].assign(kLargest, std::byte{0});
    in[k] = buffers.in[k].data();
  }
  buffers.out.assign(kLargest, std::byte{0});
  std::byte* const out = buffers.out.data();

  std::map<std::string, std::vector<double>> rates;
  std::vector<double> smallest;
  for (int round = 0; round < rounds; ++round) {
    for (const size_t size : {size_t{16} << 10, size_t{256} << 10, kLargest}) {
      const size_t repeats = std::max<size_t>(1, (32u << 20) / size);
      const auto add = [&](const std::string& name, size_t streams, const auto& body) {
        const double time = seconds(body, repeats);
        rates[std::to_string(size >> 10) + " KiB " + name].push_back(
            static_cast<double>(streams * size * repeats) / time / 1e9);
      };
      add("copy", 2, [&] { std::memcpy(out, in[0], size); });
      for (const auto& [name, type] : kTypes) {
        for (const size_t inputs : {size_t{2}, kInputs}) {
          add(std::string(name) + " sum of " + std::to_string(inputs), inputs + 1, [&, of = type] {
            reduce::combine(of, Operator::kSum, out, in, inputs, size / reduce::size_of(of));
          });
        }
      }
    }
    constexpr size_t kCalls = 100000;
    smallest.push_back(
        1e9 / kCalls *
        seconds([&] { reduce::combine(Type::kFloat32, Operator::kSum, out, in, 2, 2); }, kCalls));
  }
  for (auto& [name, values] : rates) {
    std::sort(values.begin(), values.end());
    std::printf("GB/s %-32s best %7.2f  median %7.2f\n", name.c_str(), values.back(),
                values[values.size() / 2]);
  }
  std::sort(smallest.begin(), smallest.end());
  std::printf("ns   8 B float32 sum of 2: best %.2f  median %.2f\n", smallest.front(),
              smallest[smallest.size() / 2]);
}

}  // namespace
}  // namespace hetcomm::test

int main(int argc, char** argv) { hetcomm::test::run(argc > 1 ? std::atoi(argv[1]) : 20); }
