// Memory near a NUMA node:
//   - the kernel keeps the preference for exactly the whole pages in a range, before they are
//     touched, and takes the pages from that node;
//   - memory is always usable, even with a missing node, a node number that no kernel has, or a
//     process that may not set a policy (EPERM, ENOSYS);
//   - without a node there is no system call.
#include "src/system/numa_memory.h"

#include <linux/filter.h>
#include <linux/mempolicy.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>

#include <gtest/gtest.h>

namespace hetcomm {
namespace {

const auto kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));

struct Policy {
  int mode = -1;
  unsigned long first_nodes = 0;
};

Policy policy_of(const std::byte* address) {
  Policy policy;
  std::array<unsigned long, 16> nodes{};
  if (syscall(SYS_get_mempolicy, &policy.mode, nodes.data(), 1024UL, address, MPOL_F_ADDR) != 0) {
    return {};
  }
  policy.first_nodes = nodes[0];
  return policy;
}

bool has_policies() { return try_numa_node(0) == 0; }

std::byte* map_pages(size_t count) {
  return static_cast<std::byte*>(
      mmap(nullptr, count * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

void use(std::byte* memory, size_t bytes) {
  std::memset(memory, 1, bytes);
  EXPECT_EQ(memory[bytes - 1], std::byte{1});
}

TEST(NumaMemory, PrefersTheNodeWithoutBindingToIt) {
  if (!has_policies()) GTEST_SKIP() << "this kernel has no NUMA policies";
  const NumaMemory memory = allocate_near(3 * kPage, 0);
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.get()) % kPage, 0u);
  for (size_t page = 0; page < 3; ++page) {
    const Policy policy = policy_of(memory.get() + page * kPage);
    EXPECT_EQ(policy.mode, MPOL_PREFERRED);
    EXPECT_EQ(policy.first_nodes, 1u);
  }
  use(memory.get(), 3 * kPage);
}

TEST(NumaMemory, PreferenceCoversOnlyWholePages) {
  if (!has_policies()) GTEST_SKIP() << "this kernel has no NUMA policies";
  std::byte* const pages = map_pages(4);
  EXPECT_EQ(prefer_numa_node(pages + 1, 3 * kPage - 2, 0), 0);
  EXPECT_EQ(policy_of(pages).mode, MPOL_DEFAULT);
  EXPECT_EQ(policy_of(pages + kPage).mode, MPOL_PREFERRED);
  EXPECT_EQ(policy_of(pages + 2 * kPage - 1).mode, MPOL_PREFERRED);
  EXPECT_EQ(policy_of(pages + 2 * kPage).mode, MPOL_DEFAULT);
  // A range without a whole page needs no request.
  EXPECT_EQ(prefer_numa_node(pages + 3 * kPage, 0, 0), 0);
  EXPECT_EQ(prefer_numa_node(pages + 3 * kPage, kPage - 1, 0), 0);
  EXPECT_EQ(prefer_numa_node(pages + 3 * kPage + 1, 1, 0), 0);
  EXPECT_EQ(policy_of(pages + 3 * kPage).mode, MPOL_DEFAULT);
  munmap(pages, 4 * kPage);
}

TEST(NumaMemory, IsUsableIfTheNodeDoesNotExist) {
  for (const int node : {1023, 1024, 1 << 30, -2}) {
    EXPECT_NE(try_numa_node(node), 0) << node;
    const NumaMemory memory = allocate_near(kPage + 1, node);
    ASSERT_NE(memory, nullptr) << node;
    use(memory.get(), kPage + 1);
  }
}

TEST(NumaMemory, IsFreedByItsOwnMethodAfterASwap) {
  NumaMemory memory = allocate_near(kPage, 0);
  NumaMemory other = allocate_near(kPage, kAnyNumaNode);
  std::swap(memory, other);  // each is released by its own method
  use(memory.get(), kPage);
  use(other.get(), kPage);
  memory.reset();
  EXPECT_EQ(memory, nullptr);
}

TEST(NumaMemory, IsNullIfTheAllocationFails) {
  constexpr size_t kMore = size_t{1} << 60;
  EXPECT_EQ(allocate_near(kMore, 0), nullptr);
}

// Runs |body| in a child whose mbind and set_mempolicy return |action|.
int in_a_container(unsigned action, const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    constexpr auto kNumber = static_cast<unsigned>(offsetof(seccomp_data, nr));
    std::array<sock_filter, 5> filter{{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kNumber),
                                       BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mbind, 1, 0),
                                       BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_set_mempolicy, 0, 1),
                                       BPF_STMT(BPF_RET | BPF_K, action),
                                       BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)}};
    sock_fprog program{.len = filter.size(), .filter = filter.data()};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
      _exit(77);
    }
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(NumaMemory, IsUsableIfAContainerForbidsPolicies) {
  for (const int error : {EPERM, ENOSYS}) {
    const int outcome =
        in_a_container(SECCOMP_RET_ERRNO | static_cast<unsigned>(error), [error]() -> int {
          if (try_numa_node(0) != error) return 1;
          const NumaMemory memory = allocate_near(2 * kPage, 0);
          if (memory == nullptr) return 2;
          std::memset(memory.get(), 1, 2 * kPage);
          return memory[2 * kPage - 1] == std::byte{1} ? 0 : 3;
        });
    if (outcome == 77) GTEST_SKIP() << "no seccomp filters here";
    EXPECT_EQ(outcome, 0) << error;
  }
}

TEST(NumaMemory, MakesNoPolicyCallWithoutANode) {
  const int outcome = in_a_container(SECCOMP_RET_KILL_PROCESS, []() -> int {
    const NumaMemory memory = allocate_near(2 * kPage, kAnyNumaNode);
    return memory != nullptr && prefer_numa_node(memory.get(), 2 * kPage, kAnyNumaNode) == 0 &&
                   try_numa_node(kAnyNumaNode) == 0
               ? 0
               : 1;
  });
  if (outcome == 77) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(outcome, 0);
}

}  // namespace
}  // namespace hetcomm
