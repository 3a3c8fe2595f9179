// Determines which PCI functions are accelerators.
#pragma once

#include <string>

#include "topology/machine/machine.h"

namespace hetcomm::topology {

// Returns whether |node| is an accelerator. |on_root_bus| is true if there is no bridge between
// |node| and its root complex, as for graphics that are integrated into a processor.
bool is_accelerator(const PciNode& node, bool on_root_bus);

// Returns a name such as "NVIDIA 10de:2330", or "10de:2330" if the vendor is unknown.
std::string accelerator_name(const PciNode& node);

// Adds each PCI function that is an accelerator to Machine::accelerators unless already listed.
void add_accelerators(Machine& machine);

}  // namespace hetcomm::topology
