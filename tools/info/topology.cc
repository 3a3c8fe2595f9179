#include "tools/info/topology.h"

#include <cstdio>
#include <cstdlib>

#include <hetcomm/hetcomm.h>

#include "tools/common/plan_answer.h"
#include "tools/info/handles.h"

namespace hetcomm_info {

int print_topology(const std::string& file, const std::string& format) {
  // A name with a semicolon cannot be passed in the settings, since semicolons separate them. The
  // environment accepts any name, but a program with more privileges than its caller does not read
  // files named in the environment.
  std::string settings = "HETCOMM_TOPOLOGY_TRUST=on";
  if (file.find(';') == std::string::npos) {
    settings += ";HETCOMM_TOPOLOGY=" + file;
  } else {
    setenv("HETCOMM_TOPOLOGY", file.c_str(), 1);
  }
  const Context context = create_context(file.empty() ? nullptr : settings.c_str());
  if (context == nullptr) return kFailure;
  size_t size = 0;
  std::string machine;
  for (int i = 0; i < 2; ++i) {
    machine.resize(size);
    const hetcomm_status_t status = hetcomm_context_topology(context.get(), HETCOMM_TOPOLOGY_JSON,
                                                             machine.size(), machine.data(), &size);
    if (status == HETCOMM_OK) continue;
    report_failure("topology", status);
    return kFailure;
  }
  machine.resize(size - 1);
  try {
    const std::string text =
        tools::plan_answer(hetcomm_machine_draw, machine, tools::plan_form(format));
    std::fputs(text.c_str(), stdout);
    return kSuccess;
  } catch (const tools::PlanError& error) {
    std::fprintf(stderr, "hetcomm_info: topology: %s\n", error.what());
    return kFailure;
  }
}

}  // namespace hetcomm_info
