// A list of transports names the allowed ones, or after ^ the forbidden ones. An unknown name is
// refused with a text that lists the known names.
#include "src/core/job/paths/transport_choice.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transports/self/factory.h"
#include "transports/shm/factory.h"
#include "transports/tcp/factory.h"

namespace hetcomm {
namespace {

using testing::HasSubstr;

class TransportChoiceTest : public testing::Test {
 protected:
  TransportChoiceTest() {
    factories_.push_back(make_self_factory());
    factories_.push_back(make_shm_factory());
    factories_.push_back(make_tcp_factory());
  }
  TransportChoice choice(std::string_view list) {
    return TransportChoice::parse(list, factories_).value();
  }
  std::vector<std::unique_ptr<TransportFactory>> factories_;
};

TEST_F(TransportChoiceTest, EmptyListAllowsAllAndRequiresNone) {
  for (const char* list : {"", " ", "^"}) {
    EXPECT_TRUE(choice(list).allows("shm")) << list;
    EXPECT_FALSE(choice(list).demands("shm")) << list;
  }
}

TEST_F(TransportChoiceTest, ListedNamesAreAllowedAndRequired) {
  const TransportChoice tcp = choice(" tcp ,self");
  EXPECT_TRUE(tcp.allows("tcp"));
  EXPECT_TRUE(tcp.demands("tcp"));
  EXPECT_FALSE(tcp.allows("shm"));
  EXPECT_THAT(tcp.refusal(), HasSubstr("only tcp, self may be used"));
}

TEST_F(TransportChoiceTest, NamesAfterACaretAreExcluded) {
  const TransportChoice rest = choice("^shm,self");
  EXPECT_FALSE(rest.allows("shm"));
  EXPECT_FALSE(rest.allows("self"));
  EXPECT_TRUE(rest.allows("tcp"));
  EXPECT_FALSE(rest.demands("tcp")) << "it may be missing on this host";
  EXPECT_THAT(rest.refusal(), HasSubstr("all but shm, self may be used"));
}

TEST_F(TransportChoiceTest, UnknownNamesAreRefused) {
  for (const char* list : {"pigeon", "^pigeon", "tcp,^shm"}) {
    const auto parsed = TransportChoice::parse(list, factories_);
    ASSERT_FALSE(parsed.ok()) << list;
    EXPECT_THAT(std::string(parsed.status().text()), HasSubstr("there are self, shm, tcp"));
  }
}

}  // namespace
}  // namespace hetcomm
