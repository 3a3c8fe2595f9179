// Reads and writes a Machine as JSON. The JSON is complete, so that the decisions of one host can
// be reproduced on another. topology/README.md describes the format.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// The limit on nested brackets in a file. check() allows 64 nested bridges, and each takes two
// brackets: an object and a list.
inline constexpr int kMaxMachineNesting = 140;

std::string to_json(const Machine& machine);

// Parses JSON that to_json() or a person has written. INVALID_ARGUMENT: the text names the line of
// a syntax error, or the path of a wrong entry ("nics[2].state"). UNSUPPORTED: the file has another
// version.
Result<Machine> parse_machine(std::string_view json);

// Adds NIC data that an hwloc file lacks. |json| has the same format, with "nics" only. An entry
// that names a NIC of |machine| by "interface" or "rdma_device" changes the fields that it lists.
// An entry that names no existing NIC adds one, such as a bond "over" others.
Status add_nics(std::string_view json, Machine& machine);

}  // namespace hetcomm::topology
