// A Machine with its affinity as JSON, for programs.
#pragma once

#include <string>

#include "topology/machine/affinity.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// The document of to_json(), with one more member "affinity". parse_machine() reads it.
std::string to_json(const Machine& machine, const Affinity& affinity);

}  // namespace hetcomm::topology
