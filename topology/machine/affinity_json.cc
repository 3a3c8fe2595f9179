#include "topology/machine/affinity_json.h"

#include <nlohmann/json.hpp>

#include "topology/machine/machine_json.h"

namespace hetcomm::topology {
namespace {

using Json = nlohmann::ordered_json;

Json write_order(const Machine& machine, const NicOrder& order) {
  Json list = Json::array();
  for (const NicChoice& choice : order) {
    list.push_back({{"name", machine.nics[static_cast<size_t>(choice.nic)].name()},
                    {"distance", word_of(choice.distance)},
                    {"share_mbit_per_s", choice.share_mbit_per_s}});
  }
  return list;
}

}  // namespace

std::string to_json(const Machine& machine, const Affinity& affinity) {
  Json document = Json::parse(to_json(machine));
  Json accelerators = Json::array();
  for (size_t i = 0; i < affinity.accelerators.size(); ++i) {
    accelerators.push_back({{"address", machine.accelerators[i].address.text()},
                            {"nics", write_order(machine, affinity.accelerators[i])}});
  }
  Json numa_nodes = Json::array();
  for (size_t i = 0; i < affinity.numa_nodes.size(); ++i) {
    const uint32_t number = i < machine.numa_nodes.size() ? machine.numa_nodes[i].number : 0;
    numa_nodes.push_back(
        {{"number", number}, {"nics", write_order(machine, affinity.numa_nodes[i])}});
  }
  document["affinity"] = {{"accelerators", accelerators}, {"numa_nodes", numa_nodes}};
  return document.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

}  // namespace hetcomm::topology
