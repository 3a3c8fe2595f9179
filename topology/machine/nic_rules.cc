#include "topology/machine/nic_rules.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/base/lists.h"
#include "src/base/text.h"

namespace hetcomm::topology {
namespace {

constexpr std::string_view kAccelerator = "acc";
constexpr std::string_view kNuma = "numa";

// Removes the first rule, which ends at a '|' or at the end of |text|, from |text|, and returns it.
std::string_view take_rule(std::string_view& text) {
  const size_t end = text.find('|');
  const std::string_view entry = trimmed(text.substr(0, end));
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return entry;
}

std::optional<uint32_t> number_after(std::string_view prefix, std::string_view text) {
  if (!text.starts_with(prefix)) return std::nullopt;
  text.remove_prefix(prefix.size());
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

Status malformed(std::string text) {
  return {Code::kInvalidArgument, "HETCOMM_NIC: " + std::move(text)};
}

Result<NicRule> parse_rule(std::string_view text) {
  NicRule rule;
  if (const size_t equals = text.find('='); equals != std::string_view::npos) {
    rule.user = trimmed(text.substr(0, equals));
    text = trimmed(text.substr(equals + 1));
    const std::optional<PciAddress> address = parse_pci_address(rule.user);
    const std::optional<uint32_t> accelerator = number_after(kAccelerator, rule.user);
    const std::optional<uint32_t> numa = number_after(kNuma, rule.user);
    if (address) {
      rule.user = address->text();
    } else if (accelerator) {
      rule.user = fmt::format("{}{}", kAccelerator, *accelerator);
    } else if (numa) {
      rule.user = fmt::format("{}{}", kNuma, *numa);
    } else {
      return malformed(
          fmt::format("'{}' is no accelerator and no NUMA node; write acc0, its PCI "
                      "address, or numa0",
                      printable(rule.user)));
    }
  }
  if (text.starts_with('^')) {
    rule.excludes = true;
    text.remove_prefix(1);
  }
  for (const std::string_view name : split_list(text)) rule.names.emplace_back(name);
  if (rule.names.empty()) {
    return malformed(rule.user.empty()
                         ? "the list names no NIC"
                         : fmt::format("the list of {} names no NIC", printable(rule.user)));
  }
  return rule;
}

bool matches_any(const Machine& machine, const NicRule& rule, const Nic& nic) {
  return std::any_of(rule.names.begin(), rule.names.end(), [&](const std::string& name) {
    return !name.empty() && is_named(machine, name, nic);
  });
}

bool has_physical(const Machine& machine) {
  return std::any_of(machine.nics.begin(), machine.nics.end(), [](const Nic& nic) {
    return nic.kind == NicKind::kPhysical && nic.state != NicState::kDown;
  });
}

bool has_user(const Machine& machine, const std::string& user) {
  if (const auto index = number_after(kAccelerator, user)) {
    return *index < machine.accelerators.size();
  }
  if (const auto number = number_after(kNuma, user)) {
    return std::any_of(machine.numa_nodes.begin(), machine.numa_nodes.end(),
                       [&](const NumaNode& node) { return node.number == *number; });
  }
  const std::optional<PciAddress> address = parse_pci_address(user);
  return address && machine.find_accelerator(*address) != kNone;
}

}  // namespace

bool is_named(const Machine& machine, const std::string& name, const Nic& nic) {
  if (name.ends_with('*')) {
    const std::string_view prefix = std::string_view(name).substr(0, name.size() - 1);
    return nic.interface.starts_with(prefix) || nic.rdma_device.starts_with(prefix);
  }
  if (nic.is_called(name)) return true;
  const std::optional<PciAddress> address = parse_pci_address(name);
  if (!address) return false;
  return std::any_of(nic.functions.begin(), nic.functions.end(), [&](int function) {
    return machine.pci[static_cast<size_t>(function)].address == *address;
  });
}

std::string list_nics(const Machine& machine) {
  std::vector<std::string> names;
  for (const Nic& nic : machine.nics) {
    names.push_back(nic.rdma_device.empty() || nic.interface.empty()
                        ? nic.name()
                        : fmt::format("{} ({})", nic.name(), nic.interface));
  }
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

Result<NicRules> NicRules::parse(std::string_view text) {
  NicRules rules;
  text = trimmed(text);
  while (!text.empty()) {
    const std::string_view entry = take_rule(text);
    if (entry.empty()) continue;
    Result<NicRule> rule = parse_rule(entry);
    if (!rule.ok()) return rule.status();
    if (rules.find(rule->user) != nullptr) {
      return malformed(rule->user.empty()
                           ? "there are two lists for everybody"
                           : fmt::format("there are two lists for {}", printable(rule->user)));
    }
    rules.rules_.push_back(std::move(rule).value());
  }
  return rules;
}

bool NicRules::allows_accelerator(const Machine& machine, size_t accelerator,
                                  const Nic& nic) const {
  const NicRule* rule = find(fmt::format("{}{}", kAccelerator, accelerator));
  if (rule == nullptr) rule = find(machine.accelerators[accelerator].address.text());
  return allows(machine, rule, nic);
}

bool NicRules::allows_numa_node(const Machine& machine, size_t numa_node, const Nic& nic) const {
  const uint32_t number = machine.numa_nodes.empty() ? 0 : machine.numa_nodes[numa_node].number;
  return allows(machine, find(fmt::format("{}{}", kNuma, number)), nic);
}

std::vector<int> NicRules::general(const Machine& machine) const {
  const NicRule* const rule = find("");
  std::vector<int> nics;
  for (size_t i = 0; i < machine.nics.size(); ++i) {
    if (allows(machine, rule, machine.nics[i])) nics.push_back(static_cast<int>(i));
  }
  const auto nic_at = [&machine](int index) -> const Nic& {
    return machine.nics[static_cast<size_t>(index)];
  };
  // Returns the index of the first name in the general rule that matches the NIC with index
  // |index|. Returns 0 if there is no general rule, or if that rule excludes NICs.
  const auto position = [&](int index) -> size_t {
    if (rule == nullptr || rule->excludes) return 0;
    const auto found = std::find_if(
        rule->names.begin(), rule->names.end(),
        [&](const std::string& name) { return is_named(machine, name, nic_at(index)); });
    return static_cast<size_t>(found - rule->names.begin());
  };
  std::stable_sort(nics.begin(), nics.end(), [&](int a, int b) {
    const size_t position_a = position(a);
    const size_t position_b = position(b);
    return position_a != position_b ? position_a < position_b
                                    : nic_at(a).mbit_per_s > nic_at(b).mbit_per_s;
  });
  return nics;
}

Status NicRules::check(const Machine& machine) const {
  for (const NicRule& rule : rules_) {
    if (!rule.user.empty() && !has_user(machine, rule.user)) {
      return {Code::kNotFound,
              fmt::format(
                  "HETCOMM_NIC: this host has no {}; it has {} accelerators and {} NUMA nodes",
                  printable(rule.user), machine.accelerators.size(), machine.numa_nodes.size())};
    }
    for (const std::string& name : rule.names) {
      const bool found = std::any_of(machine.nics.begin(), machine.nics.end(),
                                     [&](const Nic& nic) { return is_named(machine, name, nic); });
      if (!found) {
        return {Code::kNotFound, fmt::format("HETCOMM_NIC: no NIC is called '{}'; this host has {}",
                                             printable(name), list_nics(machine))};
      }
    }
    const bool leaves_one =
        std::any_of(machine.nics.begin(), machine.nics.end(),
                    [&](const Nic& nic) { return allows(machine, &rule, nic); });
    if (!leaves_one) {
      return {Code::kNotFound,
              fmt::format("HETCOMM_NIC: no NIC is left that is up{}; this host has {}",
                          rule.user.empty() ? "" : " for " + rule.user, list_nics(machine))};
    }
  }
  return {};
}

const NicRule* NicRules::find(std::string_view user) const {
  for (const NicRule& rule : rules_) {
    if (rule.user == user) return &rule;
  }
  return nullptr;
}

bool NicRules::allows(const Machine& machine, const NicRule* rule, const Nic& nic) const {
  if (nic.state == NicState::kDown) return false;
  if (rule == nullptr) rule = find("");
  if (rule != nullptr && !rule->excludes) return matches_any(machine, *rule, nic);
  if (rule != nullptr && matches_any(machine, *rule, nic)) return false;
  if (nic.kind == NicKind::kBridge) return false;
  return nic.kind == NicKind::kPhysical || !has_physical(machine);
}

}  // namespace hetcomm::topology
