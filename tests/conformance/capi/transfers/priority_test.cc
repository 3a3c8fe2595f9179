// HETCOMM_PRIORITY_HIGH has these effects:
//
//   * bulk data of a high-priority message or put arrives before normal bulk data to the same peer
//     that was started earlier and is still waiting
//   * without it, messages of one length arrive in send order
#include <algorithm>

#include "tests/conformance/capi/job.h"

namespace hetcomm_test {
namespace {

constexpr uint64_t kBytes = 4 << 20;
constexpr size_t kNormal = 6;
constexpr size_t kHigh = 2;
constexpr size_t kAll = kNormal + kHigh;

// Returns the indices of |requests|, in the order in which they end.
std::vector<size_t> order_of_ends(std::vector<hetcomm_request_t*> requests) {
  std::vector<size_t> order;
  while (order.size() < requests.size()) {
    size_t index = 0;
    hetcomm_completion_t completion{};
    const hetcomm_status_t status = hetcomm_request_wait_any(requests.size(), requests.data(),
                                                             kPatienceNs, &index, &completion);
    EXPECT_EQ(status, HETCOMM_OK) << hetcomm_last_error();
    if (status != HETCOMM_OK) std::abort();  // their memory is about to be freed
    EXPECT_EQ(completion.status, HETCOMM_OK) << completion.text;
    requests[index] = nullptr;
    order.push_back(index);
  }
  return order;
}

// Returns the position of the last end among the messages or puts from |first| on.
size_t last_end(const std::vector<size_t>& order, size_t first) {
  size_t last = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i] >= first) last = i;
  }
  return last;
}

std::string shown(const std::vector<size_t>& order) {
  std::string text = "ended in this order:";
  for (const size_t index : order) text += " " + std::to_string(index);
  return text;
}

class Priority : public CapiTest {};

// Sends all messages as one group, so that all wait together. |high|: the last ones have priority.
// Returns the order in which they end.
std::vector<size_t> send_all(Member& me, bool high) {
  hetcomm_operation_options_t options{};
  options.struct_size = sizeof(options);
  std::vector<std::vector<std::byte>> memory;
  std::vector<hetcomm_request_t*> requests;
  hetcomm_group_t* group = nullptr;
  EXPECT_EQ(hetcomm_group_create(me.communicator(), &group), HETCOMM_OK);
  if (me.rank() == 0) options.group = group;
  for (size_t i = 0; i < kAll; ++i) {
    options.priority = high && i >= kNormal ? HETCOMM_PRIORITY_HIGH : HETCOMM_PRIORITY_NORMAL;
    memory.push_back(me.rank() == 0 ? pattern(kBytes, i) : std::vector<std::byte>(kBytes));
    requests.push_back(me.rank() == 0 ? me.send(1, i, memory.back().data(), kBytes, &options)
                                      : me.recv(0, i, memory.back().data(), kBytes, 0, &options));
  }
  me.meet_quietly();  // the receives are posted
  if (me.rank() == 0) {
    EXPECT_EQ(hetcomm_group_start(group), HETCOMM_OK);
  }
  std::vector<size_t> order = order_of_ends(requests);
  hetcomm_group_destroy(group);
  for (size_t i = 0; i < kAll; ++i) EXPECT_TRUE(holds(memory[i], i, kBytes)) << i;
  me.meet();
  return order;
}

TEST_P(Priority, HighPriorityBulkDataOvertakesNormalData) {
  run(2, [](Member& me) {
    std::vector<size_t> order = send_all(me, false);
    if (me.rank() == 1) {
      EXPECT_GE(last_end(order, kNormal), kAll - 2) << shown(order) << ", all alike";
    }
    // A thread that is not scheduled for a while sees several ends at once, in no particular order.
    size_t overtaken = 0;
    std::string orders;
    for (int round = 0; round < 6; ++round) {
      order = send_all(me, true);
      if (last_end(order, kNormal) <= kAll / 2) ++overtaken;
      orders += shown(order) + "\n";
    }
    if (me.rank() == 1) {
      EXPECT_GE(overtaken, 3u) << orders;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Over, Priority,
    ::testing::Values(
        CapiCase{.name = "shm_copy", .transports = "shm", .settings = "SHM_BULK=copy;"},
        CapiCase{.name = "shm_read", .transports = "shm", .settings = "SHM_BULK=read;"},
        CapiCase{.name = "tcp", .transports = "tcp", .settings = ""}),
    capi_case_name);

}  // namespace
}  // namespace hetcomm_test
