#include "topology/read/hwloc_library.h"

#include <unistd.h>

#include <string>
#include <string_view>

#include <fmt/core.h>

#include "src/base/text.h"
#include "src/system/loaded_library.h"
#include "src/system/privilege.h"

namespace hetcomm::topology {
namespace {

struct Loaded {
  Hwloc functions;
  Status status;
};

// Returns the first hwloc variable in the environment, or null. hwloc reads the files and loads the
// plug-ins that its variables name, even in a program with privileges that its caller lacks.
const char* hwloc_variable() {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (std::string_view(*entry).starts_with("HWLOC_")) return *entry;
  }
  return nullptr;
}

// Returns a text about an installed hwloc of another major version, or an empty text if there is
// none.
std::string other_version() {
  for (const char* const name : {"libhwloc.so.16", "libhwloc.so.17", "libhwloc.so"}) {
    Library library;
    if (!library.load(name)) continue;
    decltype(&hwloc_get_api_version) api_version = nullptr;
    library.find("hwloc_get_api_version", api_version);
    if (api_version == nullptr) continue;
    const unsigned version = api_version();
    if (version >> 16 == HWLOC_API_VERSION >> 16) continue;
    return fmt::format("; {} is hwloc {}.{}, and hwloc {} is needed", name, version >> 16,
                       version >> 8 & 0xff, HWLOC_API_VERSION >> 16);
  }
  return {};
}

Loaded load() {
  Loaded loaded;
  if (const char* const variable = hwloc_variable();
      variable != nullptr && caller_of_process() == Caller::kStranger) {
    const std::string_view entry = variable;
    loaded.status = Status(
        Code::kUnsupported,
        fmt::format("hwloc: not used, because {} is set and this program has rights that whoever "
                    "started it lacks",
                    printable(entry.substr(0, entry.find('=')))));
    return loaded;
  }
  Library library;
  if (!library.load("libhwloc.so.15")) {
    const std::string why = dlerror();
    loaded.status = Status(Code::kUnsupported, fmt::format("hwloc: {}{}", why, other_version()));
    return loaded;
  }
  Hwloc& functions = loaded.functions;
  library.need("hwloc_get_api_version", functions.get_api_version);
  library.need("hwloc_topology_init", functions.topology_init);
  library.need("hwloc_topology_destroy", functions.topology_destroy);
  library.need("hwloc_topology_load", functions.topology_load);
  library.need("hwloc_topology_set_xmlbuffer", functions.topology_set_xmlbuffer);
  library.need("hwloc_topology_set_flags", functions.topology_set_flags);
  library.need("hwloc_topology_set_components", functions.topology_set_components);
  library.need("hwloc_topology_set_io_types_filter", functions.topology_set_io_types_filter);
  library.need("hwloc_get_obj_by_depth", functions.get_obj_by_depth);
  library.need("hwloc_get_nbobjs_by_depth", functions.get_nbobjs_by_depth);
  library.need("hwloc_bitmap_next", functions.bitmap_next);
  library.need("hwloc_bitmap_list_snprintf", functions.bitmap_list_snprintf);
  library.need("hwloc_distances_get_by_name", functions.distances_get_by_name);
  library.need("hwloc_distances_release", functions.distances_release);
  if (!library.missing().empty()) {
    loaded.status = Status(Code::kUnsupported,
                           fmt::format("hwloc: the installed library lacks {}", library.missing()));
  } else if (functions.get_api_version() >> 16 != HWLOC_API_VERSION >> 16) {
    loaded.status =
        Status(Code::kUnsupported,
               fmt::format("hwloc: the installed library has API {:#x}, and {:#x} is needed",
                           functions.get_api_version(), HWLOC_API_VERSION));
  }
  return loaded;
}

}  // namespace

Result<const Hwloc*> load_hwloc() {
  static const Loaded kLoaded = load();
  if (!kLoaded.status.ok()) return kLoaded.status;
  return &kLoaded.functions;
}

}  // namespace hetcomm::topology
