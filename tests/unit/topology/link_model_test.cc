// The model of the links between hosts:
//    - a route is the list of the resources that its bytes cross, with the total latency;
//    - the rates of concurrent routes are max-min fair: checked against filling in small steps,
//      over random models;
//    - each fault of a model or a file is reported with its object, and costs little;
//    - a model is written and read without loss; its hash is that of its content in any order;
//    - the picture and the text show every host, with any characters in its label.
#include "topology/links/link_model.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "topology/links/link_model_draw.h"
#include "topology/links/link_model_json.h"

namespace hetcomm::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two clusters: a0 and a1 with two NICs each, and b0, joined by a trunk in each direction.
constexpr const char* kModel = R"({
  "format": "hetcomm link model", "version": 1, "source": "a test",
  "resources": [
    {"name": "a0 memory", "kind": "memory", "bytes_per_s": 9000},
    {"name": "a0 pcie", "kind": "pcie", "bytes_per_s": 3000},
    {"name": "a0 eth0 out", "kind": "nic", "bytes_per_s": 2000},
    {"name": "a0 eth0 in", "kind": "nic", "bytes_per_s": 2000},
    {"name": "a0 eth1 out", "kind": "nic", "bytes_per_s": 2000},
    {"name": "a1 out", "kind": "nic", "bytes_per_s": 1000},
    {"name": "a1 in", "kind": "nic", "bytes_per_s": 900},
    {"name": "b0 out", "kind": "nic", "bytes_per_s": 700},
    {"name": "b0 in", "kind": "nic", "bytes_per_s": 800},
    {"name": "trunk a to b", "kind": "trunk", "bytes_per_s": 600},
    {"name": "trunk b to a", "kind": "trunk", "bytes_per_s": 500}
  ],
  "clusters": [{"name": "b"}, {"name": "a"}],
  "hosts": [
    {"label": "b0", "cluster": "b", "nics": [{"out": ["b0 out"], "in": ["b0 in"]}]},
    {"label": "a1", "cluster": "a", "nics": [{"name": "eth0", "out": ["a1 out"], "in": ["a1 in"]}]},
    {"label": "a0", "cluster": "a", "latency_ns": 300, "inside": ["a0 memory"],
     "nics": [{"name": "eth0", "out": ["a0 pcie", "a0 eth0 out"], "in": ["a0 eth0 in", "a0 pcie"]},
              {"name": "eth1", "out": ["a0 pcie", "a0 eth1 out"], "in": ["a0 pcie"]}]}
  ],
  "paths": [
    {"from": "a", "to": "a", "latency_ns": 5000},
    {"from": "a", "to": "b", "latency_ns": 90000, "resources": ["trunk a to b"]},
    {"from": "b", "to": "a", "latency_ns": 91000, "single_bytes_per_s": 250,
     "resources": ["trunk b to a"]}
  ]
})";

LinkModel model_of(const std::string& json) {
  Result<LinkModel> model = parse_link_model(json);
  EXPECT_TRUE(model.ok()) << model.status().text();
  return model.ok() ? *model : LinkModel{};
}

