#include "topology/machine/labels.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/base/text.h"
#include "src/present/rates.h"

namespace hetcomm::topology {
namespace {

std::string state_text(NicState state) {
  switch (state) {
    case NicState::kUp:
      return "up";
    case NicState::kDown:
      return "down";
    case NicState::kUnknown:
      break;
  }
  return "state unknown";
}

}  // namespace

std::string accelerator_label(size_t index) { return fmt::format("acc{}", index); }
std::string nic_label(size_t index) { return fmt::format("nic{}", index); }

std::string describe(const NumaNode& node) {
  std::string text = fmt::format("NUMA node {}", node.number);
  std::string details;
  if (node.package != kNone) details += fmt::format("package {}", node.package);
  if (!node.processors.empty()) {
    details +=
        fmt::format("{}processors {}", details.empty() ? "" : ", ", printable(node.processors));
  }
  if (node.memory_bytes != 0) {
    details += fmt::format("{}{:.3g} GiB", details.empty() ? "" : ", ",
                           static_cast<double>(node.memory_bytes) / (1 << 30));
  }
  return details.empty() ? text : fmt::format("{} ({})", text, details);
}

std::string describe(const Accelerator& accelerator) {
  return fmt::format("{} {}", accelerator.address.text(), printable(accelerator.name));
}

std::string describe(const Nic& nic) {
  std::string text = printable(nic.name());
  if (!nic.rdma_device.empty() && !nic.interface.empty()) {
    text += fmt::format(" ({})", printable(nic.interface));
  }
  text += fmt::format(", {}, {}", present::rate_text(nic.mbit_per_s), state_text(nic.state));
  if (nic.kind == NicKind::kVirtual) text += ", virtual";
  if (nic.kind == NicKind::kBridge) text += ", bridge or tunnel";
  for (const std::string& subnet : nic.subnets) text += ", " + printable(subnet);
  if (!nic.fabric.empty()) text += ", fabric " + printable(nic.fabric);
  return text;
}

std::string describe(const PciNode& node) {
  std::string text = fmt::format("{} {}",
                                 node.kind == PciKind::kRootComplex ? "root complex"
                                 : node.kind == PciKind::kBridge    ? "bridge"
                                                                    : "function",
                                 node.address.text());
  if (node.mbyte_per_s != 0) {
    text += fmt::format(", {:.3g} GB/s", static_cast<double>(node.mbyte_per_s) / 1e3);
  }
  return text;
}

}  // namespace hetcomm::topology
