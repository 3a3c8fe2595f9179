#include "topology/machine/affinity_json.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "src/present/json_fields.h"
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

class Reader {
 public:
  explicit Reader(const Machine& machine) : machine_(machine) {}

  Result<Affinity> read(const present::Json& json) {
    present::Fields fields(json, "affinity", failure_);
    fields.allow_only({"accelerators", "numa_nodes"});
    Affinity affinity;
    affinity.accelerators = orders(fields, "accelerators", "address", machine_.accelerators.size());
    affinity.numa_nodes =
        orders(fields, "numa_nodes", "number", std::max<size_t>(machine_.numa_nodes.size(), 1));
    if (!failure_.ok()) return failure_;
    return affinity;
  }

 private:
  // Reads the lists of all users of a kind, in the order of the machine.
  std::vector<NicOrder> orders(present::Fields& fields, const char* name, const char* user,
                               size_t count) {
    std::vector<NicOrder> read;
    fields.each(name, [&](const present::Json& json, const std::string& path) {
      present::Fields entry(json, path, failure_);
      entry.allow_only({user, "nics"});
      NicOrder& order = read.emplace_back();
      entry.each("nics", [&](const present::Json& nic, const std::string& at) {
        order.push_back(choice(present::Fields(nic, at, failure_)));
      });
    });
    if (failure_.ok() && read.size() != count) {
      fields.fail(name, fmt::format("has {} elements, and the machine has {}", read.size(), count));
    }
    return read;
  }

  NicChoice choice(present::Fields fields) {
    fields.allow_only({"name", "distance", "share_mbit_per_s"});
    NicChoice read;
    const std::string name = fields.text("name");
    for (size_t i = 0; i < machine_.nics.size() && read.nic == kNone; ++i) {
      if (machine_.nics[i].name() == name) read.nic = static_cast<int>(i);
    }
    if (read.nic == kNone) fields.fail("name", "names no NIC of the machine");
    const std::string word = fields.text("distance");
    const auto last = static_cast<int>(Distance::kOther);
    int distance = 0;
    while (distance <= last && word != word_of(static_cast<Distance>(distance))) ++distance;
    if (distance > last) fields.fail("distance", "is no distance");
    read.distance = static_cast<Distance>(std::min(distance, last));
    read.share_mbit_per_s = fields.number("share_mbit_per_s", std::numeric_limits<uint64_t>::max());
    return read;
  }

  const Machine& machine_;
  Status failure_;
};

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

Result<Affinity> parse_affinity(std::string_view json, const Machine& machine) {
  Result<present::Json> document = present::parse_json(json, kMaxMachineNesting);
  if (!document.ok()) return document.status();
  if (!document->is_object() || !document->contains("affinity")) {
    return assign_nics(machine, NicRules());
  }
  return Reader(machine).read(document->at("affinity"));
}

}  // namespace hetcomm::topology
