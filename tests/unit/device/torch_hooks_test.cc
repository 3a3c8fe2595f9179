// Checks that torch's back-end hook table neither copies nor destroys a hook while it holds its
// lock, because Python objects acquire Python's lock for both. A lookup that throws is repeated.
#include <atomic>
#include <chrono>
#include <new>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include "python/src/torch/hooks.h"
#include "python/src/torch/lookout.h"

namespace hetcomm::torch_backend {
namespace {

using Table = HookTable<int>;

struct Counts {
  int copies = 0;
  int ends = 0;
  int calls = 0;
};

// Uses the table during its own destruction, which would deadlock under the table's lock.
class Hook {
 public:
  Hook(Table& table, Counts& counts) : table_(table), counts_(counts) {}
  Hook(const Hook& other) : table_(other.table_), counts_(other.counts_) { ++counts_.copies; }
  Hook& operator=(const Hook&) = delete;
  ~Hook() {
    ++counts_.ends;
    table_.call(0);
  }
  void operator()(int count) const { counts_.calls += count; }

 private:
  Table& table_;
  Counts& counts_;
};

TEST(TorchHooks, HooksAreNeitherCopiedNorDestroyedUnderTheLock) {
  Table table("a hook");
  Counts counts;
  table.add(1, Hook(table, counts));
  const int copies = counts.copies;
  const int ends = counts.ends;
  for (int id = 2; id < 6; ++id) table.add(id, [](int) {});
  table.remove(3);
  table.call(2);
  EXPECT_EQ(counts.calls, 2);
  EXPECT_EQ(counts.copies, copies);
  EXPECT_EQ(counts.ends, ends);
  table.add(1, [](int) {});
  EXPECT_EQ(counts.ends, ends + 1);
  table.add(7, Hook(table, counts));
  const int before = counts.ends;
  table.remove(7);
  EXPECT_EQ(counts.ends, before + 1);
}

TEST(TorchHooks, ThrowingHookDoesNotPreventOtherCalls) {
  Table table("a hook");
  int calls = 0;
  table.add(1, [](int) { throw std::runtime_error("its own trouble"); });
  table.add(2, [&calls](int count) { calls += count; });
  table.call(3);
  EXPECT_EQ(calls, 3);
}

TEST(TorchLookout, ThrowingCheckIsRepeated) {
  std::atomic<int> looks{0};
  Lookout lookout;
  lookout.add([&looks]() -> bool {
    if (looks.fetch_add(1) == 0) throw std::bad_alloc();
    return false;
  });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (looks.load() < 2 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(looks.load(), 2);
}

}  // namespace
}  // namespace hetcomm::torch_backend
