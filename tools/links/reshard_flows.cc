#include "tools/links/reshard_flows.h"

#include <algorithm>
#include <limits>
#include <map>
#include <stdexcept>
#include <tuple>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "tools/common/plan_answer.h"

namespace tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kMessageUs = 5;  // processor time of the sender for one message
constexpr double kNearlyNothing = 1e-6;

// Network models the placement of ranks, and the resources that data uses between them.
class Network {
 public:
  explicit Network(const Scenario& scenario)
      : scenario_(scenario),
        hosts_of_cluster_((scenario.ranks + scenario.ranks_per_host - 1) / scenario.ranks_per_host),
        hosts_(2 * hosts_of_cluster_) {}

  int host(int rank) const {
    const int cluster = rank / scenario_.ranks;
    return cluster * hosts_of_cluster_ + rank % scenario_.ranks / scenario_.ranks_per_host;
  }
  int hosts() const { return hosts_; }
  int hosts_of_cluster() const { return hosts_of_cluster_; }
  // Returns the indices of the resources between two ranks. The indices start with the NIC of each
  // host, out and in. The memory of each host follows, then the two directions of the trunk.
  std::vector<int> path(int from, int to) const {
    const int sender = host(from);
    const int receiver = host(to);
    if (sender == receiver) return {2 * hosts_ + sender};
    std::vector<int> resources = {2 * sender, 2 * receiver + 1};
    if (from / scenario_.ranks != to / scenario_.ranks) {
      resources.push_back(3 * hosts_ + from / scenario_.ranks);
    }
    return resources;
  }
  int resources() const { return 3 * hosts_ + 2; }
  double rate(int resource) const {
    if (resource >= 3 * hosts_) return scenario_.trunk_bytes_per_s;
    return resource >= 2 * hosts_ ? scenario_.inside_bytes_per_s : scenario_.nic_bytes_per_s;
  }
  double latency_us(int from, int to) const {
    return from / scenario_.ranks != to / scenario_.ranks ? scenario_.trunk_latency_us
                                                          : scenario_.latency_us;
  }

 private:
  const Scenario& scenario_;
  const int hosts_of_cluster_;
  const int hosts_;
};

// A Track holds the messages from one rank to another in one stage. They are sent one after the
// other.
struct Track {
  int stage;
  int from;
  int to;
  double slice_bytes;
  std::vector<int> path;
  int next = 0;     // the slice to send next
  double left = 0;  // remaining bytes of the slice
  double starts_us = kNever;
  bool moves = false;
  double rate = 0;  // bytes per microsecond
};

class Simulation {
 public:
  Simulation(const Scenario& scenario, const Json& plan) : network_(scenario) {
    std::map<std::tuple<int, int, int>, uint64_t> bytes;
    uint64_t element_bytes = plan.at("element_bytes");
    int stage = 0;
    for (const Json& each : plan.at("stages")) {
      for (const Json& move : each.at("moves")) {
        uint64_t elements = 1;
        for (const Json& range : move.at("box")) {
          elements *= range.at(1).get<uint64_t>() - range.at(0).get<uint64_t>();
        }
        const int from = move.at("from");
        const int to = move.at("to");
        if (from != to) bytes[{stage, from, to}] += elements * element_bytes;
      }
      ++stage;
    }
    // Computes the number of slices that hetcomm would use.
    const double whole = static_cast<double>(scenario.bytes);
    const double least = 262144.0 * scenario.ranks;
    slices_ = stage == 1 ? static_cast<int>(std::max(1.0, whole / (64 * least)))
                         : static_cast<int>(whole / std::clamp(whole / 16, least, 64 * least));
    slices_ = std::max(slices_, 1);
    for (const auto& [key, count] : bytes) {
      const auto& [of, from, to] = key;
      tracks_.push_back({.stage = of,
                         .from = from,
                         .to = to,
                         .slice_bytes = static_cast<double>(count) / slices_,
                         .path = network_.path(from, to)});
      for (int slice = 0; slice < slices_; ++slice) ++awaited_[{slice, of, to}];
    }
  }

