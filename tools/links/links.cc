#include "tools/links/links.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "tools/common/plan_answer.h"
#include "tools/common/session.h"
#include "tools/common/texts.h"
#include "tools/links/links_flows.h"
#include "tools/links/links_plan.h"

namespace tools {
namespace {

using Json = nlohmann::ordered_json;

std::string value_of(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

// --- rounds ----------------------------------------------------------------------------------

// One round of measurements. All ranks have the same rounds.
struct Round {
  bool latency = false;  // measure latencies; otherwise rates
  double seconds = 0;
  std::vector<RankPair> pairs;
  std::vector<double> values;  // one per pair: nanoseconds, or bytes per second
};

Json encode(const std::vector<Round>& rounds) {
  Json out = Json::array();
  for (const Round& round : rounds) {
    Json entry;
    entry["latency"] = round.latency;
    entry["seconds"] = round.seconds;
    entry["pairs"] = round.pairs;
    out.push_back(std::move(entry));
  }
  return out;
}

std::vector<Round> decode(const Json& json) {
  std::vector<Round> rounds;
  for (const Json& entry : json) {
    Round round;
    round.latency = entry["latency"].get<bool>();
    round.seconds = entry["seconds"].get<double>();
    round.pairs = entry["pairs"].get<std::vector<RankPair>>();
    rounds.push_back(std::move(round));
  }
  return rounds;
}

// Runs this rank's part of |round|. Returns its measurements, each as [index of the pair, value].
Json run_round(hetcomm_communicator_t* communicator, int own, const Round& round) {
  Json measured = Json::array();
  const auto index_of = [&](RankPair pair) {
    return std::find(round.pairs.begin(), round.pairs.end(), pair) - round.pairs.begin();
  };
  if (round.latency) {
    for (const RankPair& pair : round.pairs) {
      if (own != pair.first && own != pair.second) continue;
      const uint64_t ns = run_latency(communicator, own, pair);
      if (own == pair.first) measured.push_back({index_of(pair), ns});
    }
    return measured;
  }
  const auto has_own = [own](const RankPair& pair) {
    return pair.first == own || pair.second == own;
  };
  if (std::none_of(round.pairs.begin(), round.pairs.end(), has_own)) return measured;
  for (const Flow& flow : run_flows(communicator, own, round.pairs, round.seconds)) {
    measured.push_back({index_of({flow.from, flow.to}), flow.bytes_per_s});
  }
  return measured;
}

Json run_rounds(hetcomm_communicator_t* communicator, int own, const std::vector<Round>& rounds,
                const std::function<void(size_t)>& begin) {
  Json results = Json::array();
  for (size_t i = 0; i < rounds.size(); ++i) {
    begin(i);
    require(hetcomm_communicator_barrier(communicator, HETCOMM_TIMEOUT_INFINITE), "meeting");
    results.push_back(run_round(communicator, own, rounds[i]));
  }
  return results;
}

// --- rank 0 ----------------------------------------------------------------------------------

struct Host {
  std::string label;
  std::string cluster;
  int first = 0;    // the host's first rank
  int second = -1;  // another rank on the host, or -1
};

// Groups the ranks by host. Exits the process if their cluster labels contradict each other, since
// the model would be useless.
std::vector<Host> hosts_of(const std::vector<std::pair<std::string, std::string>>& ranks) {
  std::vector<Host> hosts;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto& [label, cluster] = ranks[rank];
    const auto found =
        std::find_if(hosts.begin(), hosts.end(),
                     [&, &name = label](const Host& host) { return host.label == name; });
    if (found == hosts.end()) {
      hosts.push_back({label, cluster, static_cast<int>(rank), -1});
      continue;
    }
    if (found->cluster != cluster) {
      fail(fmt::format("ranks {} and {} of host '{}' have different HETCOMM_CLUSTER: '{}' and '{}'",
                       found->first, rank, label, found->cluster, cluster));
    }
    if (found->second < 0) found->second = static_cast<int>(rank);
  }
  for (const Host& host : hosts) {
    if (host.cluster.empty() == hosts.front().cluster.empty()) continue;
    fail(fmt::format("rank {} has HETCOMM_CLUSTER and rank {} has none: set it on all or on none",
                     host.cluster.empty() ? hosts.front().first : host.first,
                     host.cluster.empty() ? host.first : hosts.front().first));
  }
  return hosts;
}

// Plans the measurements, sends the plan to the ranks, and gathers their results.
class Survey {
 public:
  Survey(hetcomm_communicator_t* communicator, int ranks, const LinksOptions& options,
         const std::function<void(const std::string&)>& progress)
      : communicator_(communicator), ranks_(ranks), options_(options), progress_(progress) {
    std::vector<std::pair<std::string, std::string>> labels = {
        {own_host_label(), value_of("HETCOMM_CLUSTER")}};
    for (int rank = 1; rank < ranks_; ++rank) {
      const Json told = Json::parse(receive_text(communicator_, rank));
      labels.emplace_back(told[0].get<std::string>(), told[1].get<std::string>());
    }
    hosts_ = hosts_of(labels);
  }

