#include "src/core/job/paths/transport_choice.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/base/lists.h"
#include "src/system/config.h"

namespace hetcomm {

Result<TransportChoice> TransportChoice::parse(
    std::string_view list, std::span<const std::unique_ptr<TransportFactory>> factories) {
  TransportChoice choice;
  choice.excludes_ = list.starts_with('^');
  if (choice.excludes_) list.remove_prefix(1);
  std::vector<std::string_view> known;
  for (const auto& factory : factories) known.push_back(factory->name());
  for (const std::string_view name : split_list(list)) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return Status(Code::kUnsupported, fmt::format("there is no transport '{}'; there are {}",
                                                    name, fmt::join(known, ", ")));
    }
    choice.names_.emplace_back(name);
  }
  return choice;
}

bool TransportChoice::has(std::string_view name) const {
  return std::find(names_.begin(), names_.end(), name) != names_.end();
}

bool TransportChoice::allows(std::string_view name) const {
  return names_.empty() || has(name) != excludes_;
}

bool TransportChoice::demands(std::string_view name) const { return !excludes_ && has(name); }

std::string TransportChoice::refusal() const {
  return fmt::format("{} {} may be used (HETCOMM_TRANSPORTS, or the communicator's options)",
                     excludes_ ? "all but" : "only", fmt::join(names_, ", "));
}

}  // namespace hetcomm