  double run() {
    for (Track& track : tracks_) offer(track);
    while (true) {
      share();
      double next = arrivals_.empty() ? kNever : arrivals_.begin()->first;
      for (const Track& track : tracks_) {
        next = std::min(next, track.moves ? now_us_ + track.left / track.rate : track.starts_us);
      }
      if (next == kNever) return now_us_;
      for (Track& track : tracks_) {
        if (track.moves) track.left -= track.rate * (next - now_us_);
      }
      now_us_ = next;
      for (Track& track : tracks_) {
        if (track.moves && track.left <= kNearlyNothing * track.slice_bytes) finish(track);
        if (!track.moves && track.starts_us <= now_us_) begin(track);
      }
      while (!arrivals_.empty() && arrivals_.begin()->first <= now_us_) {
        const auto [slice, stage, rank] = arrivals_.begin()->second;
        arrivals_.erase(arrivals_.begin());
        if (--awaited_[{slice, stage, rank}] > 0) continue;
        for (Track& track : tracks_) {
          if (track.from == rank && track.stage == stage + 1 && track.next == slice) offer(track);
        }
      }
    }
  }

 private:
  // Schedules the next message of |track| if its data has arrived. The message starts when the
  // sender is free.
  void offer(Track& track) {
    if (track.moves || track.next == slices_ || track.starts_us != kNever) return;
    if (track.stage > 0) {
      const auto awaited = awaited_.find({track.next, track.stage - 1, track.from});
      if (awaited != awaited_.end() && awaited->second > 0) return;
    }
    double& free = free_us_[track.from];
    free = std::max(free, now_us_) + kMessageUs;
    track.starts_us = free;
  }
  void begin(Track& track) {
    track.starts_us = kNever;
    track.moves = true;
    track.left = track.slice_bytes;
  }
  void finish(Track& track) {
    track.moves = false;
    arrivals_.emplace(now_us_ + network_.latency_us(track.from, track.to),
                      std::make_tuple(track.next, track.stage, track.to));
    ++track.next;
    offer(track);
  }
  // Computes the max-min fair rates of all flows. The resource with the lowest rate per flow is
  // divided among its flows first.
  void share() {
    std::vector<double> left(static_cast<size_t>(network_.resources()));
    std::vector<int> flows(left.size(), 0);
    for (size_t i = 0; i < left.size(); ++i) left[i] = network_.rate(static_cast<int>(i)) * 1e-6;
    std::vector<Track*> open;
    for (Track& track : tracks_) {
      if (!track.moves) continue;
      open.push_back(&track);
      for (const int resource : track.path) ++flows[static_cast<size_t>(resource)];
    }
    while (!open.empty()) {
      size_t narrowest = 0;
      double least = kNever;
      for (size_t i = 0; i < left.size(); ++i) {
        if (flows[i] == 0 || left[i] / flows[i] >= least) continue;
        least = left[i] / flows[i];
        narrowest = i;
      }
      std::vector<Track*> rest;
      for (Track* track : open) {
        if (std::count(track->path.begin(), track->path.end(), static_cast<int>(narrowest)) == 0) {
          rest.push_back(track);
          continue;
        }
        track->rate = least;
        for (const int resource : track->path) {
          left[static_cast<size_t>(resource)] -= least;
          --flows[static_cast<size_t>(resource)];
        }
      }
      open.swap(rest);
    }
  }

  const Network network_;
  int slices_ = 1;
  std::vector<Track> tracks_;
  double now_us_ = 0;
  std::map<int, double> free_us_;                     // when a rank can send again
  std::map<std::tuple<int, int, int>, int> awaited_;  // messages to come, by slice, stage, receiver
  std::multimap<double, std::tuple<int, int, int>> arrivals_;  // slice, stage and receiver, by time
};