  LinksResult run() {
    LinksResult result;
    if (hosts_.size() == 1 && hosts_[0].second < 0) fail("this job has one rank: start several");
    measure_latencies();
    add_transfers("pairs", first_rounds(count()), true);
    if (count() > 1) add_transfers("several pairs at once", further_rounds(clusters()), false);
    result.measurements = document().dump();
    result.notes = notes();
    if (count() > 1 && options_.check > 0) check(&result);
    for (int rank = 1; rank < ranks_; ++rank) send_text(communicator_, rank, "[]");
    return result;
  }

 private:
  int count() const { return static_cast<int>(hosts_.size()); }
  const Host& host(int index) const { return hosts_[static_cast<size_t>(index)]; }

  // Returns the ranks that represent a pair of hosts.
  RankPair ranks_of(const HostPair& pair) const {
    const Host& from = host(pair.first);
    return {from.first, pair.first == pair.second ? from.second : host(pair.second).first};
  }

  // Returns rounds of transfers inside the hosts that have two ranks: one round for each host, or
  // one for all of them if there are many hosts.
  std::vector<HostRound> insides() const {
    HostRound all;
    for (int i = 0; i < count(); ++i) {
      if (host(i).second >= 0) all.emplace_back(i, i);
    }
    if (count() > kMaxAlone && !all.empty()) return {all};
    std::vector<HostRound> rounds;
    for (const HostPair& pair : all) rounds.push_back({pair});
    return rounds;
  }

  std::vector<Round> measure(const char* what, std::vector<Round> rounds) {
    if (rounds.empty()) return rounds;  // an empty plan would end answer_survey()
    const std::string plan = encode(rounds).dump();
    for (int rank = 1; rank < ranks_; ++rank) send_text(communicator_, rank, plan);
    std::vector<Json> all = {run_rounds(communicator_, 0, rounds, [&](size_t i) {
      progress_(fmt::format("{}: round {} of {}", what, i + 1, rounds.size()));
    })};
    for (int rank = 1; rank < ranks_; ++rank) {
      all.push_back(Json::parse(receive_text(communicator_, rank)));
    }
    for (size_t i = 0; i < rounds.size(); ++i) {
      rounds[i].values.resize(rounds[i].pairs.size(), 0);
      for (const Json& told : all) {
        for (const Json& entry : told[i]) {
          rounds[i].values.at(entry[0].get<size_t>()) = entry[1].get<double>();
        }
      }
    }
    return rounds;
  }

  void measure_latencies() {
    std::vector<HostRound> pairs = insides();
    for (const HostRound& round : tournament(count())) {
      if (count() > kMaxAlone) {
        pairs.push_back(round);
        continue;
      }
      for (const HostPair& pair : round) pairs.push_back({pair});
    }
    std::vector<Round> rounds;
    for (const HostRound& round : pairs) {
      rounds.push_back({.latency = true, .seconds = 0, .pairs = {}, .values = {}});
      for (const HostPair& pair : round) rounds.back().pairs.push_back(ranks_of(pair));
    }
    rounds = measure("latency", std::move(rounds));
    for (size_t i = 0; i < rounds.size(); ++i) {
      for (size_t k = 0; k < pairs[i].size(); ++k) {
        const auto ns = static_cast<uint64_t>(rounds[i].values[k]);
        const auto& [one, other] = pairs[i][k];
        latencies_.push_back({one, other, ns});
        if (one != other) latencies_.push_back({other, one, ns});
        most_latency_ns_ = std::max(most_latency_ns_, ns);
      }
    }
  }

