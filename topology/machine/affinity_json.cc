#include "topology/machine/affinity_json.h"

#include <algorithm>
#include <limits>

#include <fmt/core.h>
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

class AffinityReader {
 public:
  explicit AffinityReader(const Machine& machine) : machine_(machine) {}

  Result<Affinity> read(const present::Json& json) {
    present::Fields fields(json, "affinity", failure_);
    fields.allow_only({"accelerators", "numa_nodes"});
    Affinity affinity;
    affinity.accelerators =
        orders(fields, "accelerators", "address", machine_.accelerators.size(),
               [this](present::Fields& entry) { return accelerator(entry.text("address")); });
    const size_t nodes = std::max<size_t>(machine_.numa_nodes.size(), 1);
    affinity.numa_nodes =
        orders(fields, "numa_nodes", "number", nodes, [this](present::Fields& entry) {
          return numa_node(entry.number("number", std::numeric_limits<uint32_t>::max()));
        });
    if (!failure_.ok()) return failure_;
    return affinity;
  }

 private:
  // Reads the NICs of all accelerators or all NUMA nodes, which are in the list |name|. Their field
  // |user| identifies them. index_of(entry) returns the index in the Machine, less than |count|, or
  // kNone if the Machine has no such object.
  template <typename IndexOf>
  std::vector<NicOrder> orders(present::Fields& fields, const char* name, const char* user,
                               size_t count, IndexOf&& index_of) {
    std::vector<NicOrder> read(count);
    std::vector<bool> is_there(count);
    fields.each(name, [&](const present::Json& json, const std::string& path) {
      present::Fields entry(json, path, failure_);
      entry.allow_only({user, "nics"});
      const int index = index_of(entry);
      if (!failure_.ok()) return;
      if (index < 0) return entry.fail(user, "is none of the machine's");
      if (is_there[static_cast<size_t>(index)]) return entry.fail(user, "is there twice");
      is_there[static_cast<size_t>(index)] = true;
      NicOrder& order = read[static_cast<size_t>(index)];
      entry.each("nics", [&](const present::Json& nic, const std::string& at) {
        order.push_back(choice(present::Fields(nic, at, failure_), order));
      });
    });
    const auto missing = std::count(is_there.begin(), is_there.end(), false);
    if (failure_.ok() && missing > 0) {
      fields.fail(name, fmt::format("lacks {} of the machine's {}", missing, count));
    }
    return read;
  }

  int accelerator(const std::string& address) const {
    for (size_t i = 0; i < machine_.accelerators.size(); ++i) {
      if (machine_.accelerators[i].address.text() == address) return static_cast<int>(i);
    }
    return kNone;
  }
  int numa_node(uint64_t number) const {
    if (machine_.numa_nodes.empty()) return number == 0 ? 0 : kNone;
    for (size_t i = 0; i < machine_.numa_nodes.size(); ++i) {
      if (machine_.numa_nodes[i].number == number) return static_cast<int>(i);
    }
    return kNone;
  }

  NicChoice choice(present::Fields fields, const NicOrder& before) {
    fields.allow_only({"name", "distance", "share_mbit_per_s"});
    NicChoice read;
    const std::string name = fields.text("name");
    const auto is_taken = [&](int nic) {
      return std::any_of(before.begin(), before.end(),
                         [nic](const NicChoice& each) { return each.nic == nic; });
    };
    for (int i = 0; i < static_cast<int>(machine_.nics.size()) && read.nic == kNone; ++i) {
      if (machine_.nics[static_cast<size_t>(i)].name() == name && !is_taken(i)) read.nic = i;
    }
    if (read.nic == kNone) fields.fail("name", "names no NIC of the machine, or one twice");
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
  return AffinityReader(machine).read(document->at("affinity"));
}

}  // namespace hetcomm::topology