std::string model_of(const Scenario& scenario) {
  const Network network(scenario);
  Json json = {{"format", "hetcomm link model"}, {"version", 1}, {"source", scenario.name}};
  const auto resource = [&](std::string name, const char* kind, double rate) {
    json["resources"].push_back(
        {{"name", std::move(name)}, {"kind", kind}, {"bytes_per_s", static_cast<uint64_t>(rate)}});
  };
  const auto ns = [](double us) { return static_cast<uint64_t>(us * 1e3); };
  json["clusters"] = {{{"name", "a"}}, {{"name", "b"}}};
  for (int host = 0; host < network.hosts(); ++host) {
    const std::string name = fmt::format("h{:03}", host);
    resource(name + " memory", "memory", scenario.inside_bytes_per_s);
    resource(name + " out", "nic", scenario.nic_bytes_per_s);
    resource(name + " in", "nic", scenario.nic_bytes_per_s);
    json["hosts"].push_back({{"label", name},
                             {"cluster", host < network.hosts_of_cluster() ? "a" : "b"},
                             {"latency_ns", ns(scenario.latency_us)},
                             {"inside", {name + " memory"}},
                             {"nics", {{{"out", {name + " out"}}, {"in", {name + " in"}}}}}});
  }
  resource("trunk a to b", "trunk", scenario.trunk_bytes_per_s);
  resource("trunk b to a", "trunk", scenario.trunk_bytes_per_s);
  for (const char* const name : {"a", "b"}) {
    json["paths"].push_back(
        {{"from", name}, {"to", name}, {"latency_ns", ns(scenario.latency_us)}});
  }
  json["paths"].push_back({{"from", "a"},
                           {"to", "b"},
                           {"latency_ns", ns(scenario.trunk_latency_us)},
                           {"resources", {"trunk a to b"}}});
  json["paths"].push_back({{"from", "b"},
                           {"to", "a"},
                           {"latency_ns", ns(scenario.trunk_latency_us)},
                           {"resources", {"trunk b to a"}}});
  return json.dump();
}

}  // namespace

std::vector<Scenario> scenarios(int ranks, uint64_t bytes) {
  constexpr double kGigabit = 1e9 / 8;
  const Scenario slow{.name = "trunk as one NIC",
                      .bytes = bytes,
                      .ranks = ranks,
                      .ranks_per_host = 1,
                      .nic_bytes_per_s = 100 * kGigabit,
                      .inside_bytes_per_s = 400 * kGigabit,
                      .trunk_bytes_per_s = 100 * kGigabit,
                      .latency_us = 10,
                      .trunk_latency_us = 50};
  Scenario wide = slow;
  wide.name = "trunk wider than all NICs";
  wide.trunk_bytes_per_s = 2000 * kGigabit;
  Scenario thin = slow;
  thin.name = "trunk a tenth of a NIC";
  thin.trunk_bytes_per_s = 10 * kGigabit;
  Scenario hosts = slow;
  hosts.name = "8 ranks a host, trunk as four NICs";
  hosts.ranks_per_host = 8;
  hosts.inside_bytes_per_s = 2400 * kGigabit;
  hosts.trunk_bytes_per_s = 400 * kGigabit;
  Scenario far = slow;
  far.name = "64 KiB over 5 ms";
  far.bytes = 65536;
  far.trunk_bytes_per_s = 10 * kGigabit;
  far.trunk_latency_us = 5000;
  Scenario near = slow;
  near.name = "64 KiB, all ways 50 us";
  near.bytes = 65536;
  near.latency_us = near.trunk_latency_us = 50;
  Scenario narrow = slow;
  narrow.name = "NICs below the trunk";
  narrow.nic_bytes_per_s = 10 * kGigabit;
  narrow.trunk_bytes_per_s = 60 * kGigabit;
  return {slow, wide, thin, hosts, far, near, narrow};
}

std::string draft(const Scenario& scenario, const LayoutHandle& source,
                  const LayoutHandle& destination, const std::string& strategy,
                  std::string* refused) {
  const Network network(scenario);
  std::vector<std::string> hosts;
  for (int rank = 0; rank < 2 * scenario.ranks; ++rank) {
    hosts.push_back(fmt::format("h{:03}", network.host(rank)));
  }
  Json question = draft_question(source, destination, strategy);
  question["links"] = {{"model", Json::parse(model_of(scenario))}, {"hosts", hosts}};
  try {
    return plan_answer(hetcomm_draft_reshard, question.dump(), HETCOMM_PLAN_JSON);
  } catch (const PlanError& error) {
    if (error.status() != HETCOMM_UNSUPPORTED) throw;
    *refused = error.what();
    return "";
  }
}

double simulate(const Scenario& scenario, const std::string& plan) {
  return Simulation(scenario, Json::parse(plan)).run();
}

}  // namespace tools
