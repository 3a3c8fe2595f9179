// Credentials identify a job and its processes, and contain the secret that the processes prove.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/base/span.h"

namespace hetcomm {

// Identity identifies one generation of one job. |job| is a hash of the job's and the
// communicator's name, so it is the same in every launch of the job. |instance| is never reused:
// rank 0 draws it at random each time that the ranks come together. |instance| is zero where there
// is no control plane, as on connections to the store.
struct Identity {
  std::array<std::byte, 16> job{};
  uint32_t epoch = 0;
  std::array<std::byte, 16> instance{};
  bool operator==(const Identity&) const = default;
};

// Secret holds the key that processes prove. key.h derives it from the user's secret. The key is
// never logged. Copies share one memory page. The page is excluded from core dumps, and is wiped
// when the last copy is destroyed.
class Secret {
 public:
  static constexpr size_t kBytes = 32;
  using Bytes = std::array<std::byte, kBytes>;

  // Makes a key of zeros, which no job uses.
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
  // The incarnation of each rank. An incarnation is a number that a process draws at random for
  // each job, so a restarted process has a different one. Null if ranks have no incarnations.
  std::shared_ptr<const std::vector<uint64_t>> incarnations{};

  // Returns 0 if |rank| has no incarnation.
  uint64_t incarnation_of(int32_t rank) const {
    const auto index = static_cast<size_t>(rank);
    return incarnations != nullptr && rank >= 0 && index < incarnations->size()
               ? (*incarnations)[index]
               : 0;
  }
};

}  // namespace hetcomm
