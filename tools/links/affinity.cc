#include "tools/links/affinity.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <memory>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "src/present/statistics.h"
#include "tools/common/session.h"
#include "tools/common/texts.h"
#include "tools/links/affinity_plan.h"
#include "tools/links/links_flows.h"

namespace tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kWays = AffinityRow::kWays;
constexpr const char* kWayNames[kWays] = {"near", "far", "one NIC for all"};

std::string topology_of(hetcomm_context_t* context) {
  size_t size = 0;
  require(hetcomm_context_topology(context, HETCOMM_TOPOLOGY_JSON, 0, nullptr, &size),
          "reading the topology");
  std::string text(size, '\0');
  require(hetcomm_context_topology(context, HETCOMM_TOPOLOGY_JSON, text.size(), text.data(), &size),
          "reading the topology");
  text.resize(size - 1);
  return text;
}

// Returns the context's device for the rank with index |local| on the host, or host memory if the
// context has no other device. Sets |*address| to the device's PCI address if it has one.
int32_t device_of(hetcomm_context_t* context, size_t local, std::string* address) {
  int32_t count = 0;
  require(hetcomm_device_count(context, &count), "counting devices");
  if (count < 2) return 0;
  const auto device = static_cast<int32_t>(1 + local % static_cast<size_t>(count - 1));
  hetcomm_device_info_t info{.struct_size = sizeof(info)};
  require(hetcomm_device_info(context, device, &info), "asking for a device");
  *address = info.pci_address;
  return device;
}

// Rank 0 assigns each rank a Role: the rank's index on its host, and all pairs of sending and
// receiving ranks.
struct Role {
  size_t local = 0;
  std::vector<RankPair> pairs;
};

// The device and NICs that a rank has chosen.
struct Choice {
  std::string device;
  std::string nics[kWays];
  std::string distances[kWays];
};

Json encode(const Choice& choice) {
  Json json;
  json["device"] = choice.device;
  json["nics"] = choice.nics;
  json["distances"] = choice.distances;
  return json;
}

Choice decode_choice(const Json& json) {
  Choice choice;
  choice.device = json["device"].get<std::string>();
  for (size_t i = 0; i < kWays; ++i) {
    choice.nics[i] = json["nics"][i].get<std::string>();
    choice.distances[i] = json["distances"][i].get<std::string>();
  }
  return choice;
}

// Sends |mine| to rank 0, which calls |answer| with all ranks' values and sends each rank its
// element of the result. Returns this rank's element.
template <typename Answer>
Json ask_first_rank(const Session& session, hetcomm_communicator_t* communicator, const Json& mine,
                    Answer&& answer) {
  if (session.rank() != 0) {
    send_text(communicator, 0, mine.dump());
    return Json::parse(receive_text(communicator, 0));
  }
  std::vector<Json> all{mine};
  for (int rank = 1; rank < session.ranks(); ++rank) {
    all.push_back(Json::parse(receive_text(communicator, rank)));
  }
  const std::vector<Json> answers = answer(all);
  for (int rank = 1; rank < session.ranks(); ++rank) {
    send_text(communicator, rank, answers[static_cast<size_t>(rank)].dump());
  }
  return answers[0];
}

std::vector<std::string> texts_of(const std::vector<Json>& all, const char* member) {
  std::vector<std::string> texts;
  for (const Json& each : all) texts.push_back(each[member].get<std::string>());
  return texts;
}

// Holds a communicator for each of the three configurations, and measures over them in turn.
class Ways {
 public:
  Ways(Launcher launcher, const AffinityOptions& options, const Choice& choice, int32_t device)
      : device_(device) {
    for (int way = 0; way < kWays; ++way) {
      const auto index = static_cast<size_t>(way);
      const SessionOptions own{.progress = options.progress,
                               .devices = {},
                               .settings = "HETCOMM_NIC=" + choice.nics[index]};
      sessions_[index] = std::make_unique<Session>(launcher, 1 + way, own);
      communicators_[index] =
          sessions_[index]->create_communicator(fmt::format("affinity{}", way), options.transport);
    }
  }
  Ways(const Ways&) = delete;
  Ways& operator=(const Ways&) = delete;
  ~Ways() {
    for (size_t way = 0; way < kWays; ++way) {
      require(hetcomm_communicator_barrier(communicators_[way], HETCOMM_TIMEOUT_INFINITE),
              "leaving together");
      sessions_[way]->destroy_communicator(communicators_[way]);
    }
  }

