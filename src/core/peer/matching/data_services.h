// DataServices holds the objects that move and deliver data for all pairs of a job. Callers hold
// the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/device/memory.h"
#include "src/core/memory/device_access.h"
#include "src/core/memory/near_transports.h"
#include "src/core/memory/overlap_guard.h"
#include "src/core/memory/staging.h"
#include "src/core/memory/variables.h"
#include "src/core/peer/matching/channel_table.h"
#include "src/core/peer/matching/completer.h"
#include "src/core/peer/matching/delivery.h"
#include "src/core/progress/block_pool.h"
#include "src/core/progress/engine.h"
#include "src/core/progress/graveyard.h"
#include "src/core/progress/operation.h"
#include "src/system/config.h"
#include "src/system/log.h"

namespace hetcomm {

struct DataServices {
  // |device_nodes|: the NUMA node of each device's staging memory.
  DataServices(Engine& progress, Log& log, DeviceSet& devices, const Config& config,
               const std::vector<int>& device_nodes, OverlapGuard& overlaps)
      : engine(progress),
        staging(devices,
                {.chunk_bytes = config.number(variable::kStagingChunk),
                 .depth = config.number(variable::kStagingDepth),
                 .pins = config.text(variable::kStagingPin) == "on",
                 .device_nodes = device_nodes},
                &progress.spin()),
        device_access(devices, config, log),
        completer(progress, overlaps),
        delivery(completer, staging, blocks, graveyard) {}

  uint64_t now_ns() const HETCOMM_UNDER_BATON { return engine.coarse_now(); }
  // Returns whether transport |index| can access all of |operation|'s memory at the addresses of
  // extents(), without staging.
  bool reaches(const Operation& operation, size_t index) HETCOMM_UNDER_BATON {
    return operation.buffers.on_host || device_access.reaches(operation, index);
  }
  // Returns the device of |operation|'s memory, if all of the memory is on one device and that
  // device is far from transport |index|. Otherwise returns nothing.
  std::optional<size_t> far_device(const Operation& operation, size_t index) HETCOMM_UNDER_BATON {
    if (operation.buffers.on_host || operation.buffers.pieces.empty()) return std::nullopt;
    std::optional<size_t> device;
    for (const BufferPiece& piece : operation.buffers.pieces) {
      if (piece.memory == nullptr || !device_access.is_far(piece.memory->device_index(), index) ||
          (device && *device != piece.memory->device_index())) {
        return std::nullopt;
      }
      device = piece.memory->device_index();
    }
    return device;
  }
  // Frees |object| once none of its upcalls can still be on the stack.
  template <typename T, typename Delete>
  void retire(std::unique_ptr<T, Delete> object) HETCOMM_UNDER_BATON {
    graveyard.add(std::move(object));
  }

  Engine& engine;
  BlockPool blocks;  // for objects that live as long as an operation
  Graveyard graveyard;
  Staging staging;
  DeviceAccess device_access;
  NearTransports near;
  Completer completer;
  Delivery delivery;
  ChannelTable channels;
};

}  // namespace hetcomm
