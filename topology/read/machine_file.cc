#include "topology/read/machine_file.h"

#include <algorithm>
#include <filesystem>

#include <fmt/core.h>

#include "src/base/text.h"
#include "src/system/small_file.h"
#include "topology/machine/machine_json.h"
#include "topology/read/hwloc_reader.h"

namespace hetcomm::topology {
namespace {

constexpr size_t kMaxBytes = 16u << 20;
constexpr std::string_view kXml = ".xml";

std::string what(const std::string& path) {
  return fmt::format("topology file {}", printable(path));
}

Status in_file(const std::string& path, const Status& status) {
  return status.annotate(what(path));
}

Result<Machine> read_hwloc_file(const std::string& path, const std::string& xml) {
  Result<Machine> machine = parse_hwloc_xml(xml);
  if (!machine.ok()) return in_file(path, machine.status());
  const std::string beside = path.substr(0, path.size() - kXml.size()) + ".nics.json";
  std::error_code error;
  if (!std::filesystem::exists(beside, error)) return machine;
  Result<SmallFile> nics = read_small_file(beside, kMaxBytes, what(beside));
  if (!nics.ok()) return nics.status();
  if (const Status added = add_nics(nics->contents, *machine); !added.ok()) {
    return in_file(beside, added);
  }
  return machine;
}

// Returns the name of the first of |nics| that |others| lacks, or an empty string if there is none.
std::string missing_nic(const std::vector<Nic>& nics, const std::vector<Nic>& others) {
  for (const Nic& nic : nics) {
    const bool found = std::any_of(others.begin(), others.end(), [&](const Nic& other) {
      return nic.interface == other.interface && nic.rdma_device == other.rdma_device &&
             nic.rdma_port == other.rdma_port;
    });
    if (!found) return printable(nic.name());
  }
  return {};
}

std::string missing_accelerator(const Machine& machine, const Machine& other) {
  for (const Accelerator& each : machine.accelerators) {
    if (other.find_accelerator(each.address) == kNone) return each.address.text();
  }
  return {};
}

std::vector<Nic> those_that_count(const Machine& machine) {
  std::vector<Nic> nics;
  std::copy_if(machine.nics.begin(), machine.nics.end(), std::back_inserter(nics),
               [](const Nic& nic) { return nic.kind == NicKind::kPhysical; });
  return nics;
}

}  // namespace

Result<Machine> read_machine_file(const std::string& path) {
  Result<SmallFile> file = read_small_file(path, kMaxBytes, what(path));
  if (!file.ok()) return file.status();
  Result<Machine> machine =
      path.ends_with(kXml) ? read_hwloc_file(path, file->contents) : parse_machine(file->contents);
  if (!machine.ok() && !path.ends_with(kXml)) return in_file(path, machine.status());
  if (machine.ok() && machine->source.empty()) machine->source = path;
  return machine;
}

std::string disagreement(const Machine& file, const Machine& live) {
  if (const std::string nic = missing_nic(those_that_count(file), live.nics); !nic.empty()) {
    return fmt::format("it has NIC {}, which this host lacks", nic);
  }
  if (const std::string nic = missing_nic(those_that_count(live), file.nics); !nic.empty()) {
    return fmt::format("it lacks NIC {} of this host", nic);
  }
  if (const std::string address = missing_accelerator(file, live); !address.empty()) {
    return fmt::format("it has an accelerator at {}, which this host lacks", address);
  }
  if (const std::string address = missing_accelerator(live, file); !address.empty()) {
    return fmt::format("it lacks the accelerator at {} of this host", address);
  }
  return {};
}

}  // namespace hetcomm::topology
