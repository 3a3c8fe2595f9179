// Runs a fuzz target without a fuzzer: <target> [seconds] [seed] [file...]. Feeds it the files,
// then random inputs and mutations of its own earlier ones for |seconds|. A crash leaves the seed
// and the input's number on standard error, which suffice to repeat the run. A target may define
// fuzz_incomplete(), which names properties that no input has reached yet. The run continues until
// none is left, and fails if one is left after kPatience.
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" [[gnu::weak]] const char* fuzz_incomplete();

namespace {

using Input = std::vector<uint8_t>;
constexpr size_t kMaxInput = 4096;
constexpr size_t kPool = 64;
constexpr std::chrono::seconds kPatience(20);

unsigned long g_seed = 0;
unsigned long g_count = 0;

void report(int signal_number) {
  char line[128];
  const int length =
      std::snprintf(line, sizeof(line), "fuzz: seed %lu, input %lu\n", g_seed, g_count);
  if (length > 0) std::fwrite(line, 1, static_cast<size_t>(length), stderr);
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

Input random_input(std::mt19937_64& random) {
  // Mostly short inputs with few distinct values, so that lengths and tags are often small.
  Input input(random() % (random() % 8 == 0 ? kMaxInput : 64));
  const bool small = random() % 2 == 0;
  for (uint8_t& byte : input) byte = static_cast<uint8_t>(small ? random() % 8 : random());
  return input;
}

void mutate(Input& input, std::mt19937_64& random) {
  for (uint64_t i = random() % 4 + 1; i > 0; --i) {
    const size_t at = input.empty() ? 0 : random() % input.size();
    const auto position = input.begin() + static_cast<ptrdiff_t>(at);
    switch (input.empty() ? 0 : random() % 4) {
      case 0:
        input.insert(position, static_cast<uint8_t>(random()));
        break;
      case 1:
        input.erase(position);
        break;
      case 2:
        *position = static_cast<uint8_t>(*position ^ (1u << (random() % 8)));
        break;
      default:
        input.insert(input.end(), input.begin(), position);
        break;
    }
  }
  if (input.size() > kMaxInput) input.resize(kMaxInput);
}

void feed(const Input& input) {
  LLVMFuzzerTestOneInput(input.data(), input.size());
  ++g_count;
}

}  // namespace

int main(int count, char** arguments) {
  for (const int signal_number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM}) {
    std::signal(signal_number, report);
  }
  const long seconds = count > 1 ? std::strtol(arguments[1], nullptr, 10) : 3;
  g_seed = count > 2 ? std::strtoul(arguments[2], nullptr, 10) : std::random_device()();
  for (int i = 3; i < count; ++i) {
    std::ifstream file(arguments[i], std::ios::binary);
    feed(Input(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()));
  }
  std::mt19937_64 random(g_seed);
  std::vector<Input> pool(1);
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::steady_clock::now() - begin; };
  const auto goes_on = [&] {
    if (elapsed() < std::chrono::seconds(seconds)) return true;
    return fuzz_incomplete != nullptr && fuzz_incomplete() != nullptr && elapsed() < kPatience;
  };
  while (goes_on()) {
    for (int i = 0; i < 100; ++i) {
      Input input = random() % 4 == 0 ? random_input(random) : pool[random() % pool.size()];
      mutate(input, random);
      feed(input);
      if (pool.size() < kPool) {
        pool.push_back(std::move(input));
      } else if (random() % 8 == 0) {
        pool[random() % kPool] = std::move(input);
      }
    }
  }
  std::printf("fuzz: %lu inputs, seed %lu\n", g_count, g_seed);
  if (const char* missing = fuzz_incomplete != nullptr ? fuzz_incomplete() : nullptr) {
    std::fprintf(stderr, "fuzz: never reached: %s\n", missing);
    return 1;
  }
  return 0;
}
