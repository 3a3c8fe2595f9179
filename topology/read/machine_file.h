// Reads a Machine from a file that the user names, in place of the live host.
#pragma once

#include <string>

#include "src/base/status.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// Reads |path|: an hwloc file if it ends in ".xml", else this library's JSON. A file
// machine.nics.json next to machine.xml may add NIC data that hwloc lacks (add_nics). The text of
// an error names the file.
Result<Machine> read_machine_file(const std::string& path);

// Describes in a sentence the objects that only one of |file| and |live| has: NICs by name,
// accelerators by address. Empty: they agree.
std::string disagreement(const Machine& file, const Machine& live);

}  // namespace hetcomm::topology
