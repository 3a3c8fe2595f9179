// A Machine from a file that the user names, in place of the live host.
#pragma once

#include <string>

#include "src/base/status.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// Reads |path|: a file of hwloc if it ends in ".xml", else JSON of this library. Beside machine.xml
// there may be machine.nics.json with what hwloc does not know of NICs (add_nics). The text of an
// error names the file.
Result<Machine> read_machine_file(const std::string& path);

// Says in a sentence what |file| has that |live| lacks, or the other way round: NICs by name,
// accelerators by address. Empty: they agree.
std::string disagreement(const Machine& file, const Machine& live);

}  // namespace hetcomm::topology
