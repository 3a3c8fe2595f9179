#include "topology/machine/fabrics.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "src/base/lists.h"
#include "src/base/text.h"
#include "topology/machine/nic_rules.h"

namespace hetcomm::topology {
namespace {

Status wrong(Code code, std::string text) { return {code, "HETCOMM_FABRIC: " + std::move(text)}; }

}  // namespace

Status declare_fabrics(std::string_view text, Machine& machine) {
  std::vector<std::string> declared(machine.nics.size());
  for (const std::string_view entry : split_list(text)) {
    const size_t equals = entry.find('=');
    const std::string_view name = trimmed(entry.substr(0, equals));
    const std::string_view fabric =
        equals == std::string_view::npos ? std::string_view() : trimmed(entry.substr(equals + 1));
    if (name.empty() || fabric.empty()) {
      return wrong(Code::kInvalidArgument,
                   fmt::format("'{}' is not of the form NIC=FABRIC", printable(entry)));
    }
    if (fabric.size() > kMaxFabric) {
      return wrong(Code::kInvalidArgument,
                   fmt::format("the name of the fabric of {} has {} characters: {} are allowed",
                               printable(name), fabric.size(), kMaxFabric));
    }
    bool some = false;
    for (size_t i = 0; i < machine.nics.size(); ++i) {
      if (!is_named(machine, std::string(name), machine.nics[i])) continue;
      some = true;
      if (!declared[i].empty() && declared[i] != fabric) {
        return wrong(Code::kInvalidArgument,
                     fmt::format("{} is in two fabrics: '{}' and '{}'", machine.nics[i].name(),
                                 printable(declared[i]), printable(fabric)));
      }
      declared[i] = fabric;
    }
    if (!some) {
      return wrong(Code::kNotFound, fmt::format("no NIC is called '{}'; this host has {}",
                                                printable(name), list_nics(machine)));
    }
  }
  for (size_t i = 0; i < machine.nics.size(); ++i) {
    if (!declared[i].empty()) machine.nics[i].fabric = std::move(declared[i]);
  }
  return {};
}

}  // namespace hetcomm::topology
