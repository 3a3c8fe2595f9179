// A host id identifies the host on which a process runs. The id changes at each boot. All
// containers and network namespaces of one machine share it.
#pragma once

#include <array>
#include <cstddef>

namespace hetcomm {

using HostId = std::array<std::byte, 16>;

// The id of a host whose kernel does not report one.
inline constexpr HostId kUnknownHost{};

// Returns whether both ids are known and differ.
inline bool are_different_hosts(const HostId& one, const HostId& other) {
  return one != other && one != kUnknownHost && other != kUnknownHost;
}

}  // namespace hetcomm
