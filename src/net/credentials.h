// Who a job is, and the secret that its processes prove to each other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace hetcomm {

// One generation of one job. The id is a hash of the job's and the communicator's name.
struct Identity {
  std::array<std::byte, 16> job{};
  uint32_t epoch = 0;
  bool operator==(const Identity&) const = default;
};

// Key of the proof, SHA-256 of whatever the user gave. Never logged.
using Secret = std::array<std::byte, 32>;

struct Credentials {
  Identity identity;
  Secret secret{};
};

}  // namespace hetcomm
