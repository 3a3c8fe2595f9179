#include "topology/machine/accelerator_class.h"

#include <algorithm>
#include <iterator>

#include <fmt/core.h>

namespace hetcomm::topology {
namespace {

// Specifies which of a vendor's VGA and other display controllers (PCI classes 0300 and 0380) are
// accelerators. All 3D controllers (0302) are accelerators.
enum class Display : uint8_t {
  // No display controllers are accelerators. They display the console of a management processor or
  // a virtual machine.
  kConsole,
  // All display controllers are accelerators.
  kAccelerator,
  // Display controllers on a card are accelerators. Those integrated into the processor are not.
  kDiscrete,
};

struct Vendor {
  uint16_t id;
  const char* name;
  Display display;
};

constexpr Vendor kVendors[] = {
    {0x1002, "AMD", Display::kDiscrete},          {0x10de, "NVIDIA", Display::kAccelerator},
    {0x8086, "Intel", Display::kDiscrete},        {0x1da3, "Habana", Display::kAccelerator},
    {0x19e5, "Huawei", Display::kConsole},        {0x1d94, "Hygon", Display::kAccelerator},
    {0xcabc, "Cambricon", Display::kAccelerator}, {0x1ed5, "Moore Threads", Display::kAccelerator},
    {0x9999, "MetaX", Display::kAccelerator},     {0x1e3e, "Iluvatar", Display::kAccelerator},
    {0x1d0f, "Amazon", Display::kConsole},        {0x1ae0, "Google", Display::kConsole},
    {0x1a03, "ASPEED", Display::kConsole},        {0x102b, "Matrox", Display::kConsole},
    {0x1af4, "virtio", Display::kConsole},        {0x1b36, "QEMU", Display::kConsole},
};

// The display controller of a management processor. The vendor also makes display controllers that
// are accelerators.
struct Console {
  uint16_t vendor;
  uint16_t device;
};
constexpr Console kConsoles[] = {
    {0x1002, 0x515e},  // ES1000
    {0x1002, 0x5969},  // ES1000
    {0x1002, 0x4752},  // Rage XL
};

bool is_console(const PciNode& node) {
  return std::any_of(std::begin(kConsoles), std::end(kConsoles), [&](const Console& console) {
    return console.vendor == node.vendor && console.device == node.device;
  });
}

const Vendor* find_vendor(uint16_t id) {
  for (const Vendor& vendor : kVendors) {
    if (vendor.id == id) return &vendor;
  }
  return nullptr;
}

}  // namespace

bool is_accelerator(const PciNode& node, bool on_root_bus) {
  constexpr uint16_t kVga = 0x0300;
  constexpr uint16_t k3d = 0x0302;
  constexpr uint16_t kOtherDisplay = 0x0380;
  constexpr uint16_t kProcessingAccelerator = 0x12;
  if (node.kind != PciKind::kFunction) return false;
  if (node.device_class >> 8 == kProcessingAccelerator || node.device_class == k3d) return true;
  if (node.device_class != kVga && node.device_class != kOtherDisplay) return false;
  const Vendor* vendor = find_vendor(node.vendor);
  if (vendor == nullptr || vendor->display == Display::kConsole || is_console(node)) return false;
  return vendor->display == Display::kAccelerator || !on_root_bus;
}

std::string accelerator_name(const PciNode& node) {
  const Vendor* vendor = find_vendor(node.vendor);
  return fmt::format("{}{}{:04x}:{:04x}", vendor == nullptr ? "" : vendor->name,
                     vendor == nullptr ? "" : " ", node.vendor, node.device);
}

void add_accelerators(Machine& machine) {
  for (size_t i = 0; i < machine.pci.size(); ++i) {
    const PciNode& node = machine.pci[i];
    const bool on_root_bus =
        node.parent != kNone &&
        machine.pci[static_cast<size_t>(node.parent)].kind == PciKind::kRootComplex;
    if (!is_accelerator(node, on_root_bus)) continue;
    if (machine.find_accelerator(node.address) != kNone) continue;
    Accelerator each;
    each.name = accelerator_name(node);
    each.address = node.address;
    each.function = static_cast<int>(i);
    machine.accelerators.push_back(std::move(each));
  }
}

}  // namespace hetcomm::topology
