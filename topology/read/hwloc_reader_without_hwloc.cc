// For builds without the headers of hwloc.
#include "topology/read/hwloc_reader.h"

namespace hetcomm::topology {
namespace {

Status missing() { return {Code::kUnsupported, "this build has no hwloc"}; }

}  // namespace

Result<Machine> read_live_by_hwloc() { return missing(); }

Result<Machine> parse_hwloc_xml(std::string_view) { return missing(); }

}  // namespace hetcomm::topology
