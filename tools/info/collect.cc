#include "tools/info/collect.h"

#include "tools/info/handles.h"

namespace hetcomm_info {
namespace {

bool collect_values(hetcomm_context_t* context, Report& report) {
  for (VariableRow& row : report.variables) {
    const char* value = nullptr;
    const hetcomm_status_t status = hetcomm_context_variable(context, row.name.c_str(), &value);
    if (status != HETCOMM_OK) {
      report_failure("hetcomm_context_variable", status);
      return false;
    }
    row.value = value;
  }
  return true;
}

bool collect_devices(hetcomm_context_t* context, Report& report) {
  int32_t count = 0;
  hetcomm_status_t status = hetcomm_device_count(context, &count);
  for (int32_t index = 0; status == HETCOMM_OK && index < count; ++index) {
    hetcomm_device_info_t info{.struct_size = sizeof(info)};
    status = hetcomm_device_info(context, index, &info);
    if (status != HETCOMM_OK) break;
    report.devices.push_back({.index = info.index,
                              .kind = info.kind,
                              .name = info.name,
                              .host_accessible = info.host_accessible != 0,
                              .pci_address = info.pci_address,
                              .numa_node = info.numa_node});
  }
  if (status != HETCOMM_OK) report_failure("devices", status);
  return status == HETCOMM_OK;
}

bool collect_transports(hetcomm_context_t* context, Report& report) {
  hetcomm_status_t status = HETCOMM_OK;
  for (size_t index = 0;; ++index) {
    hetcomm_transport_info_t info{.struct_size = sizeof(info)};
    status = hetcomm_context_transport(context, index, &info);
    if (status != HETCOMM_OK) break;
    report.transports.push_back(
        {.name = info.name, .usable = info.usable != 0, .reason = info.reason});
  }
  if (status == HETCOMM_OUT_OF_RANGE) return true;  // past the last entry
  report_failure("transports", status);
  return false;
}

}  // namespace

void collect_library(Report& report) {
  report.version = hetcomm_version_string();
  report.abi_version = hetcomm_abi_version();
  report.build = hetcomm_build_string();
}

std::vector<VariableRow> describe_variables() {
  std::vector<VariableRow> rows;
  hetcomm_variable_info_t info{.struct_size = sizeof(info)};
  for (size_t index = 0; hetcomm_variable_describe(index, &info) == HETCOMM_OK; ++index) {
    rows.push_back({.name = info.name,
                    .default_value = info.default_value,
                    .value = {},
                    .meaning = info.meaning});
  }
  return rows;
}

bool collect_machine(hetcomm_context_t* context, Report& report) {
  report.variables = describe_variables();
  return collect_values(context, report) && collect_devices(context, report) &&
         collect_transports(context, report);
}

}  // namespace hetcomm_info
