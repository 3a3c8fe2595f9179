// Prints how long one core takes to make plans: one rank's part when 1,024 ranks send to 1,024
// others, three-dimensional activations, and many weights of a model.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "reshard/auto.h"
#include "reshard/bsr.h"
#include "reshard/mesh.h"
#include "reshard/plans.h"
#include "reshard/slicing.h"
#include "reshard/strategies.h"

namespace hetcomm::reshard {
namespace {

std::vector<int> ranks_from(int first, uint64_t count) {
  std::vector<int> ranks(count);
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

// Returns the best time of three tries.
template <typename Make>
void measure(const std::string& name, Make&& make) {
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    const auto start = std::chrono::steady_clock::now();
    make();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count());
  }
  std::fputs(fmt::format("{:<52} {:>10.2f} ms\n", name, best).c_str(), stdout);
}

template <typename T>
const T& check(const Result<T>& result) {
  if (!result.ok()) {
    std::fputs((std::string(result.status().text()) + "\n").c_str(), stderr);
    std::exit(1);
  }
  return result.value();
}

// Returns the links of two clusters, each with 128 hosts of eight ranks.
Links two_clusters() {
  topology::LinkModel model;
  model.clusters = {"one", "two"};
  std::vector<RankEnd> ends;
  for (int c = 0; c < 2; ++c) {
    for (int h = 0; h < 128; ++h) {
      topology::LinkHost host;
      host.label = fmt::format("{}{:03}", model.clusters[static_cast<size_t>(c)], h);
      host.cluster = c;
      host.latency_ns = 500;
      for (const char* what : {" memory", " out", " in"}) {
        model.resources.push_back(
            {host.label + what, topology::ResourceKind::kNic, 25'000'000'000});
      }
      const int last = static_cast<int>(model.resources.size()) - 1;
      host.inside = {last - 2};
      host.nics = {{"", {last - 1}, {last}}};
      for (int i = 0; i < 8; ++i) ends.push_back({host.label, ""});
      model.hosts.push_back(host);
    }
  }
  for (int i = 0; i < 4; ++i) {
    topology::ClusterPath path;
    path.exists = true;
    path.latency_ns = 10'000;
    if (i == 1 || i == 2) {
      model.resources.push_back(
          {fmt::format("trunk {}", i), topology::ResourceKind::kTrunk, 50'000'000'000});
      path.resources = {static_cast<int>(model.resources.size()) - 1};
    }
    model.paths.push_back(path);
  }
  topology::normalize(model);
  return check(Links::create(std::move(model), ends));
}

void measure_activations() {
  const Layout source = check(activations(
      1024, 1 << 20, 4096, {.data = 64, .context = 4, .tensor = 4}, ranks_from(0, 1024)));
  const Layout destination = check(activations(
      1024, 1 << 20, 4096, {.data = 16, .context = 8, .tensor = 8}, ranks_from(1024, 1024)));
  const Links links = two_clusters();
  constexpr int kRank = 5;
  measure("1,024 to 1,024, one rank: direct",
          [&] { (void)check(plan_direct(source, destination, kRank)); });
  measure("leader", [&] { (void)check(plan_leader(source, destination, kRank)); });
  measure("gather_p2p_scatter",
          [&] { (void)check(plan_gather_p2p_scatter(source, destination, 0, kRank)); });
  measure("sendrecv_allgather",
          [&] { (void)check(plan_sendrecv_allgather(source, destination, kRank)); });
  measure("bsr", [&] {
    SendLoads loads(&links);
    (void)check(plan_bsr(source, destination, 2, loads, kRank));
  });
  measure("auto", [&] { (void)check(plan_auto(source, destination, 2, links, 8, kRank)); });
  const MovePlan plan = check(plan_gather_p2p_scatter(source, destination, 0, kRank));
  measure("slicing of 8 slices", [&] { (void)slicing_of(plan, kRank, 8); });
}

// Makes plans as a rank in a job does, by auto: tensors with some shapes, each with its own layout.
void measure_auto(const char* what, uint64_t from, uint64_t to, size_t count) {
  constexpr uint64_t kShapes = 9;
  std::vector<Layout> layouts;
  for (uint64_t i = 0; i < kShapes; ++i) {
    layouts.push_back(
        check(layout_of({from * to, 256 * (i + 1)}, {{from}, ranks_from(0, from)}, {shard(0)})));
    layouts.push_back(check(layout_of({from * to, 256 * (i + 1)},
                                      {{to}, ranks_from(static_cast<int>(from), to)}, {shard(0)})));
  }
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < count; ++i) {
    const size_t shape = 2 * (i % kShapes);
    tensors.push_back({&layouts[shape], &layouts[shape + 1], 2});
  }
  const Links links = two_clusters();
  for (const Strategy strategy : {Strategy::kAuto, Strategy::kDirect, Strategy::kBsr}) {
    measure(fmt::format("{}: {}", what, name_of(strategy)).c_str(),
            [&] { (void)check(make_plans(tensors, {.strategy = strategy, .links = &links}, 3)); });
  }
}

void measure_model() {
  const auto tensors = [](uint64_t from, uint64_t to, int count) {
    const Layout source =
        check(layout_of({from * to, 1024}, {{from}, ranks_from(0, from)}, {shard(0)}));
    const Layout destination = check(
        layout_of({from * to, 1024}, {{to}, ranks_from(static_cast<int>(from), to)}, {shard(0)}));
    SendLoads loads;
    for (int i = 0; i < count; ++i) {
      (void)check(plan_bsr(source, destination, 2, loads, 3));
    }
  };
  measure("60 layers of 9 weights, 32 to 31, bsr", [&] { tensors(32, 31, 540); });
  measure("1,000 weights, 64 to 64, bsr", [&] { tensors(64, 64, 1000); });
  measure("1,000 weights, 64 to 64, direct", [&] {
    const Layout source = check(layout_of({4096, 1024}, {{64}, ranks_from(0, 64)}, {shard(0)}));
    const Layout destination =
        check(layout_of({4096, 1024}, {{64}, ranks_from(64, 64)}, {shard(0)}));
    for (int i = 0; i < 1000; ++i) (void)check(plan_direct(source, destination, 3));
  });
}

// Makes one rank's plans for 4,000 tensors: with copies, in one flat buffer each, and between
// shards of different dimensions.
void measure_lists() {
  const Links links = two_clusters();
  const std::vector<uint64_t> shape = {4096, 1024};
  const Layout copies = check(layout_of(shape, {{64}, ranks_from(0, 64)}, {replicate()}));
  const Layout rows = check(layout_of(shape, {{64}, ranks_from(0, 64)}, {shard(0)}));
  const Layout to_copies = check(layout_of(shape, {{64}, ranks_from(64, 64)}, {replicate()}));
  const Layout to_rows = check(layout_of(shape, {{64}, ranks_from(64, 64)}, {shard(0)}));
  const Layout to_columns = check(layout_of(shape, {{64}, ranks_from(64, 64)}, {shard(1)}));
  const auto make = [&](const char* what, const std::vector<Tensor>& tensors) {
    for (const Strategy strategy : {Strategy::kAuto, Strategy::kBsr}) {
      const Wishes wishes{.strategy = strategy,
                          .bundle_bytes = 64 * kSliceBytes,
                          .slice_bytes = kSliceBytes,
                          .links = &links};
      measure(fmt::format("4,000 tensors, 64 to 64, {}: {}", what, name_of(strategy)),
              [&] { (void)check(make_plans(tensors, wishes, 3)); });
    }
  };
  make("64 copies to shards", std::vector<Tensor>(4000, {&copies, &to_rows, 4}));
  make("64 copies to copies", std::vector<Tensor>(4000, {&copies, &to_copies, 4}));
  make("rows to columns", std::vector<Tensor>(4000, {&rows, &to_columns, 4}));
  std::vector<Layout> apart(4000, to_rows);
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < apart.size(); ++i) {
    for (Part& part : apart[i].parts.edit()) part.offset = 1000 * i;
    tensors.push_back({&rows, &apart[i], 4});
  }
  make("in flat buffers", tensors);
}

}  // namespace
}  // namespace hetcomm::reshard

int main() {
  hetcomm::reshard::measure_activations();
  hetcomm::reshard::measure_model();
  hetcomm::reshard::measure_auto("60 layers of 9 weights, 32 to 31", 32, 31, 540);
  hetcomm::reshard::measure_auto("100,000 tensors, 64 to 64", 64, 64, 100'000);
  hetcomm::reshard::measure_lists();
  return 0;
}
