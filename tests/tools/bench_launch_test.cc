// Starting processes in hetcomm_bench:
//   - a process reads the input that it was given, however long;
//   - a process that fails ends the others, and the failure contains what it printed.
#include <chrono>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/common/launch.h"

namespace tools {
namespace {

using ::testing::HasSubstr;

TEST(Launch, AllInputReachesTheProcess) {
  Process process;
  process.command = {"sh", "-c", "wc -c; wc -c"};
  process.input = std::string(1 << 20, 'x');
  Launch launch;
  launch.processes = {process};
  std::string output;
  EXPECT_EQ(run(launch, 60, [&](std::string_view line) { output += line; }), "");
  EXPECT_EQ(output, "10485760") << "all of it, and then its end";
}

class LaunchTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(End, LaunchTest, ::testing::Values("exit 3", "kill -9 $$"));

TEST_P(LaunchTest, FailedProcessEndsTheOthers) {
  Process failing;
  failing.command = {"sh", "-c", std::string("echo no network >&2; ") + GetParam()};
  Process waiting;
  waiting.command = {"sh", "-c", "sleep 60"};
  Launch launch;
  launch.processes = {waiting, failing};
  const auto begin = std::chrono::steady_clock::now();
  const std::string failure = run(launch, 120, [](std::string_view) {});
  EXPECT_THAT(failure, HasSubstr("process 1"));
  EXPECT_THAT(failure, HasSubstr("no network"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

}  // namespace
}  // namespace tools