  std::vector<Round> transfer_rounds(const std::vector<HostRound>& pairs) const {
    // Adds time for the round trips in which a sender increases its message size.
    const double seconds = options_.seconds + 40e-9 * static_cast<double>(most_latency_ns_);
    std::vector<Round> rounds;
    for (const HostRound& round : pairs) {
      rounds.push_back({.latency = false, .seconds = seconds, .pairs = {}, .values = {}});
      for (const HostPair& pair : round) rounds.back().pairs.push_back(ranks_of(pair));
    }
    return rounds;
  }

  void add_transfers(const char* what, std::vector<HostRound> pairs, bool inside) {
    if (inside) {
      const std::vector<HostRound> more = insides();
      pairs.insert(pairs.begin(), more.begin(), more.end());
    }
    const std::vector<Round> rounds = measure(what, transfer_rounds(pairs));
    for (size_t i = 0; i < rounds.size(); ++i) {
      Json transfers = Json::array();
      for (size_t k = 0; k < pairs[i].size(); ++k) {
        const double rate = rounds[i].values[k];
        if (rate < 1) {
          fail(fmt::format("too little arrived from '{}' at '{}' in {} s: give --seconds",
                           host(pairs[i][k].first).label, host(pairs[i][k].second).label,
                           rounds[i].seconds));
        }
        transfers.push_back(ends(pairs[i][k], "bytes_per_s", std::llround(rate)));
      }
      Json entry;
      entry["transfers"] = std::move(transfers);
      rounds_.push_back(std::move(entry));
    }
    seconds_ = rounds.empty() ? seconds_ : rounds.front().seconds;
  }

  static Json ends(const HostPair& pair, const char* name, int64_t value) {
    Json entry;
    entry["from"] = pair.first;
    entry["to"] = pair.second;
    entry[name] = value;
    return entry;
  }

  Json document() const {
    Json out;
    out["format"] = "hetcomm link measurements";
    out["version"] = 1;
    out["source"] = fmt::format("hetcomm_bench links: {}, {} rounds of {:.2g} s",
                                count() == 1 ? "1 host" : fmt::format("{} hosts", count()),
                                rounds_.size(), seconds_);
    out["hosts"] = Json::array();
    for (const Host& each : hosts_) {
      Json entry;
      entry["label"] = each.label;
      if (!each.cluster.empty()) entry["cluster"] = each.cluster;
      out["hosts"].push_back(std::move(entry));
    }
    out["latencies"] = Json::array();
    for (const auto& [from, to, ns] : latencies_) {
      out["latencies"].push_back(ends({from, to}, "latency_ns", static_cast<int64_t>(ns)));
    }
    out["rounds"] = rounds_;
    return out;
  }

  // Returns the number of each host's cluster. Declared clusters are used as they are: the library
  // may not be able to infer a model yet, since the sampled pairs may not include a pair for every
  // two clusters. If none are declared, the library infers the clusters from the measurements so
  // far.
  std::vector<int> clusters() const {
    if (!hosts_.front().cluster.empty()) return declared_clusters();
    const Json model = Json::parse(infer_links(document().dump(), HETCOMM_PLAN_JSON));
    std::map<std::string, int> numbers;
    std::map<std::string, int> by_label;
    for (const Json& each : model["hosts"]) {
      const auto [at, added] =
          numbers.try_emplace(each["cluster"].get<std::string>(), static_cast<int>(numbers.size()));
      by_label[each["label"].get<std::string>()] = at->second;
    }
    std::vector<int> result;
    for (const Host& each : hosts_) result.push_back(by_label[each.label]);
    return result;
  }

  std::vector<int> declared_clusters() const {
    std::map<std::string, int> numbers;
    std::vector<int> result;
    for (const Host& each : hosts_) {
      result.push_back(
          numbers.try_emplace(each.cluster, static_cast<int>(numbers.size())).first->second);
    }
    return result;
  }

  std::vector<std::string> notes() const {
    std::vector<std::string> notes;
    if (count() > kMaxTournament) {
      notes.push_back(
          fmt::format("of {} hosts a sample was measured: each with those at distances 1, 2, 4, 8, "
                      "... and 3, 5 "
                      "and 7 times these in the order of the ranks; up to {} hosts all pairs are",
                      count(), kMaxTournament));
    } else if (count() > kMaxAlone) {
      notes.push_back(fmt::format(
          "disjoint pairs were measured at once; up to {} hosts every pair is alone", kMaxAlone));
    }
    return notes;
  }

