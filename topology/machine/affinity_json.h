// Writes a Machine and its affinity as JSON for other programs, and reads the affinity back.
#pragma once

#include <string>
#include <string_view>

#include "src/base/status.h"
#include "topology/machine/affinity.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// Returns the JSON document of to_json(machine) with an additional member "affinity".
// parse_machine() accepts this document too.
std::string to_json(const Machine& machine, const Affinity& affinity);

// Returns the affinity in |json|, which must describe |machine|. If the document has no affinity,
// returns the result of assign_nics() without rules. Fails with INVALID_ARGUMENT if the document is
// invalid. The text then names the line of a syntax error or the path of a wrong entry.
Result<Affinity> parse_affinity(std::string_view json, const Machine& machine);

}  // namespace hetcomm::topology
