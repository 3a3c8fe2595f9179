// HETCOMM_REQUIRE_TLS with an unprotected transport (such as one over RDMA). If the transport is
// named, every rank gets an error that says which setting is missing. Otherwise it is left out and
// others are used.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/certificates.h"
#include "tests/support/core_job.h"
#include "tests/support/faulty_transport.h"
#include "transports/self/factory.h"
#include "transports/shm/factory.h"
#include "transports/tcp/factory.h"

namespace hetcomm::test {
namespace {

Factories with_unprotected_tcp() {
  FaultPlan plan;
  plan.unprotected = true;
  Factories factories;
  factories.push_back(make_self_factory());
  factories.push_back(make_shm_factory());
  factories.push_back(std::make_unique<FaultyFactory>(make_tcp_factory(), plan));
  return factories;
}

TEST(Protection, NamedTransportWithoutProtectionIsAnError) {
  const Certificates files;
  hetcomm_test::LocalStore store;
  for (const char* transports : {"tcp", "shm,tcp"}) {
    try {
      const CoreMember member(
          store, 0, 1,
          files.settings() + "REQUIRE_TLS=1;SECRET=s;LOG=error;TRANSPORTS=" + transports,
          with_unprotected_tcp());
      ADD_FAILURE() << "created";
    } catch (const std::runtime_error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("transport tcp"));
      EXPECT_THAT(error.what(), testing::HasSubstr("HETCOMM_REQUIRE_TLS"));
      EXPECT_THAT(error.what(), testing::HasSubstr("HETCOMM_TLS=on"));
    }
  }
}

TEST(Protection, UnnamedTransportWithoutProtectionIsOmitted) {
  const Certificates files;
  for (const bool required : {false, true}) {
    run_core_job(
        2, files.settings() + (required ? "REQUIRE_TLS=1;SECRET=s;LOG=error" : "LOG=error"),
        [](int) { return with_unprotected_tcp(); },
        [&](CoreMember& me) {
          const std::string text = me.communicator().explain(1 - me.rank());
          EXPECT_NE(text.find("shm "), std::string::npos) << text;
          EXPECT_EQ(text.find("tcp    no: HETCOMM_REQUIRE_TLS refuses it") != std::string::npos,
                    required)
              << text;
          EXPECT_EQ(text.find("tcp    possible") == std::string::npos, required) << text;
        });
  }
}

}  // namespace
}  // namespace hetcomm::test
