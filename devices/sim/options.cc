#include "devices/sim/options.h"

#include <algorithm>
#include <array>

#include <fmt/core.h>

#include "src/system/config.h"

namespace hetcomm {
namespace {

// Describes one option. The limits catch a forgotten unit ("bandwidth=10", "latency=5"), which
// would otherwise look like a hang.
struct Option {
  std::string_view name;
  Result<uint64_t> (*parse)(std::string_view);
  uint64_t SimOptions::*field;
  bool zero_allowed;
  uint64_t least;
  uint64_t most;
  std::string_view limits;
};

constexpr std::array<Option, 5> kOptions = {{
    {"bandwidth", parse_size, &SimOptions::bandwidth_bytes_per_s, true, uint64_t{1} << 20,
     uint64_t{1} << 50, "0 (no limit), or 1M to 1048576G bytes per second"},
    {"latency", parse_duration, &SimOptions::latency_ns, true, 0, 10'000'000'000, "0 to 10s"},
    {"memory", parse_size, &SimOptions::memory_bytes, false, uint64_t{1} << 12, uint64_t{1} << 42,
     "4K to 4096G bytes"},
    {"node", parse_size, &SimOptions::numa_node, true, 0, 1023, "the number of a NUMA node"},
    {"unified", parse_size, &SimOptions::unified, true, 0, 1, "0 or 1"},
}};

constexpr std::string_view kPci = "pci=";

// Removes an option such as "pci=0000:3b:00.0" from the front of |text|. It is parsed separately,
// since its value contains colons.
Status take_pci(std::string_view& text, SimOptions& options) {
  constexpr size_t kFunctionDigits = 1;
  text.remove_prefix(kPci.size());
  const size_t end = std::min(text.find('.'), text.size()) + 1 + kFunctionDigits;
  const std::string_view address = text.substr(0, end);
  const bool is_address = text.size() >= end && address.size() <= sizeof("00000000:00:00.0") - 1 &&
                          address.find_first_not_of("0123456789abcdefABCDEF:.") == address.npos &&
                          (text.size() == end || text[end] == ':');
  if (!is_address) {
    return Status(Code::kInvalidArgument,
                  fmt::format("option 'pci={}' is no PCI address such as 0000:3b:00.0", text));
  }
  if (!options.pci_address.empty()) {
    return Status(Code::kInvalidArgument, "option 'pci' is given twice");
  }
  options.pci_address = address;
  text.remove_prefix(end);
  return {};
}

Status assign(std::string_view entry, SimOptions& options,
              std::array<bool, kOptions.size()>& seen) {
  const size_t equals = entry.find('=');
  const std::string_view name = entry.substr(0, equals);
  for (size_t i = 0; i < kOptions.size(); ++i) {
    const Option& option = kOptions[i];
    if (name != option.name) continue;
    if (equals == std::string_view::npos) {
      return Status(Code::kInvalidArgument, fmt::format("option '{}' has no value", name));
    }
    if (seen[i]) {
      return Status(Code::kInvalidArgument, fmt::format("option '{}' is given twice", name));
    }
    seen[i] = true;
    const Result<uint64_t> value = option.parse(entry.substr(equals + 1));
    if (!value.ok()) return value.status().annotate(fmt::format("option '{}'", name));
    const uint64_t number = value.value();
    const bool in_range = number >= option.least && number <= option.most;
    if (!in_range && !(number == 0 && option.zero_allowed)) {
      return Status(Code::kInvalidArgument,
                    fmt::format("option '{}' must be {}; was a unit meant?", entry, option.limits));
    }
    options.*option.field = number;
    return {};
  }
  return Status(Code::kInvalidArgument,
                fmt::format("'{}' is no option of a simulated device (bandwidth, latency, memory, "
                            "node, pci, unified)",
                            name));
}

}  // namespace

Result<SimOptions> parse_sim_options(std::string_view text) {
  SimOptions options;
  std::array<bool, kOptions.size()> seen{};
  while (!text.empty()) {
    if (text.starts_with(kPci)) {
      HETCOMM_RETURN_IF_ERROR(take_pci(text, options));
    } else {
      const std::string_view entry = text.substr(0, text.find(':'));
      HETCOMM_RETURN_IF_ERROR(assign(entry, options, seen));
      text.remove_prefix(entry.size());
    }
    if (text.empty()) break;
    text.remove_prefix(1);
    if (text.empty()) {
      return Status(Code::kInvalidArgument, "an option is missing after the last ':'");
    }
  }
  return options;
}

}  // namespace hetcomm
