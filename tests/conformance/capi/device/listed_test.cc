// Devices from HETCOMM_DEVICES in a job whose ranks all run the same command:
//
//   * {local_rank} gives each rank on a host its own device, by the number that the launcher sets
//   * without this number the context is not created, and the text says which variable to set
//   * the second process on a host that uses a device logs a warning about the first; a process
//     does not warn about itself
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/conformance/capi/job.h"

namespace hetcomm_test {
namespace {

std::atomic<int> warnings{0};  // in this process

void count_warnings(void* /*rank*/, int32_t level, const char* line) {
  if (level == HETCOMM_LOG_WARN && std::strstr(line, "is also used by process") != nullptr) {
    ++warnings;
  }
}

// Returns a PCI address that no other run of this test uses at the same time.
std::string unique_place(const char* function) {
  char text[32];
  std::snprintf(text, sizeof(text), "%04x:%02x:1e.%s", getpid() & 0xffff, getpid() >> 16 & 0xff,
                function);
  return text;
}

CapiCase two_processes(const std::string& devices) {
  CapiCase made{.name = "processes",
                .transports = "shm",
                .settings = "DEVICES=" + devices + ";",
                .processes = true};
  made.prepare = [](int32_t rank) { setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1); };
  made.log = count_warnings;
  return made;
}

// Returns the total number of warnings on both ranks.
int warnings_of_both(Member& me) {
  const int mine = warnings;
  int theirs = 0;
  hetcomm_request_t* const receive = me.recv(me.partner(), 1, &theirs, sizeof(theirs));
  EXPECT_EQ(finish(me.send(me.partner(), 1, &mine, sizeof(mine))).status, HETCOMM_OK);
  EXPECT_EQ(finish(receive).status, HETCOMM_OK);
  return mine + theirs;
}

TEST(ListedDevices, EachRankOfAHostGetsItsOwnDevice) {
  run_job(two_processes("sim-address:pci=" + unique_place("{local_rank}")), 2, [](Member& me) {
    hetcomm_device_info_t info{};
    info.struct_size = sizeof(info);
    ASSERT_EQ(hetcomm_device_info(me.context(), 1, &info), HETCOMM_OK);
    EXPECT_EQ(info.pci_address[std::strlen(info.pci_address) - 1], '0' + me.rank())
        << info.pci_address;
    EXPECT_EQ(warnings_of_both(me), 0);
  });
}

TEST(ListedDevices, DeviceSharedByTwoRanksGivesAWarning) {
  run_job(two_processes("sim-address:pci=" + unique_place("0")), 2,
          [](Member& me) { EXPECT_EQ(warnings_of_both(me), 1); });
}

// The ranks are threads of one process, each with its own context.
TEST(ListedDevices, DeviceSharedWithinAProcessGivesNoWarning) {
  CapiCase threads = two_processes("sim-address:pci=" + unique_place("1"));
  threads.name = "threads";
  threads.processes = false;
  threads.prepare = {};
  warnings = 0;
  run_job(threads, 2, [](Member& me) { me.meet(); });
  EXPECT_EQ(warnings, 0);
}

TEST(ListedDevices, LocalRankPlaceholderNeedsALauncher) {
  for (const char* const name : {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                 "PMIX_LOCAL_RANK", "SLURM_LOCALID"}) {
    unsetenv(name);
  }
  hetcomm_context_options_t options{};
  options.struct_size = sizeof(options);
  options.settings = "DEVICES=sim-address:memory={local_rank}M";
  hetcomm_context_t* context = nullptr;
  EXPECT_EQ(hetcomm_context_create(&options, &context), HETCOMM_INVALID_ARGUMENT);
  EXPECT_NE(std::string(hetcomm_last_error()).find("set LOCAL_RANK"), std::string::npos)
      << hetcomm_last_error();
  setenv("SLURM_LOCALID", "8", 1);
  ASSERT_EQ(hetcomm_context_create(&options, &context), HETCOMM_OK) << hetcomm_last_error();
  EXPECT_EQ(hetcomm_context_destroy(context), HETCOMM_OK);
  unsetenv("SLURM_LOCALID");
}

}  // namespace
}  // namespace hetcomm_test
