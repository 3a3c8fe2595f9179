#include "bench/info/topology.h"

#include <cstdio>

#include <hetcomm/hetcomm.h>

#include "bench/info/handles.h"

namespace hetcomm_info {

int print_topology(const std::string& file, const std::string& format) {
  const std::string settings = "HETCOMM_TOPOLOGY=" + file + ";HETCOMM_TOPOLOGY_TRUST=on";
  const Context context = create_context(file.empty() ? nullptr : settings.c_str());
  if (context == nullptr) return kFailure;
  const int32_t form = format == "json"  ? HETCOMM_TOPOLOGY_JSON
                       : format == "svg" ? HETCOMM_TOPOLOGY_SVG
                                         : HETCOMM_TOPOLOGY_TEXT;
  size_t size = 0;
  hetcomm_status_t status = hetcomm_context_topology(context.get(), form, 0, nullptr, &size);
  std::string text(size, '\0');
  if (status == HETCOMM_OK) {
    status = hetcomm_context_topology(context.get(), form, text.size(), text.data(), &size);
  }
  if (status != HETCOMM_OK) {
    report_failure("topology", status);
    return kFailure;
  }
  std::fputs(text.c_str(), stdout);
  return kSuccess;
}

}  // namespace hetcomm_info
