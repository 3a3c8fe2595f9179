// Which PCI functions are accelerators.
#pragma once

#include <string>

#include "topology/machine/machine.h"

namespace hetcomm::topology {

// |on_root_bus|: no bridge is between |node| and its root complex, as with a processor's own
// graphics.
bool is_accelerator(const PciNode& node, bool on_root_bus);

// "NVIDIA 10de:2330"; without a vendor's name where the vendor is not known.
std::string accelerator_name(const PciNode& node);

// Adds an accelerator for each function of |machine| that is one and is not listed yet.
void add_accelerators(Machine& machine);

}  // namespace hetcomm::topology
