// Reads a Machine from a file that the user names, in place of the live host.
#pragma once

#include <string>

#include "src/base/status.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// Reads |path|: an hwloc file if it ends in ".xml", and this library's JSON otherwise. A file
// machine.nics.json next to machine.xml can add data about NICs that hwloc lacks (add_nics()). The
// text of an error names the file.
Result<Machine> read_machine_file(const std::string& path);

// Describes the first object that is in only one of |file| and |live|: a physical NIC, by its name,
// or an accelerator, by its address. Returns an empty string if they agree.
std::string disagreement(const Machine& file, const Machine& live);

}  // namespace hetcomm::topology
