// Writes a Machine with its affinity as JSON for other programs, and reads it.
#pragma once

#include <string>
#include <string_view>

#include "src/base/status.h"
#include "topology/machine/affinity.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// Returns the document of to_json(machine) with an additional member "affinity". parse_machine()
// accepts it.
std::string to_json(const Machine& machine, const Affinity& affinity);

// Returns the affinity in |json|, a document of |machine|. If the document has none, returns the
// result of assign_nics() without rules. INVALID_ARGUMENT: the text names the path of a wrong
// entry.
Result<Affinity> parse_affinity(std::string_view json, const Machine& machine);

}  // namespace hetcomm::topology
