// Process start-up in hetcomm_bench. If the server has ended without listening, no client is
// started, nothing waits, and the failure contains the server's output.
#include <chrono>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/common/launch.h"

namespace bench {
namespace {

using ::testing::HasSubstr;

class LaunchTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(ExitStatus, LaunchTest, ::testing::Values(0, 3));

TEST_P(LaunchTest, ClientIsNotStartedIfTheServerFailed) {
  tools::Process server;
  server.command = {"sh", "-c", "echo no network >&2; exit " + std::to_string(GetParam())};
  tools::Process client;
  client.command = {"sh", "-c", "echo started; sleep 60"};
  client.after_port = tools::free_port();
  tools::Launch launch;
  launch.processes = {server, client};
  std::string output;
  const auto begin = std::chrono::steady_clock::now();
  const std::string failure =
      tools::run(launch, 60, [&](std::string_view line) { output += line; });
  EXPECT_THAT(failure, HasSubstr("no network"));
  EXPECT_EQ(output, "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

}  // namespace
}  // namespace bench
