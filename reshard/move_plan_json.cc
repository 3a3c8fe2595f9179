#include "reshard/move_plan_json.h"

#include <nlohmann/json.hpp>

namespace hetcomm::reshard {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const Box& box) {
  Json ranges = Json::array();
  for (size_t d = 0; d < box.dimensions; ++d) ranges.push_back({box.begin[d], box.end[d]});
  return ranges;
}

Json json_of(const MovePlan& plan, uint64_t element_bytes) {
  Json json = {{"version", 1},
               {"strategy", plan.strategy},
               {"shape", plan.source.shape},
               {"element_bytes", element_bytes},
               {"stages", Json::array()}};
  for (size_t i = 0; i < plan.hops.size(); ++i) {
    const Layout& from = plan.from(i);
    const Layout& to = plan.hops[i].to;
    uint64_t elements = 0;
    Json moves = Json::array();
    for (const Move& move : plan.hops[i].moves) {
      const int sender = from.parts[move.from].rank;
      const int receiver = to.parts[move.to].rank;
      if (sender != receiver) elements += move.box.elements();
      moves.push_back(
          {{"from", sender}, {"to", receiver}, {"box", json_of(move.box)}, {"adds", move.adds}});
    }
    json["stages"].push_back({{"messages", count_messages(plan, i)},
                              {"bytes", elements * element_bytes},
                              {"moves", std::move(moves)}});
  }
  return json;
}

constexpr int kIndent = 1;
// Names come from files, and may not be UTF-8.
std::string text_of(const Json& json) {
  return json.dump(kIndent, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string to_json(const MovePlan& plan, uint64_t element_bytes) {
  return text_of(json_of(plan, element_bytes));
}

std::string to_json(const Choice& choice, uint64_t element_bytes, const Links& links) {
  Json json = json_of(choice.plan, element_bytes);
  const auto& resources = links.model().resources;
  json["forecast_ns"] = choice.forecast.ns;
  for (size_t i = 0; i < choice.forecast.hops.size(); ++i) {
    const HopForecast& hop = choice.forecast.hops[i];
    json["stages"][i]["ns"] = hop.ns;
    if (hop.slowest_resource >= 0) {
      json["stages"][i]["slowest"] = resources[static_cast<size_t>(hop.slowest_resource)].name;
    }
  }
  json["resources"] = Json::array();
  for (size_t i = 0; i < resources.size(); ++i) {
    const uint64_t bytes = choice.forecast.resource_bytes[i];
    if (bytes > 0) json["resources"].push_back({{"name", resources[i].name}, {"bytes", bytes}});
  }
  json["considered"] = Json::array();
  for (const Considered& each : choice.considered) {
    json["considered"].push_back(
        {{"strategy", each.strategy}, {"forecast_ns", each.ns}, {"refused", each.refused}});
  }
  return text_of(json);
}

}  // namespace hetcomm::reshard