  // Measures repeatedly and returns medians, so that one stalled stream does not distort the model.
  std::vector<Round> measured_repeatedly(const std::vector<Round>& plan) {
    constexpr size_t kTimes = 3;
    std::vector<std::vector<Round>> times;
    for (size_t i = 0; i < kTimes; ++i) times.push_back(measure("check", plan));
    std::vector<Round> result = times.front();
    for (size_t i = 0; i < result.size(); ++i) {
      for (size_t k = 0; k < result[i].values.size(); ++k) {
        std::vector<double> values;
        for (const std::vector<Round>& each : times) values.push_back(each[i].values[k]);
        std::sort(values.begin(), values.end());
        result[i].values[k] = values[kTimes / 2];
      }
    }
    return result;
  }

  void check(LinksResult* result) {
    const std::vector<HostRound> pairs = check_rounds(count(), options_.check, options_.seed);
    const std::vector<Round> rounds = measured_repeatedly(transfer_rounds(pairs));
    const std::string model = infer_links(result->measurements, HETCOMM_PLAN_JSON);
    for (size_t i = 0; i < rounds.size(); ++i) {
      std::vector<hetcomm_link_ends_t> transfers;
      for (const auto& [from, to] : pairs[i]) {
        transfers.push_back({host(from).label.c_str(), nullptr, host(to).label.c_str(), nullptr});
      }
      std::vector<uint64_t> promised(transfers.size());
      const hetcomm_status_t status =
          hetcomm_links_rates(model.c_str(), transfers.size(), transfers.data(), promised.data());
      if (status != HETCOMM_OK) {
        fail(std::string("asking the model: ") + hetcomm_plan_last_error());
      }
      for (size_t k = 0; k < transfers.size(); ++k) {
        const double measured = std::max(rounds[i].values[k], 1.0);
        const double deviation = static_cast<double>(promised[k]) / measured - 1;
        result->worst = std::max(result->worst, std::fabs(deviation));
        result->comparison.push_back(fmt::format(
            "{} at once: {} to {}: promised {:.2f} MB/s, measured {:.2f} MB/s ({:+.1f} %)",
            transfers.size(), transfers[k].from_host, transfers[k].to_host,
            static_cast<double>(promised[k]) / 1e6, measured / 1e6, deviation * 100));
      }
    }
  }

  struct Latency {
    int from;
    int to;
    uint64_t ns;
  };

  hetcomm_communicator_t* const communicator_;
  const int ranks_;
  const LinksOptions options_;
  const std::function<void(const std::string&)>& progress_;
  std::vector<Host> hosts_;
  std::vector<Latency> latencies_;
  uint64_t most_latency_ns_ = 0;
  double seconds_ = 0;
  Json rounds_ = Json::array();
};

// Runs on the ranks other than rank 0. Executes the plans of rank 0 until an empty plan arrives.
void answer_survey(hetcomm_communicator_t* communicator, int own) {
  send_text(communicator, 0, Json::array({own_host_label(), value_of("HETCOMM_CLUSTER")}).dump());
  for (;;) {
    const std::vector<Round> rounds = decode(Json::parse(receive_text(communicator, 0)));
    if (rounds.empty()) return;
    send_text(communicator, 0, run_rounds(communicator, own, rounds, [](size_t) {}).dump());
  }
}

}  // namespace

LinksResult measure_links(Launcher launcher, const LinksOptions& options,
                          const std::function<void(const std::string&)>& progress) {
  Session session(launcher, 0, {.progress = options.progress, .devices = {}, .settings = {}});
  hetcomm_communicator_t* const communicator =
      session.create_communicator("bench", options.transport);
  LinksResult result;
  if (session.ranks() < 2) fail("this job has one rank; start two or more");
  if (session.rank() == 0) {
    result = Survey(communicator, session.ranks(), options, progress).run();
  } else {
    answer_survey(communicator, session.rank());
  }
  require(hetcomm_communicator_barrier(communicator, HETCOMM_TIMEOUT_INFINITE), "leaving together");
  session.destroy_communicator(communicator);
  return result;
}

std::string infer_links(const std::string& measurements, int32_t form) {
  try {
    return plan_answer(hetcomm_links_infer, measurements, form);
  } catch (const PlanError& error) {
    fail(std::string("inferring the link model: ") + error.what());
  }
}

}  // namespace tools
