// Determines which PCI functions are accelerators.
#pragma once

#include <string>

#include "topology/machine/machine.h"

namespace hetcomm::topology {

// Whether |node| is an accelerator. |on_root_bus|: there is no bridge between |node| and its root
// complex, as with graphics in a processor.
bool is_accelerator(const PciNode& node, bool on_root_bus);

// Returns a name such as "NVIDIA 10de:2330". The name of an unknown vendor is left out.
std::string accelerator_name(const PciNode& node);

// Adds an accelerator for each function of |machine| that is an accelerator and not yet listed.
void add_accelerators(Machine& machine);

}  // namespace hetcomm::topology
