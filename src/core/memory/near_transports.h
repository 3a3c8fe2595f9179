// NearTransports determines which transports of this rank carry the memory of each device.
//
// A transport that is bound to a network interface serves the devices near that interface. A
// transport without one serves all devices. If no transport of a kind is near a device, all
// transports of the kind serve it. Masks have a bit for each transport, by its number. Callers hold
// the baton.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/device/memory.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

class NearTransports {
 public:
  NearTransports() { masks_.fill(~uint64_t{0}); }

  struct Served {
    std::string_view kind;
    uint64_t devices;  // devices near the transport, as bits by device number
  };
  // Sets the transports, in the order of their numbers.
  void set(const std::vector<Served>& transports) HETCOMM_UNDER_BATON;

  uint64_t of_device(size_t device) const HETCOMM_UNDER_BATON {
    return device < masks_.size() ? masks_[device] : ~uint64_t{0};
  }
  // Returns the transports that serve any of the memory that |operation| sends or receives.
  uint64_t of(const Operation& operation) const HETCOMM_UNDER_BATON {
    if (operation.buffers.pieces.empty()) [[likely]]
      return masks_[0];
    uint64_t mask = 0;
    for (const BufferPiece& piece : operation.buffers.pieces) {
      mask |= of_device(piece.memory != nullptr ? piece.memory->device_index() : 0);
    }
    return mask;
  }

 private:
  std::array<uint64_t, 64> masks_;  // by device; 0 is the host
};

}  // namespace hetcomm
