// Who a job is, and the secret that its processes prove to each other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "src/base/span.h"

namespace hetcomm {

// One generation of one job. The id is a hash of the job's and the communicator's name.
struct Identity {
  std::array<std::byte, 16> job{};
  uint32_t epoch = 0;
  bool operator==(const Identity&) const = default;
};

// Key of the proof, SHA-256 of whatever the user gave. Never logged. Copies share one place, which
// core dumps leave out and which is wiped when the last copy goes.
class Secret {
 public:
  static constexpr size_t kBytes = 32;
  using Bytes = std::array<std::byte, kBytes>;

  // Zeros, which are nobody's key.
  Secret() = default;
  explicit Secret(const Bytes& bytes);

  const Bytes& bytes() const;
  operator ConstByteSpan() const { return bytes(); }
  bool operator==(const Secret& other) const { return bytes() == other.bytes(); }

 private:
  class Page;
  std::shared_ptr<const Page> page_;
};

struct Credentials {
  Identity identity;
  Secret secret;
};

}  // namespace hetcomm