  // Returns a list of rates for each configuration. The rates are those at which this rank has
  // received, one for each round.
  Json measure(const std::vector<RankPair>& pairs, const AffinityOptions& options,
               const std::function<void(const std::string&)>& progress) {
    const int own = sessions_[0]->rank();
    const auto has_own = [own](const RankPair& pair) {
      return pair.first == own || pair.second == own;
    };
    const bool has_role = std::any_of(pairs.begin(), pairs.end(), has_own);
    Json rates = Json::array({Json::array(), Json::array(), Json::array()});
    for (int round = 0; round < options.rounds; ++round) {
      for (size_t way = 0; way < kWays; ++way) {
        progress(fmt::format("round {} of {}: {}", round + 1, options.rounds, kWayNames[way]));
        require(hetcomm_communicator_barrier(communicators_[way], HETCOMM_TIMEOUT_INFINITE),
                "meeting");
        if (!has_role) continue;
        const FlowMemory memory{sessions_[way]->context(), device_};
        for (const Flow& flow :
             run_flows(communicators_[way], own, pairs, options.seconds, memory)) {
          rates[way].push_back(flow.bytes_per_s);
        }
      }
    }
    return rates;
  }

 private:
  const int32_t device_;
  std::array<std::unique_ptr<Session>, kWays> sessions_;
  std::array<hetcomm_communicator_t*, kWays> communicators_{};
};

Role take_role(const Session& session, hetcomm_communicator_t* communicator) {
  Json mine;
  mine["host"] = own_host_label();
  const Json told = ask_first_rank(session, communicator, mine, [](const std::vector<Json>& all) {
    const std::vector<std::string> hosts = texts_of(all, "host");
    const std::vector<size_t> locals = local_numbers(hosts);
    const std::vector<RankPair> pairs = affinity_pairs(hosts);
    std::vector<Json> answers;
    for (const size_t local : locals) answers.push_back(Json{{"local", local}, {"pairs", pairs}});
    return answers;
  });
  return {told["local"].get<size_t>(), told["pairs"].get<std::vector<RankPair>>()};
}

// Selects this rank's NIC for each configuration: the nearest to its device, a far one, and one
// that all devices of the host share. The shared NIC is the nearest one of the host's first rank.
Choice choose(const Session& session, hetcomm_communicator_t* communicator, size_t local,
              const std::string& address) {
  const DeviceNics device = device_nics(topology_of(session.context()), address, local);
  if (device.nics.empty()) {
    fail(
        fmt::format("rank {}: host '{}' has no NIC that is up, or HETCOMM_NIC leaves none: see "
                    "hetcomm_info topology",
                    session.rank(), own_host_label()));
  }
  const NicOption& near = device.nics.front();
  const NicOption& far = device.nics[far_choice(device)];
  Json mine;
  mine["host"] = own_host_label();
  mine["near"] = near.name;
  const Json told = ask_first_rank(session, communicator, mine, [](const std::vector<Json>& all) {
    const std::vector<std::string> hosts = texts_of(all, "host");
    const std::vector<std::string> near_nics = texts_of(all, "near");
    std::vector<Json> answers;
    for (const std::string& host : hosts) {
      const auto first = std::find(hosts.begin(), hosts.end(), host) - hosts.begin();
      answers.push_back(Json{{"one", near_nics[static_cast<size_t>(first)]}});
    }
    return answers;
  });
  const auto one = told["one"].get<std::string>();
  const auto found = std::find_if(device.nics.begin(), device.nics.end(),
                                  [&](const NicOption& nic) { return nic.name == one; });
  return {.device = device.name,
          .nics = {near.name, far.name, one},
          .distances = {near.distance, far.distance,
                        found != device.nics.end() ? found->distance : "other"}};
}

std::vector<std::string> notes_of(const std::vector<Json>& all) {
  std::vector<std::string> notes;
  const std::vector<std::string> hosts = texts_of(all, "host");
  if (std::all_of(hosts.begin(), hosts.end(),
                  [&](const std::string& host) { return host == hosts[0]; })) {
    notes.emplace_back(
        "all ranks are on one host, where shared memory needs no NIC: start them on two hosts");
  }
  const bool same = std::any_of(all.begin(), all.end(), [](const Json& each) {
    return each["choice"]["nics"][0] == each["choice"]["nics"][1];
  });
  if (same) notes.emplace_back("some device has no NIC that is farther than its near one");
  return notes;
}

