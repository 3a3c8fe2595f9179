// Reads and writes a Machine as JSON. The JSON contains the complete Machine, so the decisions made
// on one host can be reproduced on another. topology/README.md describes the format.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// The maximum nesting depth of brackets in a file. check() allows 64 nested bridges, and each adds
// two levels, an object and a list.
inline constexpr int kMaxMachineNesting = 140;

std::string to_json(const Machine& machine);

// Parses JSON that was written by to_json() or by hand. Fails with INVALID_ARGUMENT if the JSON is
// invalid. The text then names the line of a syntax error, the path of a wrong entry
// ("nics[2].state"), or the fault that check() has found. Fails with UNSUPPORTED if the file has
// another version.
Result<Machine> parse_machine(std::string_view json);

// Adds NIC data that an hwloc file lacks. |json| has the same format, but lists only "nics". If an
// entry names a NIC of |machine| by "interface" or by "rdma_device" and "rdma_port", the NIC's
// fields that the entry lists are changed. Any other entry adds a NIC, such as a bond "over" other
// NICs. The errors are those of parse_machine(). On failure |machine| is unchanged.
Status add_nics(std::string_view json, Machine& machine);

}  // namespace hetcomm::topology
