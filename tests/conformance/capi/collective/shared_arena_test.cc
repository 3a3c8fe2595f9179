// Shared memory for collective operations, if some ranks cannot have it. The system calls that
// create and find the memory are replaced here, and fail on the ranks that a test names.
//
//   * shared memory is used if all ranks have mapped it
//   * if one rank (the first, the last or one between) cannot create or map it, no rank keeps it,
//     and all operations use messages with the same results
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "tests/conformance/capi/collective/collective.h"

namespace hetcomm_test {
namespace {

constexpr const char* kName = "hetcomm-collective";
constexpr int32_t kRanks = 4;

// Each rank's thread has its own value, and drives the rank's progress itself.
thread_local bool refuses = false;
thread_local int refused = 0;

// Returns the number of mappings of the arena in this process, which has all ranks.
int mappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(kName) != std::string::npos) ++count;
  }
  return count;
}

// Runs every operation, in the arena or by messages.
void check_operations(Member& me) {
  hetcomm_communicator_t* const c = me.communicator();
  hetcomm_request_t* request = nullptr;
  for (const size_t count : {size_t{1}, size_t{3'001}, size_t{20'000}}) {
    std::vector<int64_t> got = values(me.rank(), count);
    hetcomm_status_t call = hetcomm_allreduce(c, buffer(got), buffer(got), HETCOMM_INT64,
                                              HETCOMM_REDUCE_SUM, nullptr, &request);
    expect_ok(call, request, "allreduce");
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], sum(me.size(), i)) << "allreduce";
    got = values(me.rank(), count);
    call = hetcomm_broadcast(c, 2, buffer(got), HETCOMM_INT64, nullptr, &request);
    expect_ok(call, request, "broadcast");
    EXPECT_EQ(got, values(2, count)) << "broadcast";
    call = hetcomm_barrier(c, nullptr, &request);
    expect_ok(call, request, "barrier");
  }
}

// |odd|: the rank that cannot have the arena; -1: all can.
void share(int32_t odd) {
  const CapiCase test_case{.name = "shm", .transports = "shm", .settings = ""};
  run_job(test_case, kRanks, [odd](Member& me) {
    refuses = me.rank() == odd;
    refused = 0;
    check_operations(me);
    EXPECT_EQ(refused > 0, refuses) << "the rank was not asked to make or map it";
    ASSERT_TRUE(me.meet());
    EXPECT_EQ(mappings(), odd < 0 ? kRanks : 0);
    ASSERT_TRUE(me.meet());
    check_operations(me);
    refuses = false;
  });
  EXPECT_EQ(mappings(), 0);
}

TEST(CollectiveArena, ArenaIsUsedIfAllRanksMapIt) { share(-1); }
TEST(CollectiveArena, ArenaIsNotUsedIfTheFirstRankCannotCreateIt) { share(0); }
TEST(CollectiveArena, ArenaIsNotUsedIfOneRankCannotMapIt) { share(1); }
TEST(CollectiveArena, ArenaIsNotUsedIfTheLastRankCannotMapIt) { share(kRanks - 1); }

}  // namespace

}  // namespace hetcomm_test

// The library calls these functions in place of the C library's.

using namespace hetcomm_test;

// Fails as if the rank were in another PID namespace.
extern "C" ssize_t readlink(const char* path, char* to, size_t size) noexcept {
  const ssize_t length = syscall(SYS_readlink, path, to, size);
  if (!refuses || length < 0 ||
      std::string(to, static_cast<size_t>(length)).find(kName) == std::string::npos) {
    return length;
  }
  ++refused;
  errno = ENOENT;
  return -1;
}

extern "C" int memfd_create(const char* name, unsigned flags) noexcept {
  if (refuses && std::strcmp(name, kName) == 0) {
    ++refused;
    errno = EMFILE;
    return -1;
  }
  return static_cast<int>(syscall(SYS_memfd_create, name, flags));
}
