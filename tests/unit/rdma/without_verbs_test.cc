// A build without the headers of libibverbs: the transport says what is missing, and so does a
// variable that chooses a device.
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/capi/variables.h"
#include "src/system/log.h"
#include "transports/rdma/factory.h"

namespace hetcomm::test {
namespace {

using ::testing::HasSubstr;

TEST(RdmaWithoutVerbs, ProbeNamesTheMissingPackage) {
  Log log;
  const auto config = Config::load(kVariables, nullptr, "", log);
  ASSERT_TRUE(config.ok()) << config.status().text();
  const Status status = make_rdma_factory()->probe(config.value());
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_THAT(std::string(status.text()), HasSubstr("libibverbs-dev"));
}

TEST(RdmaWithoutVerbs, ConfiguredDeviceLogsThatItHasNoEffect) {
  for (const bool is_chosen : {false, true}) {
    Log log;
    std::string lines;
    log.set_sink([](void* to, int, const char* line) { *static_cast<std::string*>(to) += line; },
                 &lines);
    const auto config = Config::load(kVariables, nullptr, is_chosen ? "RDMA_NIC=mlx5_0" : "", log);
    ASSERT_TRUE(config.ok()) << config.status().text();
    warn_of_unknown_rdma_devices(config.value(), log);
    EXPECT_EQ(lines.find("HETCOMM_RDMA_NIC has no effect") != std::string::npos, is_chosen)
        << lines;
  }
}

}  // namespace
}  // namespace hetcomm::test
