// A host id tells on which host this process runs. It is one number for each start of a kernel,
// which containers and network namespaces of one machine share.
#pragma once

#include <array>
#include <cstddef>

namespace hetcomm {

using HostId = std::array<std::byte, 16>;

// In place of an id that the kernel does not tell.
inline constexpr HostId kUnknownHost{};

// Both ids are known, and they differ.
inline bool are_different_hosts(const HostId& one, const HostId& other) {
  return one != other && one != kUnknownHost && other != kUnknownHost;
}

}  // namespace hetcomm
