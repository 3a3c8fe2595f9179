// File descriptors of hetcomm_memory_allocate. Each allocation uses a file, up to a quarter of the
// files that a process may have. Further allocations work without a file.
#include <sys/resource.h>

#include <cstring>

#include "tests/conformance/capi/job.h"
#include "tests/support/descriptors.h"

namespace hetcomm_test {
namespace {

using hetcomm::test::open_descriptors;

TEST(HostMemory, FilesUseAtMostAQuarterOfTheDescriptors) {
  constexpr rlim_t kLimit = 240;
  constexpr size_t kShare = kLimit / 4;
  constexpr size_t kCount = 3 * kShare;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit little{kLimit, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &little), 0);
  hetcomm_context_options_t options{};
  options.struct_size = sizeof(options);
  hetcomm_context_t* context = nullptr;
  ASSERT_EQ(hetcomm_context_create(&options, &context), HETCOMM_OK) << hetcomm_last_error();
  const size_t start = open_descriptors();
  std::vector<hetcomm_memory_t*> memories(kCount);
  for (int round = 0; round < 3; ++round) {
    for (hetcomm_memory_t*& memory : memories) {
      if (memory != nullptr) continue;
      ASSERT_EQ(hetcomm_memory_allocate(context, 0, 1000, &memory), HETCOMM_OK)
          << hetcomm_last_error();
      void* address = nullptr;
      ASSERT_EQ(hetcomm_memory_address(memory, &address), HETCOMM_OK);
      std::memset(address, round, 1000);
    }
    EXPECT_EQ(open_descriptors() - start, kShare);
    // Some of these allocations have no file. Freeing one makes room for the next.
    for (size_t i = 0; i < kCount; i += static_cast<size_t>(round) + 2) {
      EXPECT_EQ(hetcomm_memory_destroy(memories[i]), HETCOMM_OK);
      memories[i] = nullptr;
    }
    EXPECT_LT(open_descriptors() - start, kShare);
  }
  for (hetcomm_memory_t* const memory : memories) {
    EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_OK);
  }
  EXPECT_EQ(open_descriptors(), start);
  EXPECT_EQ(hetcomm_context_destroy(context), HETCOMM_OK);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace hetcomm_test
