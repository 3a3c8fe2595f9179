// A Machine with its affinity as JSON, for programs.
#pragma once

#include <string>

#include "topology/machine/affinity.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// Returns the document of to_json(machine) with an additional member "affinity". parse_machine()
// accepts it.
std::string to_json(const Machine& machine, const Affinity& affinity);

}  // namespace hetcomm::topology
