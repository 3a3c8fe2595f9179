// Collects what the library reports about itself and this machine, as plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <hetcomm/hetcomm.h>

namespace hetcomm_info {

struct Sections {
  bool variables = false;
  bool devices = false;
  bool transports = false;
  // Returns whether no section was requested. The output is then the default page, or everything as
  // JSON.
  bool all() const { return !variables && !devices && !transports; }
};

struct VariableRow {
  std::string name;
  std::string default_value;
  std::string value;  // current value; secrets only as "(set)"
  std::string meaning;
};

struct DeviceRow {
  int32_t index = 0;
  std::string kind;
  std::string name;
  bool host_accessible = false;
  std::string pci_address;  // empty: not available
  int32_t numa_node = -1;   // -1: not available
};

struct TransportRow {
  std::string name;
  bool usable = false;
  std::string reason;
};

struct Report {
  std::string version;
  uint32_t abi_version = 0;
  std::string build;
  std::vector<VariableRow> variables;
  std::vector<DeviceRow> devices;
  std::vector<TransportRow> transports;
};

// Collects version and build. Needs no context and cannot fail.
void collect_library(Report& report);
// Returns the variables without their current values. Needs no context.
std::vector<VariableRow> describe_variables();
// Collects variables, devices and transports. If a call fails, prints the reason on standard error
// and returns false.
bool collect_machine(hetcomm_context_t* context, Report& report);

}  // namespace hetcomm_info
