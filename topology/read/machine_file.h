// A Machine from a file that the user names, in place of the live host.
#pragma once

#include <string>

#include "src/base/status.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// Reads |path|: a file of hwloc if it ends in ".xml", else JSON of this library. A file
// machine.nics.json next to machine.xml may add what hwloc does not know of NICs (add_nics). The
// text of an error names the file.
Result<Machine> read_machine_file(const std::string& path);

// Describes in a sentence what either of |file| and |live| has and the other lacks: NICs by name,
// accelerators by address. Empty: they agree.
std::string disagreement(const Machine& file, const Machine& live);

}  // namespace hetcomm::topology