// Builds rank 0's result from the reports of all ranks.
AffinityResult result_of(const std::vector<Json>& all, const std::vector<RankPair>& pairs) {
  AffinityResult result;
  for (const auto& [from, to] : pairs) {
    const Json& sender = all[static_cast<size_t>(from)];
    const Json& receiver = all[static_cast<size_t>(to)];
    const Choice choice = decode_choice(sender["choice"]);
    AffinityRow row{.from = from, .to = to, .device = choice.device};
    for (size_t way = 0; way < kWays; ++way) {
      row.nics[way] = choice.nics[way];
      row.distances[way] = choice.distances[way];
      row.bytes_per_s[way] =
          hetcomm::present::median(receiver["rates"][way].get<std::vector<double>>());
    }
    result.rows.push_back(std::move(row));
  }
  result.notes = notes_of(all);
  return result;
}

AffinityRow sum_of(const std::vector<AffinityRow>& rows) {
  AffinityRow sum;
  for (const AffinityRow& row : rows) {
    for (size_t way = 0; way < kWays; ++way) sum.bytes_per_s[way] += row.bytes_per_s[way];
  }
  return sum;
}

double gain(const AffinityRow& row, size_t over) {
  return row.bytes_per_s[over] > 0 ? row.bytes_per_s[0] / row.bytes_per_s[over] : 0;
}

}  // namespace

AffinityResult measure_affinity(Launcher launcher, const AffinityOptions& options,
                                const std::function<void(const std::string&)>& progress) {
  Session session(launcher, 0, {.progress = options.progress, .devices = {}, .settings = {}});
  hetcomm_communicator_t* const communicator =
      session.create_communicator("affinity", options.transport);
  const Role role = take_role(session, communicator);
  if (role.pairs.empty()) fail("affinity needs two ranks at least: start several on two hosts");
  std::string address;
  const int32_t device = device_of(session.context(), role.local, &address);
  const Choice choice = choose(session, communicator, role.local, address);
  Json mine;
  {
    Ways ways(launcher, options, choice, device);
    mine["host"] = own_host_label();
    mine["choice"] = encode(choice);
    mine["rates"] = ways.measure(role.pairs, options, [&](const std::string& text) {
      if (session.rank() == 0) progress(text);
    });
  }
  AffinityResult result;
  ask_first_rank(session, communicator, mine, [&](const std::vector<Json>& all) {
    result = result_of(all, role.pairs);
    return std::vector<Json>(all.size());
  });
  require(hetcomm_communicator_barrier(communicator, HETCOMM_TIMEOUT_INFINITE), "leaving together");
  session.destroy_communicator(communicator);
  return result;
}

std::string affinity_table(const AffinityResult& result) {
  std::vector<std::vector<std::string>> rows{{"ranks", "device", "near NIC", "distance", "MB/s",
                                              "far NIC", "distance", "MB/s", "near/far", "one NIC",
                                              "MB/s", "near/one"}};
  const auto rate = [](double bytes_per_s) { return fmt::format("{:.1f}", bytes_per_s / 1e6); };
  const auto add = [&](const AffinityRow& row, std::string ranks) {
    rows.push_back({std::move(ranks), row.device, row.nics[0], row.distances[0],
                    rate(row.bytes_per_s[0]), row.nics[1], row.distances[1],
                    rate(row.bytes_per_s[1]), fmt::format("{:.2f}", gain(row, 1)), row.nics[2],
                    rate(row.bytes_per_s[2]), fmt::format("{:.2f}", gain(row, 2))});
  };
  for (const AffinityRow& row : result.rows) add(row, fmt::format("{} > {}", row.from, row.to));
  add(sum_of(result.rows), "all");
  std::vector<size_t> widths(rows[0].size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string affinity_json(const AffinityResult& result) {
  constexpr const char* kMembers[kWays] = {"near", "far", "one"};
  Json rows = Json::array();
  for (const AffinityRow& row : result.rows) {
    Json entry{{"from", row.from}, {"to", row.to}, {"device", row.device}};
    for (size_t way = 0; way < kWays; ++way) {
      entry[kMembers[way]] = {{"nic", row.nics[way]},
                              {"distance", row.distances[way]},
                              {"bytes_per_s", std::llround(row.bytes_per_s[way])}};
    }
    rows.push_back(std::move(entry));
  }
  const AffinityRow sum = sum_of(result.rows);
  Json document{{"rows", std::move(rows)},
                {"near_over_far", gain(sum, 1)},
                {"near_over_one", gain(sum, 2)},
                {"notes", result.notes}};
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tools