std::string changed(const std::string& from, const std::string& to) {
  std::string text = kModel;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::vector<std::string> names(const LinkModel& model, const Route& route) {
  std::vector<std::string> result;
  for (const int each : route.resources) {
    result.push_back(model.resources[static_cast<size_t>(each)].name);
  }
  return result;
}

Route route_of(const LinkModel& model, const LinkEnd& from, const LinkEnd& to) {
  Result<Route> found = route(model, from, to);
  EXPECT_TRUE(found.ok()) << found.status().text();
  return found.ok() ? *found : Route{};
}

TEST(LinkModel, RouteListsTheResourcesItCrosses) {
  const LinkModel model = model_of(kModel);
  const Route there = route_of(model, {"a0", ""}, {"b0", ""});
  EXPECT_THAT(names(model, there), ElementsAre("a0 pcie", "a0 eth0 out", "trunk a to b", "b0 in"));
  EXPECT_EQ(there.latency_ns, 90'000U);
  EXPECT_EQ(rate_alone(model, there), 600U);
  const Route back = route_of(model, {"b0", ""}, {"a0", "eth1"});
  EXPECT_THAT(names(model, back), ElementsAre("b0 out", "trunk b to a", "a0 pcie"));
  EXPECT_EQ(rate_alone(model, back), 250U);
  const Route inside = route_of(model, {"a0", "eth1"}, {"a0", ""});
  EXPECT_THAT(names(model, inside), ElementsAre("a0 memory"));
  EXPECT_EQ(inside.latency_ns, 300U);
  EXPECT_EQ(rate_alone(model, route_of(model, {"a0", ""}, {"a1", ""})), 900U);
  // The model has no data about the inside of a1.
  EXPECT_EQ(rate_alone(model, route_of(model, {"a1", ""}, {"a1", ""})), kMaxBytesPerS);
}

TEST(LinkModel, ErrorNamesTheMissingEndpoint) {
  const LinkModel model = model_of(kModel);
  EXPECT_THAT(std::string(route(model, {"a0", ""}, {"c0", ""}).status().text()), HasSubstr("'c0'"));
  EXPECT_THAT(std::string(route(model, {"a0", "eth7"}, {"b0", ""}).status().text()),
              HasSubstr("host 'a0' of the link model has no NIC 'eth7'"));
  EXPECT_EQ(route(model, {"", ""}, {"b0", ""}).status().code(), Code::kNotFound);
}

TEST(LinkModel, ConcurrentRoutesShareCommonResources) {
  const LinkModel model = model_of(kModel);
  const Route one = route_of(model, {"a0", "eth0"}, {"a1", ""});
  const Route two = route_of(model, {"a0", "eth1"}, {"b0", ""});
  const Route three = route_of(model, {"a1", ""}, {"b0", ""});
  EXPECT_THAT(rates(model, {one, two}), ElementsAre(900, 600));
  EXPECT_THAT(rates(model, {two, three}), ElementsAre(300, 300));
  EXPECT_THAT(rates(model, {one, one, two, three}), ElementsAre(450, 450, 300, 300));
  const Route back = route_of(model, {"b0", ""}, {"a0", ""});
  EXPECT_THAT(rates(model, {two, back}), ElementsAre(600, 250));
  EXPECT_THAT(rates(model, {back, back, back}), ElementsAre(166, 166, 166));
  EXPECT_TRUE(rates(model, {}).empty());
}

// Computes rates by raising every route in small steps while all of its resources have room.
std::vector<double> filled(const LinkModel& model, const std::vector<Route>& routes, double step) {
  std::vector<double> used(model.resources.size(), 0);
  std::vector<double> result(routes.size(), 0);
  for (bool grown = true; grown;) {
    grown = false;
    for (size_t i = 0; i < routes.size(); ++i) {
      const double limit = static_cast<double>(routes[i].single_bytes_per_s);
      bool room = limit == 0 || result[i] + step <= limit;
      std::vector<double> more(used.size(), 0);
      for (const int each : routes[i].resources) more[static_cast<size_t>(each)] += step;
      for (size_t k = 0; k < used.size(); ++k) {
        room = room && used[k] + more[k] <= static_cast<double>(model.resources[k].bytes_per_s);
      }
      if (!room) continue;
      for (size_t k = 0; k < used.size(); ++k) used[k] += more[k];
      result[i] += step;
      grown = true;
    }
  }
  return result;
}

TEST(LinkModel, RatesAreMaxMinFair) {
  for (uint32_t seed = 1; seed <= 150; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](int least, int most) {
      return least + static_cast<int>(random() % static_cast<uint32_t>(most - least + 1));
    };
    LinkModel model;
    const int resources = draw(1, 8);
    for (int i = 0; i < resources; ++i) {
      model.resources.push_back(
          {fmt::format("{}", i), ResourceKind::kNic, static_cast<uint64_t>(draw(2000, 20000))});
    }
    std::vector<Route> routes(static_cast<size_t>(draw(1, 9)));
    for (Route& each : routes) {
      // A resource may be crossed twice.
      for (int k = draw(1, 4); k > 0; --k) each.resources.push_back(draw(0, resources - 1));
      if (draw(0, 3) == 0) each.single_bytes_per_s = static_cast<uint64_t>(draw(500, 4000));
    }
    const std::vector<uint64_t> exact = rates(model, routes);
    const std::vector<double> expected = filled(model, routes, 2);
    for (size_t i = 0; i < routes.size(); ++i) {
      EXPECT_NEAR(static_cast<double>(exact[i]), expected[i], 40) << "seed " << seed;
    }
    std::vector<uint64_t> used(model.resources.size(), 0);
    for (size_t i = 0; i < routes.size(); ++i) {
      for (const int each : routes[i].resources) used[static_cast<size_t>(each)] += exact[i];
    }
    for (size_t k = 0; k < used.size(); ++k) EXPECT_LE(used[k], model.resources[k].bytes_per_s);
  }
}

TEST(LinkModelJson, ModelReadsBackAsWritten) {
  const LinkModel model = model_of(kModel);
  EXPECT_EQ(model.hosts[0].label, "a0");
  EXPECT_EQ(model_of(to_json(model)), model);
  EXPECT_EQ(model_of(to_json(model, /*compact=*/true)), model);
  EXPECT_EQ(to_json(model, true).find('\n'), std::string::npos);
  EXPECT_TRUE(claims_to_be_link_model(to_json(model)));
  EXPECT_FALSE(claims_to_be_link_model(R"({"rows": []})"));
}

TEST(LinkModelJson, HashDependsOnContentAndNotOnOrder) {
  const uint64_t hash = hash_of(model_of(kModel));
  // The hash is the same on all processors.
  EXPECT_EQ(hash, 0x3707737bc386f73aU) << fmt::format("{:#x}", hash);
  EXPECT_EQ(hash_of(model_of(
                changed(R"({"name": "b"}, {"name": "a"})", R"({"name": "a"}, {"name": "b"})"))),
            hash);
  EXPECT_EQ(hash_of(model_of(changed("a test", "another"))), hash);
  EXPECT_NE(hash_of(model_of(changed("9000", "9001"))), hash);
  EXPECT_NE(hash_of(model_of(changed("91000", "91001"))), hash);
  EXPECT_NE(hash_of(model_of(changed("\"single_bytes_per_s\": 250,", ""))), hash);
  EXPECT_NE(hash_of(model_of(changed("\"kind\": \"pcie\"", "\"kind\": \"uplink\""))), hash);
}

TEST(LinkModelJson, ErrorNamesTheFaultyObject) {
  struct Fault {
    const char* from;
    const char* to;
    const char* text;
  };
  const Fault faults[] = {
      {"9000", "0", "resource 'a0 memory' has a rate of 0 bytes per second"},
      {"9000", "1e99", "resources[0].bytes_per_s is no whole number"},
      {"9000", "-5", "resources[0].bytes_per_s is no whole number"},
      {"9000", "1000000000000001", "resources[0].bytes_per_s is no whole number"},
      {"\"a0 eth1 out\", \"kind\"", "\"a1 out\", \"kind\"",
       "hosts[2].nics[1].out[1] names no resource"},
      {"\"kind\": \"pcie\"", "\"kind\": \"bus\"", "resources[1].kind is 'bus'"},
      {"{\"name\": \"b0 in\"",
       "{\"name\": \"b0 out\", \"kind\": \"nic\", \"bytes_per_s\": 5}, {\"name\": \"b0 in\"",
       "resource 'b0 out' is there twice"},
      {"\"label\": \"a1\"", "\"label\": \"a0\"", "host 'a0' is there twice"},
      {"\"label\": \"a1\"", "\"label\": \"\"", "a host has no name"},
      {"\"label\": \"a1\"", "\"label\": \"a\\n1\"", "cannot be printed"},
      {"{\"name\": \"b\"}", "{\"name\": \"a\"}", "cluster"},
      {"{\"from\": \"a\", \"to\": \"a\", \"latency_ns\": 5000},", "",
       "the path from cluster 'a' to cluster 'a' is missing"},
      {"\"from\": \"a\", \"to\": \"a\"", "\"from\": \"b\", \"to\": \"a\"", "paths[2]"},
      {"\"cluster\": \"b\"", "\"cluster\": \"c\"", "hosts[0].cluster is 'c'"},
      {"[\"b0 out\"]", "[\"b9 out\"]", "hosts[0].nics[0].out[0] names no resource"},
      {", \"nics\": [{\"out\": [\"b0 out\"], \"in\": [\"b0 in\"]}]", "", "host 'b0' has no NIC"},
      {"\"eth1\"", "\"eth0\"", "host 'a0': NIC 'eth0' is there twice"},
      {"\"single_bytes_per_s\": 250", "\"single_bytes_per_s\": 0", "single_bytes_per_s is 0"},
      {"90000", "3600000000001", "paths[1].latency_ns"},
      {"\"source\"", "\"sauce\"", "sauce is no field"},
      {"\"version\": 1", "\"version\": 2", "version is 2"},
      {"hetcomm link model", "hetcomm topology", "format is not 'hetcomm link model'"},
      {"{\"name\": \"b\"}, {\"name\": \"a\"}",
       "{\"name\": \"b\"}, {\"name\": \"a\"}, {\"name\": \"c\"}",
       "the path from cluster 'b' to cluster 'c' is missing"},
  };
  for (const Fault& fault : faults) {
    const Result<LinkModel> model = parse_link_model(changed(fault.from, fault.to));
    ASSERT_FALSE(model.ok()) << fault.to;
    EXPECT_THAT(std::string(model.status().text()), HasSubstr(fault.text));
  }
  EXPECT_EQ(parse_link_model(changed("\"version\": 1", "\"version\": 2")).status().code(),
            Code::kUnsupported);
  for (const char* text : {"", "{", "[]", "7", "{\"format\": \"hetcomm link model\"}",
                           "{\"format\": \"hetcomm link model\", \"version\": 1}"}) {
    EXPECT_FALSE(parse_link_model(text).ok()) << text;
  }
}

TEST(LinkModelJson, OversizedAndDeeplyNestedFilesAreRefused) {
  const std::string brackets =
      "{\"format\": \"hetcomm link model\", \"hosts\": " + std::string(1u << 20, '[');
  EXPECT_THAT(std::string(parse_link_model(brackets).status().text()), HasSubstr("nested"));
  EXPECT_THAT(
      std::string(parse_link_model(std::string(kMaxLinkModelBytes + 1, ' ')).status().text()),
      HasSubstr("bytes; "));
  std::string clusters = "{\"name\": \"a\"}";
  for (size_t i = 0; i < kMaxLinkClusters; ++i)
    clusters += fmt::format(", {{\"name\": \"c{}\"}}", i);
  EXPECT_THAT(
      std::string(parse_link_model(changed("{\"name\": \"b\"}, {\"name\": \"a\"}", clusters))
                      .status()
                      .text()),
      HasSubstr("clusters is no list of at most"));
}

TEST(LinkModelDrawing, ShowsEveryHost) {
  const LinkModel model = model_of(changed("\"label\": \"a1\"", "\"label\": \"<a&1>\""));
  const std::string svg = draw_svg(model);
  EXPECT_THAT(svg, HasSubstr("<title>&lt;a&amp;1&gt; to b0: 0.6 kB/s</title>"));
  EXPECT_THAT(svg, HasSubstr("<title>a0 to a0: 9 kB/s</title>"));
  EXPECT_THAT(svg, HasSubstr("<title>b0 to b0: unknown</title>"));
  EXPECT_EQ(svg.find("<a&"), std::string::npos);
  const std::string text = draw_text(model);
  EXPECT_THAT(text, HasSubstr("a: <a&1> a0"));
  EXPECT_THAT(text, HasSubstr("b to a: 91 us, trunk b to a (0.5 kB/s); one transfer alone gets"));
}

}  // namespace
}  // namespace hetcomm::topology
