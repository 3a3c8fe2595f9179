// A Machine as JSON: all of it, so that the decisions of one host can be reproduced on another.
// README.md describes the format.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

std::string to_json(const Machine& machine);

// Reads what to_json() has written, or a person. INVALID_ARGUMENT with the line of a syntax error,
// or the path of a wrong entry ("nics[2].state"); UNSUPPORTED for a file of another version.
Result<Machine> parse_machine(std::string_view json);

// Adds what a file of hwloc does not say of NICs. |json| has the same format, with "nics" only. An
// entry that names a NIC of |machine| by "interface" or "rdma_device" changes the fields that it
// has; one that names none is a further NIC, such as a bond "over" others.
Status add_nics(std::string_view json, Machine& machine);

}  // namespace hetcomm::topology
