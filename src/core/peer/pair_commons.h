// The objects that the pairs of a job share, and the interfaces through which they call the job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/device/host_blocks.h"
#include "src/core/device/memory.h"
#include "src/core/memory/device_access.h"
#include "src/core/memory/device_sums.h"
#include "src/core/memory/near_transports.h"
#include "src/core/memory/registration.h"
#include "src/core/memory/staging.h"
#include "src/core/memory/variables.h"
#include "src/core/peer/matching/channel_table.h"
#include "src/core/peer/matching/completer.h"
#include "src/core/peer/matching/delivery.h"
#include "src/core/peer/rails/peer_paths.h"
#include "src/core/peer/sharing/pacer.h"
#include "src/core/peer/sharing/pair_turns.h"
#include "src/core/peer/variables.h"
#include "src/core/peer/wire/wire.h"
#include "src/core/progress/block_pool.h"
#include "src/core/progress/engine.h"
#include "src/core/progress/graveyard.h"
#include "src/core/progress/operation.h"
#include "src/core/progress/slot_table.h"
#include "src/liveness/control_plane.h"
#include "src/net/variables.h"
#include "src/system/config.h"
#include "src/system/log.h"
#include "transports/transport.h"

namespace hetcomm {

// Receives events that concern more than one pair.
class PairListener {
 public:
  // Notifies all waiters of |why| because |rank| is permanently gone and its pair is quiet. Works
  // without memory.
  virtual void on_rank_lost(int rank, const Status& why) HETCOMM_UNDER_BATON = 0;
  // Handles the end of the memory that |rank| knew as |id|: it can no longer be used.
  virtual void on_memory_gone(int rank, uint64_t id, Code code) HETCOMM_UNDER_BATON = 0;
  // Handles a transport's question about what has arrived at |rank| on |stream|.
  virtual void on_doubt(int rank, const StreamId& stream) HETCOMM_UNDER_BATON = 0;
  // Handles a message of a collective operation for which no receive waits.
  virtual void on_unexpected_part(int rank, const WireHeader& header) HETCOMM_UNDER_BATON = 0;

 protected:
  ~PairListener() = default;
};

struct PairCommons {
  PairCommons(Engine& progress, Log& lines, DeviceSet& devices, const Config& config,
              const std::vector<int>& device_nodes, OverlapGuard& overlaps,
              const PeerPaths& its_paths, PairListener& listens, int own_rank)
      : engine(progress),
        log(lines),
        paths(its_paths),
        listener(listens),
        rank(own_rank),
        detection_ns(config.number(variable::kDetectionTime)),
        cool_down_ns(config.number(variable::kCoolDown)),
        host_blocks(128u << 20, &devices.abandoned()),
        staging(devices,
                {.chunk_bytes = config.number(variable::kStagingChunk),
                 .depth = config.number(variable::kStagingDepth),
                 .pins = config.text(variable::kStagingPin) == "on",
                 .device_nodes = device_nodes},
                &progress.spin()),
        sums(devices, staging,
             config.text(variable::kDeviceSums) == "off"  ? DeviceSums::Mode::kHost
             : config.text(variable::kDeviceSums) == "on" ? DeviceSums::Mode::kDevice
                                                          : DeviceSums::Mode::kMeasured),
        device_access(devices, config, lines),
        completer(progress, overlaps),
        delivery(completer, staging, blocks, graveyard),
        turns(progress),
        links(turns) {}

  uint64_t now_ns() const HETCOMM_UNDER_BATON { return engine.coarse_now(); }
  // Returns whether a connection over transport |index| moves all of |operation|'s memory directly,
  // as described by extents().
  bool reaches(const Operation& operation, size_t index) HETCOMM_UNDER_BATON {
    return operation.buffers.on_host || device_access.reaches(operation, index);
  }
  // Returns the device of |operation|'s memory, if all of it is on one device, far from transport
  // |index|.
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
  // Frees |object| once none of its upcalls can be on the stack.
  template <typename T, typename Delete>
  void retire(std::unique_ptr<T, Delete> object) HETCOMM_UNDER_BATON {
    graveyard.add(std::move(object));
  }

  Engine& engine;
  Log& log;
  const PeerPaths paths;
  PairListener& listener;
  const int rank;  // this process's number in the job
  const uint64_t detection_ns;
  const uint64_t cool_down_ns;
  uint32_t credit_granted = 0;                // bytes granted to each peer
  uint32_t first_sequence = 0;                // see JobOptions
  liveness::ControlPlane* control = nullptr;  // null in a job of one rank

  BlockPool blocks;  // for objects that live as long as an operation
  // Memory where messages of redistributions are packed and received, and for data between their
  // hops. While redistributions exist, enough is kept for two of them to arrive at the same time.
  HostBlocks host_blocks;
  Graveyard graveyard;
  Staging staging;
  DeviceSums sums;
  DeviceAccess device_access;
  NearTransports near;
  Completer completer;
  Delivery delivery;
  PairTurns turns;
  LinkShares links;
  ChannelTable channels;
  SlotTable<Registration> registrations;
};

}  // namespace hetcomm
