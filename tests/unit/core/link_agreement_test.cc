// Ranks agree on one link model:
//   - an error names a rank whose host is missing from the model or whose cluster contradicts it;
//   - HETCOMM_LINK_MODEL accepts both file formats, and errors name the faulty file and position;
//   - the host's label comes from its variable, else from the system.
#include "src/core/job/membership/link_agreement.h"

#include <unistd.h>

#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "topology/links/link_model_json.h"

namespace hetcomm {
namespace {

using ::testing::HasSubstr;

constexpr const char* kModel = R"({
  "format": "hetcomm link model", "version": 1,
  "resources": [{"name": "nic", "kind": "nic", "bytes_per_s": 1000}],
  "clusters": [{"name": "a"}, {"name": "b"}],
  "hosts": [{"label": "h0", "cluster": "a", "nics": [{"out": ["nic"]}]},
            {"label": "h1", "cluster": "a", "nics": [{"out": ["nic"]}]},
            {"label": "h2", "cluster": "b", "nics": [{"out": ["nic"]}]}],
  "paths": [{"from": "a", "to": "a"}, {"from": "a", "to": "b"}, {"from": "b", "to": "a"}]
})";

// Checks ranks given by host label and cluster.
std::string checked(const std::vector<std::pair<std::string, std::string>>& ranks) {
  PeerDirectory peers(static_cast<int>(ranks.size()));
  std::vector<RankCard> cards(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    cards[i].host_label = ranks[i].first;
    cards[i].cluster = ranks[i].second;
  }
  peers.set(gather(0, cards).value());
  const Status status = check_ranks(topology::parse_link_model(kModel).value(), peers);
  return status.ok() ? "" : std::string(status.text());
}

TEST(LinkAgreement, ErrorNamesTheRankThatContradictsTheModel) {
  EXPECT_EQ(checked({{"h0", ""}, {"h1", ""}, {"h2", ""}, {"h0", ""}}), "");
  EXPECT_EQ(checked({{"h0", "x"}, {"h1", "x"}, {"h2", "y"}, {"h0", ""}}), "");
  EXPECT_THAT(checked({{"h0", ""}, {"h7", ""}}), HasSubstr("rank 1 runs on host 'h7'"));
  EXPECT_THAT(checked({{"h0", "x"}, {"h2", "y"}, {"h1", "y"}}),
              HasSubstr("ranks 0 and 2 have HETCOMM_CLUSTER='x' and 'y'"));
  EXPECT_THAT(checked({{"h0", "x"}, {"h2", "y"}, {"h1", "y"}}), HasSubstr("in one cluster"));
  EXPECT_THAT(checked({{"h2", "x"}, {"h0", "x"}}),
              HasSubstr("ranks 0 and 1 have HETCOMM_CLUSTER='x' and 'x'"));
  EXPECT_THAT(checked({{"h2", "x"}, {"h0", "x"}}), HasSubstr("in different clusters"));
}

TEST(LinkAgreement, BothFileFormatsAreAccepted) {
  const std::string path = testing::TempDir() + "hetcomm-links-" + std::to_string(getpid());
  const auto read = [&](const std::string& text) {
    std::ofstream(path) << text;
    Result<LinkFile> file = read_link_file(path);
    unlink(path.c_str());
    return file;
  };
  const Result<LinkFile> model = read(kModel);
  ASSERT_TRUE(model.ok()) << model.status().text();
  EXPECT_TRUE(model.value().model.has_value());
  std::string broken = kModel;
  broken.replace(broken.find("1000"), 4, "0000");
  EXPECT_THAT(std::string(read(broken).status().text()), HasSubstr(path));
  broken = kModel;
  broken.replace(broken.find("1000"), 4, "0");
  EXPECT_THAT(std::string(read(broken).status().text()),
              HasSubstr(path + " resource 'nic' has a rate of 0"));
  const Result<LinkFile> rows = read(
      R"({"rows": [{"test": "latency", "impl": "hetcomm", "transport": "tcp", "memory": "host",
                    "bytes": 8, "avg_us": 5},
                   {"test": "bandwidth", "impl": "hetcomm", "transport": "tcp", "memory": "host",
                    "bytes": 8, "bandwidth_MBps": 5}]})");
  ASSERT_TRUE(rows.ok()) << rows.status().text();
  EXPECT_FALSE(rows.value().model.has_value());
  EXPECT_NE(rows.value().costs.find("tcp"), nullptr);
}

}  // namespace
}  // namespace hetcomm
