// Replaces hwloc_reader.cc in builds without hwloc's headers.
#include "topology/read/hwloc_reader.h"

namespace hetcomm::topology {
namespace {

Status missing() { return {Code::kUnsupported, "this build has no hwloc"}; }

}  // namespace

Result<Machine> read_live_by_hwloc() { return missing(); }

Result<Machine> parse_hwloc_xml(std::string_view) { return missing(); }

}  // namespace hetcomm::topology
