// Loads hwloc, with the functions that this folder calls. The library is loaded when a topology is
// first read through it. On hosts for which sysfs is enough, it is never loaded.
#pragma once

#include <hwloc.h>

#include "src/base/status.h"

namespace hetcomm::topology {

struct Hwloc {
  decltype(&hwloc_get_api_version) get_api_version = nullptr;
  decltype(&hwloc_topology_init) topology_init = nullptr;
  decltype(&hwloc_topology_destroy) topology_destroy = nullptr;
  decltype(&hwloc_topology_load) topology_load = nullptr;
  decltype(&hwloc_topology_set_xmlbuffer) topology_set_xmlbuffer = nullptr;
  decltype(&hwloc_topology_set_flags) topology_set_flags = nullptr;
  decltype(&hwloc_topology_set_components) topology_set_components = nullptr;
  decltype(&hwloc_topology_set_io_types_filter) topology_set_io_types_filter = nullptr;
  decltype(&hwloc_get_obj_by_depth) get_obj_by_depth = nullptr;
  decltype(&hwloc_get_nbobjs_by_depth) get_nbobjs_by_depth = nullptr;
  decltype(&hwloc_bitmap_next) bitmap_next = nullptr;
  decltype(&hwloc_bitmap_list_snprintf) bitmap_list_snprintf = nullptr;
  decltype(&hwloc_distances_get_by_name) distances_get_by_name = nullptr;
  decltype(&hwloc_distances_release) distances_release = nullptr;
};

// Loads the installed library, which stays loaded. Fails with UNSUPPORTED if it cannot be loaded
// (the text has the loader's reason), if it has another ABI, or if the environment has an hwloc
// variable and this program has privileges that its caller lacks. [any-thread]
Result<const Hwloc*> load_hwloc();

}  // namespace hetcomm::topology
